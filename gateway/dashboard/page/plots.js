// The plots, and how they are read: by pointer, or with the arrow keys.

import { clock, count, seconds, share } from "./figures.js";
import { columns } from "./history.js";

const percentiles = (name) => [
  { label: "p50", colour: "--a", read: (f) => f[`${name}_p50`] },
  { label: "p95", colour: "--b", read: (f) => f[`${name}_p95`] },
  { label: "p99", colour: "--c", dash: [4, 3], read: (f) => f[`${name}_p99`] },
  { label: "SLO", colour: "--bad", dash: [8, 5], width: 1, read: (_, slo) => slo[name] || null },
];
const PLOTS = [
  { title: "Requests per second, by how they ended", write: count, lines: [
    { label: "completed", colour: "--a", read: (f) => f.completed_per_s },
    { label: "goodput", colour: "--good", dash: [8, 5], read: (f) => f.goodput_per_s },
    { label: "failed", colour: "--bad", read: (f) => f.failed_per_s },
    { label: "refused", colour: "--b", dash: [4, 3], read: (f) => f.refused_per_s },
    { label: "left by client", colour: "--quiet", dash: [2, 3], read: (f) => f.left_per_s },
  ] },
  { title: "Time to first token", write: seconds, lines: percentiles("ttft") },
  { title: "Time per output token", write: seconds, lines: percentiles("tpot") },
  { title: "Requests that missed the SLO per second, by cause", write: count, lines: [
    { label: "queue, tokenise", colour: "--b", read: (f) => (f.missed_queue_per_s ?? 0) + (f.missed_tokenise_per_s ?? 0) },
    { label: "prefill queue", colour: "--c", dash: [4, 3], read: (f) => f.missed_prefill_queue_per_s },
    { label: "prefill", colour: "--a", read: (f) => f.missed_prefill_per_s },
    { label: "transfer", colour: "--good", dash: [8, 5], read: (f) => f.missed_transfer_per_s },
    { label: "decode", colour: "--quiet", dash: [2, 3], read: (f) => f.missed_decode_per_s },
    { label: "error", colour: "--bad", read: (f) => f.missed_error_per_s },
  ] },
  { title: "Cache hits, and requests within the SLO", write: share, most: 1, lines: [
    { label: "prompt tokens cached", colour: "--a", read: (f) => f.hit_rate },
    { label: "SLO kept", colour: "--b", read: (f) => f.attainment },
    { label: "TTFT within", colour: "--good", dash: [8, 5], read: (f) => f.ttft_within },
    { label: "TPOT within", colour: "--c", dash: [4, 3], read: (f) => f.tpot_within },
  ] },
];

const SHORTEST_S = 60; // of what is shown

const drawn = [];

export function draw(into, upstream) {
  if (!drawn.length) for (const plot of PLOTS) drawn.push(build(into, plot));
  into.dataset.points = columns(upstream, [])[0].length;
  for (const one of drawn) {
    one.chart.setData(columns(upstream, one.plot.lines.map((line) => line.read)));
    write(one);
  }
}

// Colours are the page's: after a change of the theme everything is drawn anew.
export function recolour() {
  for (const one of drawn) {
    const former = one.chart;
    one.chart = chart(one);
    one.chart.setData(former.data);
    former.destroy();
    write(one);
  }
}

function build(into, plot) {
  const figure = document.createElement("figure");
  figure.className = "plot card";
  figure.tabIndex = 0;
  figure.setAttribute("role", "group");
  const caption = figure.appendChild(document.createElement("figcaption"));
  const title = caption.appendChild(document.createElement("h2"));
  title.textContent = plot.title;
  const keys = plot.lines.map((line) => {
    const key = caption.appendChild(document.createElement("span"));
    key.className = "key";
    const mark = key.appendChild(document.createElement("i"));
    mark.style.borderTopColor = `var(${line.colour})`;
    if (line.dash) mark.style.borderTopStyle = line.dash[0] > 2 ? "dashed" : "dotted";
    key.append(`${line.label} `);
    return key.appendChild(document.createElement("b"));
  });
  const area = figure.appendChild(document.createElement("div"));
  area.className = "area";
  into.append(figure);
  const one = { plot, figure, area, keys, at: null };
  one.chart = chart(one);
  new ResizeObserver(() => one.chart.setSize(size(area))).observe(area);
  figure.addEventListener("keydown", (event) => step(one, event));
  figure.addEventListener("blur", () => one.chart.setCursor({ left: -10, top: -10 }));
  return one;
}

function size(area) {
  return { width: Math.max(area.clientWidth, 120), height: area.clientHeight };
}

function chart(one) {
  const { plot, area } = one;
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } };
  return new uPlot({
    ...size(area),
    padding: [8, 34, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: "kvgate" }, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { x: { range: (_, low, high) => [Math.min(low, high - SHORTEST_S), high] }, y: { range: (_, _low, high) => [0, plot.most ?? (high > 0 ? high * 1.1 : 1)] } },
    axes: [
      { ...axis, space: 90, size: 26, values: (_, all) => all.map(clock) },
      { ...axis, size: 66, values: (_, all) => all.map((value) => (value ? plot.write(value) : "0")) },
    ],
    series: [{}, ...plot.lines.map((line) => ({
      stroke: colour(line.colour), width: line.width ?? 1.75, dash: line.dash, points: { show: false },
    }))],
    hooks: { setCursor: [(chart) => {
      one.at = chart.cursor.idx ?? null;
      if (one.chart) write(one);
    }] },
  }, [[], ...plot.lines.map(() => [])], area);
}

// The values beside the names: where the cursor is, else the newest.
function write(one) {
  const [times, ...lines] = one.chart.data;
  const at = one.at !== null && one.at < times.length ? one.at : times.length - 1;
  lines.forEach((line, number) => { one.keys[number].textContent = one.plot.write(line[at]); });
  const said = one.plot.lines.map((line, number) => `${line.label} ${one.plot.write(lines[number][at])}`);
  one.said = `${at === times.length - 1 ? "now" : clock(times[at])}: ${said.join(", ")}`;
  one.figure.setAttribute("aria-label", `${one.plot.title}. Arrow keys read earlier values.`);
}

function step(one, event) {
  const last = one.chart.data[0].length - 1;
  const from = one.at ?? last;
  const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last, PageUp: from - 10, PageDown: from + 10 }[event.key];
  if (to === undefined || last < 0) return;
  event.preventDefault();
  const at = Math.min(Math.max(to, 0), last);
  one.chart.setCursor({ left: one.chart.valToPos(one.chart.data[0][at], "x"), top: 10 });
  document.getElementById("read").textContent = one.said;
}

function colour(name) {
  const probe = document.getElementById("link");
  const former = probe.style.color;
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.style.color = former;
  return found;
}
