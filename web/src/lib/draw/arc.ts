/** Arrows between words of a running text. */
interface Word {
  /** The middle, and where its line begins and ends. */
  x: number;
  top: number;
  bottom: number;
}

export interface Curve {
  path: string;
  /** Where a label stands. */
  x: number;
  y: number;
}

/** The height of a label above a curve. */
const LABEL = 13;

/** Lines closer than this have no other line between them. */
const NEAR = 32;

const f = (value: number): string => value.toFixed(1);

/** Above the line for words of one line; else through the room between lines, so that no word is struck out. */
export function arcBetween(from: Word, to: Word): Curve {
  const isSameLine = Math.abs(from.top - to.top) < 4;
  if (isSameLine) {
    // The curve reaches half of the rise: what is above it, with its label, stays inside the text.
    const room = 2 * Math.max(0, from.top - LABEL);
    const rise = Math.min(52, 16 + Math.abs(from.x - to.x) * 0.12, room);
    const [cx, cy] = [(from.x + to.x) / 2, from.top - rise];
    const path = `M${f(from.x)} ${f(from.top)}Q${f(cx)} ${f(cy)} ${f(to.x)} ${f(to.top)}`;
    return { path, x: cx, y: 0.5 * from.top + 0.5 * cy };
  }
  const isDown = from.top < to.top;
  const [start, end] = isDown ? [from.bottom, to.top] : [from.top, to.bottom];
  const middle = (start + end) / 2;
  const path = `M${f(from.x)} ${f(start)}C${f(from.x)} ${f(middle)} ${f(to.x)} ${f(middle)} ${f(to.x)} ${f(end)}`;
  // Between neighboring lines the label has their gap; else it stands in the gap next to where the curve begins.
  const isNear = Math.abs(end - start) < NEAR;
  return isNear ? { path, x: (from.x + to.x) / 2, y: middle } : { path, x: from.x + (to.x > from.x ? 26 : -26), y: start + (isDown ? 15 : -1) };
}
