/** Axes of plots: round ticks and linear or logarithmic scales. */

export interface Axis {
  low: number;
  high: number;
  ticks: number[];
  /** Value to pixel. */
  at(value: number): number;
  /** Pixel to value. */
  value(pixel: number): number;
}

/** About `n` round numbers that cover [low, high]. */
export function roundTicks(low: number, high: number, n = 5): number[] {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, n);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 2.5, 5, 10].find((k) => k * power >= raw) ?? 10) * power;
  const ticks: number[] = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    ticks.push(Number((i * step).toPrecision(12)));
  }
  return ticks;
}

/** A linear axis from pixel `from` to pixel `to` (upside down if `from > to`). */
export function linearAxis(values: Iterable<number>, from: number, to: number, include: readonly number[] = []): Axis {
  let [low, high] = [Infinity, -Infinity];
  for (const value of [...values, ...include]) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const pad = 0.04 * (high - low);
  if (!include.includes(low)) low -= pad;
  if (!include.includes(high)) high += pad;
  return fixedAxis(low, high, from, to);
}

/** A linear axis over exactly [low, high]. */
export function fixedAxis(low: number, high: number, from: number, to: number): Axis {
  const span = high - low || 1;
  return {
    low,
    high,
    ticks: roundTicks(low, high, Math.max(2, Math.round(Math.abs(to - from) / 70))),
    at: (value) => from + ((value - low) / span) * (to - from),
    value: (pixel) => low + ((pixel - from) / (to - from)) * span,
  };
}

/** Decades between 0, which has no logarithm, and the first positive value. */
const BEFORE = 0.3;

/** A logarithmic axis, ticks at powers of ten; 0 stands a little before the first positive value, with a tick. */
export function logAxis(values: Iterable<number>, from: number, to: number): Axis {
  let [low, high] = [Infinity, -Infinity];
  let hasZero = false;
  for (const value of values) {
    if (value === 0) hasZero = true;
    if (!(value > 0)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) [low, high] = [1, 10];
  const [first, b] = [Math.log10(low), Math.log10(high === low ? low * 10 : high)];
  const a = first - (hasZero ? BEFORE : 0);
  const ticks: number[] = hasZero ? [0] : [];
  for (let power = Math.ceil(first); power <= Math.floor(b); power++) ticks.push(10 ** power);
  return {
    low: hasZero ? 0 : low,
    high: 10 ** b,
    ticks,
    at: (value) => from + (Math.max(0, Math.log10(value) - a) / (b - a)) * (to - from),
    value: (pixel) => {
      const power = a + ((pixel - from) / (to - from)) * (b - a);
      return hasZero && power < first - BEFORE / 2 ? 0 : 10 ** power;
    },
  };
}

/** The `d` of an SVG path through points; a gap where a value is missing. */
export function linePath(xs: ArrayLike<number>, ys: ArrayLike<number>, x: Axis, y: Axis): string {
  let out = "";
  let open = false;
  for (let i = 0; i < xs.length; i++) {
    const [px, py] = [x.at(xs[i] as number), y.at(ys[i] as number)];
    if (!Number.isFinite(px) || !Number.isFinite(py)) {
      open = false;
      continue;
    }
    out += `${open ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`;
    open = true;
  }
  return out;
}

/** The index of the point nearest to a pixel, within `reach` pixels, or −1. */
export function nearest(points: readonly (readonly [number, number])[], x: number, y: number, reach = 30): number {
  let [best, least] = [-1, reach * reach];
  points.forEach(([px, py], i) => {
    const distance = (px - x) ** 2 + (py - y) ** 2;
    if (distance < least) [best, least] = [i, distance];
  });
  return best;
}
