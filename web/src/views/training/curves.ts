import type { Curve, Dynamics, PhaseChange } from "../../generated/answers";
import { count, number, sentenceCase } from "../../lib/format";

/** "prefix matching of L1H4", "held-out loss". */
export const curveTitle = (curve: Curve): string => (curve.head ? `${curve.title} of ${curve.head}` : curve.title);

/** The phase change as a stretch of a plot. */
export const bandOf = ({ phase_change: change }: Dynamics, name = ""): { low: number; at: number; high: number; name: string } | null =>
  change && { low: change.low, at: change.step, high: change.high, name };

/** What changed, and over which steps. */
export function changeText(change: PhaseChange): string {
  const of = change.head ? ` of ${change.head}` : "";
  const levels = `${sentenceCase(change.curve)}${of}: the fitted curve goes from ${number(change.before)} to ${number(change.after)}`;
  const step = (value: number) => count(Math.round(value));
  const middle = `its middle at step ${step(change.step)} (95% interval ${step(change.low)} to ${step(change.high)})`;
  const most = `most of it between steps ${step(change.begin)} and ${step(change.end)}`;
  return `${levels}, ${middle}, ${most}${change.about ? `; ${change.about}` : ""}. Measured values scatter around it.`;
}
