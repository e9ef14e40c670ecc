/** What a list of skip-trigrams is ranked by, and its numbers in units that can be read. */

import type { Bug, PatternShare, SkipTrigram, SkipTrigrams } from "../../generated/answers";
import { number, percent, signed } from "../../lib/format";
import { layerOf } from "../../lib/names";

type Rank = SkipTrigrams["rank"];

export const meanings: Record<Rank, { ranked: string; column: string; about: string }> = {
  text: {
    ranked: "ranked by the loss that each saves on held-out text",
    column: "loss saved (0.001 nats)",
    about: "The rise of the loss without it, in 0.001 nats per prediction, over right and wrong positions",
  },
  weights: {
    ranked: "ranked by weights: attention × effect × p(source)^0.1",
    column: "score",
    about: "Attention × effect × p(source)^0.1",
  },
};

/** The paper's letters for patterns. */
export const LETTERS =
  "[a], [b]: tokens; [b']: another spelling of [b] (space, case, plural); [ab]: one token that occurs again in two pieces.";

/** A text that shows what a row says: its tokens, and the cell of the pattern. */
interface Shown {
  readonly ids: readonly number[];
  readonly source: number;
  readonly destination: number;
  readonly about: string;
}

/**
 * The text to run for a row: the place where the triple was found. A triple from weights alone is a text of its
 * two tokens, but only in layer 0, where nothing else enters the scores.
 */
export function shownIn(
  row: Pick<Bug, "head" | "source" | "destination"> & { readonly place?: SkipTrigram["place"] },
  start: number | null,
): Shown | null {
  if (row.place) return { ...row.place, about: "Its context in the held-out text, in the Text view" };
  if (layerOf(row.head) > 0) return null;
  const ids = [...(start === null ? [] : [start]), row.source.id, row.destination.id];
  return { ids, source: ids.length - 2, destination: ids.length - 1, about: "The two tokens as a text" };
}

/** Worth on text in millinats, a score of weights as it is. */
export function worth(score: number, rank: Rank): string {
  return rank === "text" ? number(1000 * score, 3) : signed(score);
}

/** Which patterns have what share of all that skip-trigrams gain where they are right. */
export function classesText(classes: readonly Pick<PatternShare, "pattern" | "share">[]): string {
  const shares = classes.map(({ pattern, share }) => `${pattern} ${percent(share)}`);
  return `Share of the gain where they are right: ${shares.join(", ")}.`;
}
