import type { Curve, Dynamics, PhaseChange } from "../../generated/answers";
import { count, number, percent, sentenceCase } from "../../lib/format";
import { rowAt, strongestAtEnd } from "./scrub";

/** "prefix matching of L1H4", "held-out loss". */
export const curveTitle = (curve: Curve): string => (curve.head ? `${curve.title} of ${curve.head}` : curve.title);

/** Another run, for comparison. */
export interface Seed {
  readonly name: string;
  readonly value: Dynamics;
}

/** The curve of the same name in other runs, dotted. */
export function ofSeeds(seeds: readonly Seed[], valuesOf: (value: Dynamics) => ArrayLike<number> | undefined) {
  return seeds.flatMap(({ name, value }) => {
    const values = valuesOf(value);
    return values ? [{ name, values, xs: value.steps, dash: "2 3" }] : [];
  });
}

/** The phase change as a stretch of a plot. */
export const bandOf = ({ phase_change: change }: Dynamics, name = ""): { low: number; at: number; high: number; name: string } | null =>
  change && { low: change.low, at: change.step, high: change.high, name };

/** What changed, and over which steps. */
export function changeText(change: PhaseChange): string {
  const of = change.head ? ` of ${change.head}` : "";
  const step = (value: number) => count(Math.round(value));
  const levels = `${sentenceCase(change.curve)}${of} rises from ${number(change.before, 2)} to ${number(change.after, 2)}, most of it between steps ${step(change.begin)} and ${step(change.end)}`;
  const middle = `Midpoint: step ${step(change.step)} (95% interval ${step(change.low)} to ${step(change.high)})`;
  return `${levels}. ${middle}${change.about ? `, fitted as ${change.about}` : ""}.`;
}

/** A head competes while it has this much of the score, and this share of the leader's. */
const COMPETES = 0.1;
const OF_LEADER = 0.25;

/** How heads raced for prefix matching: when most of them competed, who won, and what is left of the others. */
export function raceText({ steps, heads, prefix_matching: scores }: Pick<Dynamics, "steps" | "heads" | "prefix_matching">): string {
  const rows = steps.map((_, at) => rowAt(scores, at));
  const races = rows.map((row) => {
    const least = Math.max(COMPETES, OF_LEADER * Math.max(...row));
    return heads.map((head, i) => ({ head, i, score: row[i] as number })).filter(({ score }) => score >= least);
  });
  // Of the steps with most competitors, the one where the leader is furthest.
  const rank = (at: number): number => races[at]!.length + Math.max(...rows[at]!);
  const at = steps.reduce((best, _, other) => (rank(other) > rank(best) ? other : best), 0);
  const race = [...(races[at] ?? [])].sort((a, b) => b.score - a.score);
  if (race.length < 2) return "";
  const [winner, last] = [strongestAtEnd(scores), rows.at(-1)!];
  const left = Math.max(...race.filter(({ i }) => i !== winner).map(({ i }) => last[i] as number));
  const named = race.map(({ head, score }) => `${head} ${percent(score)}`).join(", ");
  return `At step ${count(steps[at]!)}, ${race.length} heads compete: ${named}. ${heads[winner]} wins, with ${percent(last[winner]!)} at the end; no other keeps more than ${percent(left)}.`;
}
