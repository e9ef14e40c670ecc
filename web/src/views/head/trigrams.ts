/** What a list of skip-trigrams is ranked by, and its numbers in units that can be read. */

import type { PatternShare, SkipTrigrams } from "../../generated/answers";
import { number, percent, signed } from "../../lib/format";

type Rank = SkipTrigrams["rank"];

export const meanings: Record<Rank, { ranked: string; column: string; about: string }> = {
  text: {
    ranked: "ranked by what each is worth to the model on held-out text",
    column: "worth (mnat)",
    about: "How much the loss rises without it, in 0.001 nats per prediction, over right and wrong places",
  },
  weights: {
    ranked: "ranked by weights: attention × effect × p(source)^0.1",
    column: "score",
    about: "Attention × effect × p(source)^0.1",
  },
};

/** Worth on text in millinats, a score of weights as it is. */
export function worth(score: number, rank: Rank): string {
  return rank === "text" ? number(1000 * score, 3) : signed(score);
}

/** Which patterns have what share of all that skip-trigrams gain where they are right. */
export function classesText(classes: readonly PatternShare[]): string {
  const shares = classes.map(({ pattern, share }) => `${pattern} ${percent(share)}`);
  return `Of what they gain where they are right: ${shares.join(", ")}.`;
}
