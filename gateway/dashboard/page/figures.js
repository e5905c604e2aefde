// How numbers are written. None is a dash, never a zero.

const NONE = "–";

export function count(value) {
  if (value === null || value === undefined) return NONE;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) return digits(value / (unit === "k" ? 1e3 : size)) + unit;
  }
  return digits(value);
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  return value < 1 ? `${digits(value * 1000)} ms` : `${digits(value)} s`;
}

export function share(value) {
  return value === null || value === undefined ? NONE : `${digits(value * 100)} %`;
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour12: false });
}

export function text(value) {
  return value === null || value === undefined || value === "" ? NONE : String(value);
}

function digits(value) {
  if (value >= 100 || Number.isInteger(value)) return value.toFixed(0);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}
