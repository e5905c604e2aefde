// The page: what comes in is remembered, and the upstream that one chose is shown.

import { show as showEngines } from "./engines.js";
import { follow } from "./feed.js";
import { count, seconds, share } from "./figures.js";
import { remember } from "./history.js";
import { draw, recolour } from "./plots.js";
import { changes, decisions, legs, tiers } from "./tables.js";

const byId = (id) => document.getElementById(id);
const KEPT_TOKEN = "kvgate-token", KEPT_THEME = "kvgate-theme";
let latest = null, paused = false;

function told(snapshot) {
  latest = snapshot;
  remember(snapshot);
  if (!paused) show();
}

function show() {
  if (latest === null) return;
  const names = Object.keys(latest.upstreams);
  const name = chosen(names);
  byId("main").hidden = false;
  head();
  if (name === undefined) return;
  const upstream = latest.upstreams[name];
  tiles(upstream);
  draw(byId("plots"), name);
  showEngines(byId("engine-table"), upstream.engines);
  tiers(latest);
  legs(latest, upstream);
  changes(latest);
  decisions(latest);
  planned(latest.planner[name]);
}

function chosen(names) {
  const select = byId("upstream");
  if (names.join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
    const former = select.value;
    select.replaceChildren(...names.map((name) => new Option(name)));
    if (names.includes(former)) select.value = former;
  }
  return names.includes(select.value) ? select.value : names[0];
}

function head() {
  const { version, generation, pid, ready, reason, processes } = latest.gateway;
  const workers = processes.filter((process) => process.kind === "worker").length || 1;
  byId("version").textContent = `${version}, configuration ${generation}, ${workers} worker${workers > 1 ? "s" : ""}`;
  mark("ready", ready ? "ready" : `not ready: ${reason}`, ready ? "good" : "bad");
  byId("pid").textContent = `process ${pid}`;
}

// What broke the SLO most often of late.
function missed(f) {
  if (f.goodput_per_s === null) return "no SLO is set";
  const causes = Object.keys(f).filter((name) => name.startsWith("missed_") && f[name] > 0);
  if (!causes.length) return f.attainment === null ? "nothing to count" : "all kept the SLO";
  const worst = causes.reduce((a, b) => (f[b] > f[a] ? b : a));
  return `${share(f.attainment)} good; most missed: ${worst.slice(7, -6).replace("_", " ")}`;
}

function tiles(upstream) {
  const f = upstream.figures, slo = upstream.slo_s;
  const engines = upstream.engines, up = engines.filter((engine) => engine.state === "up").length;
  const flying = engines.reduce((sum, engine) => sum + engine.in_flight, 0);
  const within = (value, limit) => (limit ? `${share(value)} within ${seconds(limit)}` : "no SLO is set");
  const wanted = [
    ["Completed per s", count(f.completed_per_s), `${count(f.failed_per_s)} failed, ${count(f.refused_per_s)} refused`],
    ["Goodput per s", count(f.goodput_per_s), missed(f)],
    ["First token, p95", seconds(f.ttft_p95), within(f.ttft_within, slo.ttft)],
    ["Per output token, p95", seconds(f.tpot_p95), within(f.tpot_within, slo.tpot)],
    ["Prompt tokens cached", share(f.hit_rate), f.input_tokens_per_s === null ? "engines did not say" : `of ${count(f.input_tokens_per_s)} per s`],
    ["Output tokens per s", count(f.output_tokens_per_s), f.output_tokens_per_s === null ? "engines did not say" : "as engines said"],
    ["In flight", count(flying), "at these engines"],
    ["Engines up", `${up} of ${engines.length}`, ""],
  ];
  const list = byId("tiles");
  while (list.children.length < wanted.length) {
    const tile = list.appendChild(document.createElement("div"));
    tile.append(...["dt", "dd", "dd"].map((tag) => document.createElement(tag)));
    tile.lastChild.className = "under";
  }
  wanted.forEach((words, at) => words.forEach((word, part) => { list.children[at].children[part].textContent = word; }));
}

// What `kvgate plan fit --live` said last of this upstream, and how long ago.
function planned(plan) {
  byId("planner").hidden = plan === undefined;
  if (plan === undefined) return;
  byId("verdict").textContent = plan.error ?? plan.verdict;
  byId("plan-facts").replaceChildren(...(plan.error ? [] : facts(plan)).map((words) => {
    const item = document.createElement("li");
    item.textContent = words;
    return item;
  }));
}

function facts(plan) {
  const now = plan.now === null ? [] : [`as it is now: ${plan.now}, ${share(plan.now_attainment)} in time by a replay`];
  return [
    `best: ${plan.best}, ${share(plan.attainment)} in time`,
    ...now,
    `bottleneck: ${plan.bottleneck}`,
    `from ${count(plan.requests)} recorded requests, ${ago(plan.age_s)}`,
    ...plan.assumed.map((words) => `assumed: ${words}`),
  ];
}

function ago(age) {
  const [size, unit] = [[86400, "days"], [3600, "hours"], [60, "minutes"], [0, "seconds"]].find(([least]) => age >= 2 * least);
  return `${Math.round(age / (size || 1))} ${unit} ago`;
}

function mark(id, words, style) {
  const element = byId(id);
  if (element.textContent !== words) element.textContent = words;
  element.className = `mark ${style}`;
}

function state(name, why) {
  if (name === "token") return ask(why);
  mark("link", why ? `${name}: ${why}` : name, { live: "good", lost: "bad" }[name] ?? "warn");
}

function ask(why) {
  sessionStorage.removeItem(KEPT_TOKEN);
  mark("link", "no token", "warn");
  byId("why").textContent = why;
  byId("login").hidden = false;
  byId("main").hidden = true;
  byId("token").focus();
}

function watch(token) {
  byId("login").hidden = true;
  follow(token, told, state);
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = byId("token").value;
  byId("token").value = "";
  sessionStorage.setItem(KEPT_TOKEN, token);
  watch(token);
});
byId("upstream").addEventListener("change", show);
byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").ariaPressed = String(paused);
  show();
});

function theme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").value = name;
  recolour();
}
byId("theme").addEventListener("change", (event) => {
  localStorage.setItem(KEPT_THEME, event.target.value);
  theme(event.target.value);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
theme(localStorage.getItem(KEPT_THEME) ?? "auto");
watch(sessionStorage.getItem(KEPT_TOKEN) ?? "");
