import type { ModelParams, TextParams, ModelInfo, TextRun } from "../generated/answers";
import type { StateValues, UrlState } from "./state.svelte";
import { isText } from "./tokens";

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

/** Changes of the URL: to another token, whose prediction is explained until another one is chosen. */
export const tokenAt = (position: number | null): StateValues => ({ t: position, tok: null });

/** The same, and the cell of the matrix that was open is closed. */
export const predictionAt = (position: number): StateValues => ({ ...tokenAt(position), d: null });

/** Changes of the URL: to the cell of a head's pattern from which `dest` attends to `src`. */
export const cellAt = (head: string, dest: number, src: number): StateValues => ({
  ...tokenAt(dest),
  h: head,
  d: `${dest}.${src}`,
});

/** What is switched off everywhere; what is off at a position belongs to one text. */
function offEverywhere(off: string | undefined): string | null {
  const kept = (off ?? "").split(",").filter((name) => name !== "" && !name.includes("@"));
  return kept.length > 0 ? kept.join(",") : null;
}

/** What the state says about positions of the text. */
const POSITIONS: StateValues = { t: null, d: null, tok: null, sel: null, ex: null, x2: null };

/** The changes of the URL that show another text; what was locked, cut or open belongs to the old one and goes. */
export function showText(url: UrlState, text: { e?: number; x?: string; i?: string }): StateValues {
  return { ...POSITIONS, off: offEverywhere(url.get("off")), e: text.e ?? null, x: text.x ?? null, i: text.i ?? null };
}

/** What the tokens of a text spell, its start token apart. */
export function spelled(run: Pick<TextRun, "ids" | "pieces">, info: Pick<ModelInfo, "start_token">): string {
  const start = run.ids[0] === info.start_token ? 1 : 0;
  return run.pieces.slice(start).filter(isText).join("");
}

/** The prediction that tells most, which the server chose, and the position that followed the time before. */
export function mostTelling(run: TextRun): { token: number; source: number | null } {
  const { telling, telling_source: before } = run;
  return { token: telling, source: before === null ? null : before + 1 };
}

/** The seed experiment: the start token, n random tokens out of the pool, and the same n again. */
export function randomRepeat(
  info: ModelInfo,
  pool: ArrayLike<number>,
  n: number,
  random: () => number = Math.random,
): number[] {
  const start = info.start_token === null ? [] : [info.start_token];
  const room = Math.max(1, Math.floor((info.n_ctx - start.length) / 2));
  const length = Math.min(Math.max(1, Math.floor(n)), room);
  const half = Array.from({ length }, () => pool[Math.floor(random() * pool.length)] as number);
  return [...start, ...half, ...half];
}
