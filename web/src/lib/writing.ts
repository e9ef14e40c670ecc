import type { ModelInfo, TextRun } from "../generated/answers";
import { spelled } from "./text";
import { row } from "./wire";

/** What the model would write next, after the whole text. */
export interface Written {
  readonly id: number;
  readonly probability: number;
  /** The text with it, as ids: spelled out it could be read as other tokens. */
  readonly ids: string;
}

/**
 * The token to go on with; null where nothing may be added: the context is full, or the run is not (or no longer)
 * that of the text in the box.
 */
export function nextToken(
  run: TextRun | null,
  info: Pick<ModelInfo, "has_tokenizer" | "start_token">,
  box: { typed: string; ids: string | undefined },
): Written | null {
  if (!run || run.truncated || run.ids.length >= run.n_ctx) return null;
  const ids = run.ids.join(",");
  const text = info.has_tokenizer ? spelled(run, info) : ids;
  if (box.ids === undefined ? box.typed !== text : box.ids !== ids || box.typed !== text) return null;
  const last = run.ids.length - 1;
  const id = row(run.top_ids, last)[0];
  const probability = row(run.top_probs, last)[0];
  return id === undefined || probability === undefined ? null : { id, probability, ids: `${ids},${id}` };
}
