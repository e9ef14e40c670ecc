import type { TextRun } from "../../generated/answers";

/**
 * The position whose prediction two texts show best: a token that occurred before with the same token after it,
 * predicted most surely; else the surest prediction.
 */
export function tellingPosition(run: Pick<TextRun, "ids" | "next_prob" | "next_rank">): number {
  const { ids } = run;
  const last = ids.length - 1;
  let best = { position: last, isRepeat: false, prob: -1 };
  for (let position = 1; position < last; position++) {
    if (run.next_rank.data[position] !== 1) continue;
    const prob = run.next_prob.data[position] ?? 0;
    const isRepeat = ids.some((id, at) => at > 0 && at < position - 1 && id === ids[position] && ids[at + 1] === ids[position + 1]);
    if (isRepeat === best.isRepeat ? prob > best.prob : isRepeat) best = { position, isRepeat, prob };
  }
  return best.position;
}
