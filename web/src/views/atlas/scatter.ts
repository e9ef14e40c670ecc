/** Geometry of the scatter: sizes of points, places of labels, what a brush encloses. */
import type { Axis } from "../../lib/draw/plot";

export interface Box {
  readonly x: readonly [number, number];
  readonly y: readonly [number, number];
}

/** The values that a rectangle dragged over the plot encloses. */
export function brushed(
  from: readonly [number, number],
  to: readonly [number, number],
  x: Axis,
  y: Axis,
): Box {
  const range = (a: number, b: number): [number, number] => (a < b ? [a, b] : [b, a]);
  return {
    x: range(x.value(from[0]), x.value(to[0])),
    y: range(y.value(from[1]), y.value(to[1])),
  };
}

const [SMALLEST, LARGEST, USUAL] = [4, 12, 6];

/** Areas grow with values from 0 (or the least) to the largest; without values all are equal. */
export function radii(values: readonly number[]): number[] {
  const finite = values.filter(Number.isFinite);
  if (finite.length === 0) return values.map(() => USUAL);
  const low = Math.min(0, ...finite);
  const span = Math.max(...finite) - low || 1;
  return values.map((value) => {
    if (!Number.isFinite(value)) return SMALLEST;
    const share = (value - low) / span;
    return Math.sqrt(SMALLEST ** 2 + share * (LARGEST ** 2 - SMALLEST ** 2));
  });
}

export function meanOf(values: ArrayLike<number> | undefined): number {
  const finite = Array.from(values ?? []).filter(Number.isFinite);
  return finite.length ? finite.reduce((sum, value) => sum + value, 0) / finite.length : NaN;
}

interface Label {
  readonly x: number;
  readonly y: number;
  readonly anchor: "start" | "end" | "middle";
}

const LETTER = 7.4;
const LINE = 12;

interface Rectangle {
  readonly left: number;
  readonly right: number;
  readonly top: number;
  readonly bottom: number;
}

/** The largest points have a label even where it covers others. */
const ALWAYS_NAMED = 3;

/**
 * A label for as many points as fit: right of the point, else left, above or below; none where it
 * would cover another label or point. `first` (heads that are something) are placed before others, and
 * large points before small ones.
 */
export function placeLabels(
  places: readonly (readonly [number, number])[],
  radius: readonly number[],
  names: readonly string[],
  most: number,
  first: readonly boolean[],
  width: number,
  reserved: readonly Rectangle[] = [],
): (Label | null)[] {
  const taken: Rectangle[] = places.map(([x, y], at) => square(x, y, radius[at] ?? USUAL));
  taken.push(...reserved);
  const labels: (Label | null)[] = places.map(() => null);
  const size = (at: number): number => radius[at] ?? USUAL;
  const order = places
    .map((_, at) => at)
    .sort((a, b) => Number(first[b]) - Number(first[a]) || size(b) - size(a) || a - b);
  const largest = new Set([...order].sort((a, b) => size(b) - size(a)).slice(0, ALWAYS_NAMED));
  const written: Rectangle[] = [];
  let left = most;
  for (const at of order) {
    const [x, y] = places[at]!;
    if (left === 0 || !Number.isFinite(x) || !Number.isFinite(y)) continue;
    const long = LETTER * (names[at]?.length ?? 0);
    const away = (radius[at] ?? USUAL) + 3;
    const tries: Label[] = [
      { x: x + away, y: y + 4, anchor: "start" },
      { x: x - away, y: y + 4, anchor: "end" },
      { x, y: y - away, anchor: "middle" },
      { x, y: y + away + 9, anchor: "middle" },
    ];
    const inside = tries.filter((label) => {
      const box = around(label, long);
      return box.left > 0 && box.right < width && !reserved.some((other) => overlap(box, other));
    });
    const covered = (label: Label): number =>
      taken.filter((other, index) => index !== at && overlap(around(label, long), other)).length;
    const isNamed = (label: Label): boolean => written.some((other) => overlap(around(label, long), other));
    let fits = inside.find((label) => covered(label) === 0);
    // The largest are what the plot is about: they are named even in a crowd, where they cover least.
    if (!fits && largest.has(at)) {
      fits = inside.filter((label) => !isNamed(label)).sort((a, b) => covered(a) - covered(b))[0];
    }
    if (!fits) continue;
    written.push(around(fits, long));
    labels[at] = fits;
    taken.push(around(fits, long));
    left -= 1;
  }
  return labels;
}

function square(x: number, y: number, radius: number): Rectangle {
  return { left: x - radius, right: x + radius, top: y - radius, bottom: y + radius };
}

function around(label: Label, long: number): Rectangle {
  const start =
    label.anchor === "start" ? label.x : label.anchor === "end" ? label.x - long : label.x - long / 2;
  return { left: start, right: start + long, top: label.y - LINE + 2, bottom: label.y + 2 };
}

function overlap(a: Rectangle, b: Rectangle): boolean {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}
