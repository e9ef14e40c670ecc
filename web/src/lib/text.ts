import type { ModelParams, TextParams, ModelInfo } from "../generated/answers";
import type { UrlState } from "./state.svelte";

/** Which model and training step every question of a view is about; nothing where it is the default. */
export function modelParams(url: UrlState, info: ModelInfo): ModelParams {
  const params: ModelParams = {};
  if (info.name !== info.models[0]) params.model = info.name;
  const step = url.number("s");
  if (step !== undefined && info.steps.includes(step)) params.step = step;
  return params;
}

/**
 * The text of the page, given in one of three ways: `e` an example, `x` typed, `i` ids. A stale link (an
 * example that is not there) shows the first example rather than an error.
 */
export function textParams(url: UrlState, info: ModelInfo): TextParams {
  const base = modelParams(url, info);
  const typed = url.get("x");
  if (typed !== undefined) return { ...base, text: typed };
  const ids = url.get("i");
  if (ids !== undefined && /^\d+(,\d+)*$/.test(ids)) return { ...base, ids };
  const example = url.number("e") ?? 0;
  return { ...base, example: example < info.examples.length ? example : 0 };
}

/** Are two questions about the same text on the same model, whatever else they ask? */
export function isSameText(a: TextParams | null, b: TextParams | null): boolean {
  if (!a || !b) return false;
  return (["model", "step", "text", "ids", "example"] as const).every((key) => a[key] === b[key]);
}

/** The changes of the URL that show another text; what was locked belongs to the old one and goes. */
export function showText(text: { e?: number; x?: string; i?: string }): Record<string, string | number | null> {
  return { e: text.e ?? null, x: text.x ?? null, i: text.i ?? null, t: null, d: null, pos: null, tok: null };
}
