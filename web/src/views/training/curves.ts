import type { Curve, PhaseChange } from "../../generated/answers";
import { number, sentenceCase } from "../../lib/format";

/** "prefix matching of L1H4", "held-out loss". */
export const curveTitle = (curve: Curve): string => (curve.head ? `${curve.title} of ${curve.head}` : curve.title);

/** What changed, and over which steps. */
export function changeText(change: PhaseChange): string {
  const of = change.head ? ` of ${change.head}` : "";
  const levels = `${sentenceCase(change.curve)}${of} goes from ${number(change.before)} to ${number(change.after)}`;
  const most = `most of it between steps ${Math.round(change.begin)} and ${Math.round(change.end)}`;
  return `${levels}, ${most}${change.about ? `; ${change.about}` : ""}.`;
}
