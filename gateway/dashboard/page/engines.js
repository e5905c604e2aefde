// The table of engines: a row per engine for as long as it is there, sorted by the column one chose.

import { count, share, text } from "./figures.js";

const STATES = { up: "good", benched: "warn", draining: "warn", unhealthy: "bad", down: "bad" };
const TRUST = { exact: "good", healing: "warn", approximate: "warn", blind: "bad" };
const use = (e) => (e.kv && e.kv.capacity_tokens ? e.kv.tokens / e.kv.capacity_tokens : null);
const COLUMNS = [
  { title: "Engine", sort: (e) => e.address, write: (e) => e.address + (e.backup ? " (backup)" : "") },
  { title: "Role", sort: (e) => e.role, write: (e) => e.role },
  { title: "State", sort: (e) => e.state, write: (e) => e.state, mark: (e) => STATES[e.state] },
  { title: "Trust", sort: (e) => e.kv?.worst ?? "", write: (e) => text(e.kv?.worst), mark: (e) => TRUST[e.kv?.worst] },
  { title: "In flight", number: true, sort: (e) => e.in_flight, write: (e) => count(e.in_flight) },
  { title: "Sent per s", number: true, sort: (e) => e.sent_per_s ?? 0, write: (e) => count(e.sent_per_s) },
  { title: "Prefill tokens queued", number: true, sort: (e) => e.load.prefill_tokens, write: (e) => count(e.load.prefill_tokens) },
  { title: "KV in use", sort: (e) => use(e) ?? -1, meter: use,
    write: (e) => (e.kv ? `${share(use(e))} of ${count(e.kv.capacity_tokens)}` : "–") },
  { title: "Breaker", number: true, sort: (e) => e.fails, write: (e) => (e.state === "benched" ? "open, " : "") + `${e.fails} failed`, mark: (e) => (e.fails ? "warn" : "") },
  { title: "Connections", number: true, sort: (e) => e.pool.active, write: (e) => `${e.pool.active} + ${e.pool.idle} idle` },
  { title: "Why", sort: (e) => why(e), write: why, style: "why" },
];

let by = 0, down = false, body = null, latest = [];
const rows = new Map();

export function show(table, engines) {
  body ??= build(table);
  latest = engines;
  const there = new Set(engines.map((engine) => engine.address));
  for (const [address, row] of rows) {
    if (!there.has(address)) { row.remove(); rows.delete(address); }
  }
  for (const engine of engines) {
    if (!rows.has(engine.address)) rows.set(engine.address, line());
    fill(rows.get(engine.address), engine);
  }
  const key = COLUMNS[by].sort;
  const order = [...engines].sort((a, b) => compare(key(a), key(b)) * (down ? -1 : 1) || compare(a.address, b.address));
  order.forEach((engine, at) => {
    const row = rows.get(engine.address);
    if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null);
  });
}

function build(table) {
  const head = table.createTHead().insertRow();
  COLUMNS.forEach((column, at) => {
    const cell = head.appendChild(document.createElement("th"));
    cell.scope = "col";
    if (column.number) cell.className = "number";
    const button = cell.appendChild(document.createElement("button"));
    button.type = "button";
    button.append(column.title);
    button.addEventListener("click", () => {
      down = at === by && !down;
      by = at;
      say(head);
      show(table, latest);
    });
  });
  say(head);
  return table.createTBody();
}

function say(head) {
  [...head.cells].forEach((cell, at) => {
    const mine = at === by;
    cell.ariaSort = mine ? (down ? "descending" : "ascending") : "none";
    cell.firstChild.textContent = COLUMNS[at].title + (mine ? (down ? " ▾" : " ▴") : "");
  });
}

function line() {
  const row = document.createElement("tr");
  for (const column of COLUMNS) {
    const cell = row.insertCell();
    cell.className = column.number ? "number" : (column.style ?? "");
    if (column.meter) {
      const meter = cell.appendChild(document.createElement("span"));
      meter.className = "meter";
      meter.appendChild(document.createElement("i"));
    }
    cell.appendChild(document.createElement("span"));
  }
  return row;
}

function fill(row, engine) {
  COLUMNS.forEach((column, at) => {
    const cell = row.cells[at];
    const words = cell.lastChild, said = column.write(engine);
    if (words.textContent !== said) words.textContent = said;
    if (column.style) cell.title = said;
    if (column.mark) words.className = column.mark(engine) ?? "";
    if (column.meter) {
      const full = column.meter(engine);
      cell.firstChild.hidden = full === null;
      cell.firstChild.firstChild.style.width = `${Math.min(full ?? 0, 1) * 100}%`;
    }
  });
}

function why(engine) {
  if (engine.state !== "up" && engine.why) return engine.why;
  return engine.kv && engine.kv.worst !== "exact" ? engine.kv.worst_reason : "";
}

function compare(a, b) {
  return typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
}
