import type { TextRun } from "../generated/answers";
import type { Patterns } from "../views/text/patterns";

/** The place where the text repeats itself and the model knows best how it goes on; else the last token. */
export function mostTelling(run: TextRun): { token: number; source: number | null } {
  const { ids } = run;
  let best: { token: number; source: number | null } = { token: ids.length - 1, source: null };
  let most = 0;
  const last = new Map<number, number>();
  for (let i = 0; i + 1 < ids.length; i++) {
    const before = last.get(ids[i] as number);
    const probability = run.next_prob.data[i] as number;
    if (before !== undefined && ids[before + 1] === ids[i + 1] && probability >= most) {
      most = probability;
      best = { token: i, source: before + 1 };
    }
    last.set(ids[i] as number, i);
  }
  return best;
}

/** What a cold reader should see first: that place, and the head that looks hardest at what followed before. */
export function mostInteresting(run: TextRun, patterns: Patterns): { token: number; head: string | null } {
  const { token, source } = mostTelling(run);
  const head = source === null || token >= patterns.n ? null : (patterns.headsAt(token, source)[0]?.head ?? null);
  return { token, head };
}
