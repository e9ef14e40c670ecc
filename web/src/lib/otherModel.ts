import type { ModelInfo, TextRun } from "../generated/answers";
import { NAME_KEYS } from "./names";
import type { StateValues, UrlState } from "./state.svelte";
import { spelled } from "./text";

/**
 * The changes of the URL that show another model. Heads, edges and cuts belong to the model that is left; positions
 * stay if both models read the same tokens, and so do tokens that were chosen by id.
 *
 * @param run the text on the model that is left; null if it was refused, or cannot be run on the other one
 * @param to the other model; null if it did not answer
 */
export function showModel(
  url: UrlState,
  from: ModelInfo,
  name: string,
  run: TextRun | null,
  to: ModelInfo | null,
): StateValues {
  const h = to?.heads.find((head) => head === url.get("h")) ?? null;
  const left: StateValues = { ...Object.fromEntries(NAME_KEYS.map((key) => [key, null])), h };
  const changes: StateValues = {
    ...left,
    ...{ m: name === from.models[0] ? null : name, s: null, os: null, other: null },
    ...{ g: null, p: null, d: null, sel: null, ex: null, x2: null },
    ...{ e: null, x: null, i: null },
  };
  if (run && from.comparable.includes(name)) return { ...changes, i: run.ids.join(",") };
  const text = run && to?.has_tokenizer ? spelled(run, from) : "";
  return { ...changes, t: null, tok: null, vs: null, ht: null, find: null, x: text === "" ? null : text };
}
