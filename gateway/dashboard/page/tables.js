// Everything below the engines: tiers, legs, changes, decisions.

import { clock, count, share, text } from "./figures.js";

const TIERS = { device: "device", host: "host memory", disk: "disk", remote: "remote", predicted: "on its way", none: "computed" };

export function tiers(snapshot) {
  const { prompt_tokens: all, matched, compared } = snapshot.kv;
  const found = Object.values(matched).reduce((sum, tokens) => sum + tokens, 0);
  const parts = Object.entries({ ...matched, none: Math.max(all - found, 0) });
  const stack = byId("tiers");
  stack.replaceChildren(...parts.filter(([, tokens]) => tokens).map(([tier, tokens]) => {
    const part = made("i", `tier-${tier}`);
    part.style.width = `${(tokens / Math.max(all, found)) * 100}%`;
    return part;
  }));
  stack.ariaLabel = parts.map(([tier, tokens]) => `${TIERS[tier]} ${count(tokens)}`).join(", ");
  rows(byId("tier-table"), parts.map(([tier, tokens]) => [
    TIERS[tier], `${count(tokens)}`, all ? share(tokens / Math.max(all, found)) : "–", `tier-${tier}`,
  ]));
  byId("compared").textContent = all
    ? `Of the requests whose engine said what it found: ${count(compared.expected)} tokens expected, ${count(compared.cached)} found.`
    : `No prompt was routed by its tokens in the last ${snapshot.over_s.toFixed(0)} s.`;
}

export function legs(snapshot, upstream) {
  const { prefill, decode, both } = upstream.roles;
  const alone = `${both} ${both === 1 ? "engine does" : "engines do"} both.`;
  byId("roles").textContent = prefill || decode ? `Prefill : decode = ${prefill} : ${decode}. ${alone}` : alone;
  const { requests, transfers } = snapshot.legs;
  const told = Object.entries(requests).map(([why, n]) => [`requests: ${words(why)}`, count(n)]);
  const ends = Object.entries(transfers).filter(([, n]) => n).map(([end, n]) => [`transfers: ${words(end)}`, count(n)]);
  rows(byId("legs"), [...told, ...ends]);
}

export function changes(snapshot) {
  byId("changes").replaceChildren(...(snapshot.changes.length ? snapshot.changes : [null]).map((change) => {
    const item = document.createElement("li");
    if (change === null) return item.append("None since somebody has been watching."), item;
    item.append(time(change.at), `${change.where} ${change.kind} ${change.what}`.trim());
    return item;
  }));
}

export function decisions(snapshot) {
  const list = byId("decisions");
  const there = new Map([...list.children].map((one) => [one.dataset.id, one]));
  const order = snapshot.decisions.map((decision) => there.get(decision.id) ?? written(decision));
  if (!order.length) order.push(made("p", "quiet", "None yet."));
  if (order.length === list.children.length && order.every((one, at) => one === list.children[at])) return;
  for (const one of [...list.children]) if (!order.includes(one)) one.remove();
  order.forEach((one, at) => {
    if (list.children[at] !== one) list.insertBefore(one, list.children[at] ?? null);
  });
}

function written(decision) {
  const one = made("details", "decision");
  one.dataset.id = decision.id;
  const kv = decision.kv;
  const summary = one.appendChild(document.createElement("summary"));
  const where = kv?.prefill && kv.prefill !== decision.engine ? `${kv.prefill} → ${decision.engine}` : decision.engine;
  summary.append(time(decision.at), made("b", "", where));
  const facts = [decision.upstream, decision.model, `by ${decision.policy}`];
  if (kv?.matched_tokens !== undefined) facts.push(`${kv.matched_tokens} of ${kv.prompt_tokens} tokens cached`);
  if (decision.ttft_ms !== null) facts.push(`first token ${decision.ttft_ms} ms`);
  facts.push(`${decision.total_ms} ms`);
  summary.append(...facts.filter(Boolean).map((fact) => made("span", "", fact)));
  const well = decision.termination === "--" && decision.status < 400;
  if (!well) summary.append(made("span", "bad", `${decision.status} ${decision.termination}`));
  const receipt = one.appendChild(document.createElement("dl"));
  for (const [name, value] of Object.entries({ ...decision, ...kv, kv: undefined, at: undefined })) {
    if (value === undefined || value === null) continue;
    receipt.append(made("dt", "", words(name)), made("dd", "", said(value)));
  }
  return one;
}

function said(value) {
  if (typeof value !== "object") return text(value);
  return Object.entries(value).map(([name, one]) => `${words(name)} ${one}`).join(", ") || "–";
}

function words(name) {
  return name.replaceAll("_", " ");
}

function rows(table, wanted) {
  while (table.rows.length > wanted.length) table.deleteRow(-1);
  wanted.forEach(([name, value, more, mark], at) => {
    let row = table.rows[at];
    if (!row) {
      row = table.insertRow();
      row.appendChild(document.createElement("th")).scope = "row";
      row.insertCell();
      row.insertCell();
    }
    row.cells[0].replaceChildren(...(mark ? [made("i", mark)] : []), name);
    row.cells[1].textContent = value;
    row.cells[2].textContent = more ?? "";
    row.cells[2].hidden = more === undefined;
  });
}

function time(at) {
  return made("time", "", clock(at));
}

function made(tag, style, words = "") {
  const element = document.createElement(tag);
  if (style) element.className = style;
  element.textContent = words;
  return element;
}

function byId(id) {
  return document.getElementById(id);
}
