import { colorOf, css, type Mode } from "../../lib/draw/color";
import { number, signed } from "../../lib/format";
import type { Arc } from "../../lib/ui/Arcs.svelte";
import { type Patterns, strongest } from "./patterns";

const MOST = 24;
const LABELED = 5;
/** Weaker than this share of the strongest is not drawn. */
const FAINTEST = 0.04;

/** Lines of one token: solid into it from what it attends to, dashed out of it to what attends to it. */
export function linesOf(patterns: Patterns, head: number, token: number, hideFirst: boolean, mode: Mode): Arc[] {
  const found: { other: number; value: number; outgoing: boolean }[] = [];
  for (const side of ["dest", "src"] as const) {
    const values = patterns.along(head, token, side, hideFirst);
    for (const other of strongest(values, MOST)) {
      if (other !== token) found.push({ other, value: values[other] as number, outgoing: side === "src" });
    }
  }
  found.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const most = Math.abs(found[0]?.value ?? 1);
  return found
    .slice(0, MOST)
    .filter((item) => Math.abs(item.value) > FAINTEST * most)
    .map((item, i) => {
      const share = Math.abs(item.value) / most;
      const color = patterns.isSigned
        ? colorOf(Math.sign(item.value) * (0.55 + 0.3 * share), 1, "diverging", mode)
        : colorOf(0.5 + 0.35 * share, 1, "sequential", mode);
      return {
        from: item.outgoing ? token : item.other,
        to: item.outgoing ? item.other : token,
        width: 0.6 + 2.4 * share,
        color: css(color),
        dashed: item.outgoing,
        label: i < LABELED ? (patterns.isSigned ? signed(item.value) : number(item.value, 2)) : null,
      };
    });
}
