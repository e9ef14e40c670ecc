import type { TextRun } from "../generated/answers";
import type { Patterns } from "../views/text/patterns";

/** The prediction that tells most, which the server chose, and the position that followed the time before. */
export function mostTelling(run: TextRun): { token: number; source: number | null } {
  const { telling, telling_source: before } = run;
  return { token: telling, source: before === null ? null : before + 1 };
}

/** What a cold reader should see first: that place, and the head that looks hardest at what followed before. */
export function mostInteresting(run: TextRun, patterns: Patterns): { token: number; head: string | null } {
  const { token, source } = mostTelling(run);
  const head = source === null || token >= patterns.n ? null : (patterns.headsAt(token, source)[0]?.head ?? null);
  return { token, head };
}
