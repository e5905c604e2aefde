// What was seen since the page was opened: figures by upstream, the newest last.

const KEPT = 600; // seconds, at one snapshot a second

const points = new Map(); // upstream -> [[at, figures, slo_s]]

export function remember(snapshot) {
  for (const name of points.keys()) {
    if (!(name in snapshot.upstreams)) points.delete(name);
  }
  for (const [name, upstream] of Object.entries(snapshot.upstreams)) {
    if (!points.has(name)) points.set(name, []);
    const kept = points.get(name);
    kept.push([snapshot.at, upstream.figures, upstream.slo_s]);
    if (kept.length > KEPT) kept.shift();
  }
}

// Columns for a plot: the times, then one per reader, `read(figures, slo_s)`. A second that was
// missed is a gap.
export function columns(name, readers) {
  const out = [[], ...readers.map(() => [])];
  let former = null;
  for (const [at, figures, slo] of points.get(name) ?? []) {
    if (former !== null && at - former > 4) push(out, (former + at) / 2, () => null);
    push(out, at, (column) => readers[column](figures, slo) ?? null);
    former = at;
  }
  return out;
}

function push(out, at, value) {
  out[0].push(at);
  for (let column = 1; column < out.length; column++) out[column].push(value(column - 1));
}
