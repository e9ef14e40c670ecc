/** The tour: claims in the paper's order, grouped by section, and where each one's view is. */
import type { Claim, Outline } from "../../generated/answers";

export type Verdict = Claim["verdict"];

interface Section {
  readonly title: string;
  readonly claims: readonly { readonly claim: Outline; readonly index: number }[];
}

/** Runs of claims of one section, in the order in which they come. */
export function sectionsOf(claims: readonly Outline[]): Section[] {
  const sections: { title: string; claims: { claim: Outline; index: number }[] }[] = [];
  claims.forEach((claim, index) => {
    const last = sections[sections.length - 1];
    if (last && last.title === claim.section) last.claims.push({ claim, index });
    else sections.push({ title: claim.section, claims: [{ claim, index }] });
  });
  return sections;
}

/** Where a claim is in the tour; an unknown one (a stale link) is the first. */
export function placeOf(claims: readonly Outline[], id: string | undefined): number {
  return Math.max(
    0,
    claims.findIndex((claim) => claim.id === id),
  );
}

export const MARKS: Readonly<Record<Verdict, { sign: string; word: string }>> = {
  holds: { sign: "✓", word: "holds" },
  partly: { sign: "◐", word: "holds partly" },
  "does not hold": { sign: "✗", word: "does not hold" },
  "not applicable": { sign: "–", word: "does not apply" },
};

/** "7 hold, 2 partly, 3 do not, 0 do not apply": all four, also those with none. */
export function tally(verdicts: readonly (Verdict | null | undefined)[]): string {
  const count = (verdict: Verdict) => verdicts.filter((each) => each === verdict).length;
  const words: readonly [Verdict, one: string, several: string][] = [
    ["holds", "holds", "hold"],
    ["partly", "partly", "partly"],
    ["does not hold", "does not", "do not"],
    ["not applicable", "does not apply", "do not apply"],
  ];
  // What no claim has is left out, but that some hold is always said.
  return words
    .map(([verdict, one, several]) => ({ verdict, n: count(verdict), word: count(verdict) === 1 ? one : several }))
    .filter(({ verdict, n }) => n > 0 || verdict === "holds")
    .map(({ n, word }) => `${n} ${word}`)
    .join(", ");
}
