/** What each component writes straight into a logit, in two runs, short enough to read. */
import type { WithoutAnswer } from "../../generated/answers";

interface PartRow {
  readonly name: string;
  readonly before: number;
  readonly after: number;
}

/** Rows that are next to nothing in both runs are one row; all rows together add up to the totals. */
export function partRows(answer: WithoutAnswer, most = 8): PartRow[] {
  const all = answer.parts.map((name, i) => ({
    name,
    before: answer.parts_before.data[i] as number,
    after: answer.parts_after.data[i] as number,
  }));
  const size = (row: PartRow): number => Math.max(Math.abs(row.before), Math.abs(row.after));
  const least = 0.02 * Math.max(...all.map(size));
  const ranked = [...all].sort((a, b) => size(b) - size(a));
  const shown = ranked.filter((row, i) => i < most && size(row) >= least);
  const folded = ranked.slice(shown.length);
  if (folded.length === 0) return shown;
  if (folded.length === 1) return ranked;
  const sum = (pick: (row: PartRow) => number): number => folded.reduce((total, row) => total + pick(row), 0);
  const name = `${folded.length} others, each small`;
  return [...shown, { name, before: sum((row) => row.before), after: sum((row) => row.after) }];
}
