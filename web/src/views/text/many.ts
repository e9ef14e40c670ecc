import { HEAD_STYLES, type LineStyle, type Mode } from "../../lib/draw/color";
import { percent, signed } from "../../lib/format";
import type { Arc } from "../../lib/ui/Arcs.svelte";
import { type Patterns, type Side, strongest } from "./patterns";

/** More heads than there are line styles could not be told apart. */
const MOST_HEADS = HEAD_STYLES.length;
/** Sources per head that are drawn, and the share of the head's strongest from which they are. */
const SOURCES = 3;
const FAINTEST = 0.25;

/** Heads that are shown side by side on one text, in the order they were chosen. */
export function knownHeads(named: readonly string[], heads: readonly string[]): string[] {
  return [...new Set(named.filter((head) => heads.includes(head)))].slice(0, MOST_HEADS);
}

/** The same with one more head, or without it if it was there; the first goes when there are too many. */
export const toggled = (many: readonly string[], head: string): readonly string[] =>
  many.includes(head) ? many.filter((each) => each !== head) : [...many, head].slice(-MOST_HEADS);

export interface HeadOnText {
  readonly head: string;
  readonly style: LineStyle;
  /** Where it looks from the token (or what looks at the token through it), the strongest first. */
  readonly found: readonly { readonly other: number; readonly value: number; readonly text: string }[];
}

/** What each of several heads does at a token. */
export function manyAt(
  patterns: Patterns,
  many: readonly string[],
  token: number,
  side: Side,
  hideFirst: boolean,
): HeadOnText[] {
  return many.map((head, at) => {
    const values = patterns.along(patterns.heads.indexOf(head), token, side, hideFirst);
    const others = strongest(values, SOURCES);
    const most = Math.abs(values[others[0] ?? 0] ?? 0);
    const shown = others.filter((other) => Math.abs(values[other] as number) >= FAINTEST * most);
    return {
      head,
      style: HEAD_STYLES[at] as LineStyle,
      found: shown.map((other) => {
        const value = values[other] as number;
        return { other, value, text: patterns.weighting === "attention" ? percent(value) : signed(value) };
      }),
    };
  });
}

/** Their arrows: hue and line style of the head, its name at its strongest; of heads that look at one place, all names. */
export function manyArcs(heads: readonly HeadOnText[], token: number, side: Side, mode: Mode): Arc[] {
  const places = heads.map(({ found }) => found.filter(({ other }) => other !== token));
  const named = new Map<number, string[]>();
  heads.forEach(({ head }, at) => {
    const strongest = places[at]?.[0];
    if (strongest) named.set(strongest.other, [...(named.get(strongest.other) ?? []), head]);
  });
  return heads.flatMap(({ head, style, found }, at) =>
    (places[at] ?? []).map(({ other, value }) => {
      const names = named.get(other) ?? [];
      return {
        from: side === "dest" ? other : token,
        to: side === "dest" ? token : other,
        width: 1 + 2 * (Math.abs(value) / Math.abs(found[0]?.value || 1)),
        color: style[mode],
        dash: style.dash,
        label: names[0] === head ? names.join(", ") : null,
      };
    }),
  );
}
