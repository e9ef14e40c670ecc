/** The text of the page: which one it is, and what changes with it. */
import type { ModelInfo, ModelParams, TextParams, TextRun } from "../generated/answers";
import { cleared, type StateValues } from "./page/state";
import type { UrlState } from "./page/state.svelte";
import { isText } from "./tokens";
import { row } from "./source/wire";

/** Which model and training step every question of a view is about; nothing where it is the default. */
export function modelParams(url: UrlState, info: ModelInfo): ModelParams {
  const params: ModelParams = {};
  if (info.name !== info.models[0]) params.model = info.name;
  const step = url.get("step");
  if (step !== undefined && info.steps.includes(step)) params.step = step;
  return params;
}

/** The text of the page. A stale link (an example that is not there) shows the first example rather than an error. */
export function textParams(url: UrlState, info: ModelInfo): TextParams {
  const base = modelParams(url, info);
  const typed = url.get("text");
  if (typed !== undefined) return { ...base, text: typed };
  const ids = url.get("tokens");
  if (ids !== undefined && /^\d+(,\d+)*$/.test(ids)) return { ...base, ids };
  const example = url.get("example") ?? 0;
  return { ...base, example: example < info.examples.length ? example : 0 };
}

/** Are two questions about the same text on the same model, whatever else they ask? */
export function isSameText(a: TextParams | null, b: TextParams | null): boolean {
  if (!a || !b) return false;
  return (["model", "step", "text", "ids", "example"] as const).every((key) => a[key] === b[key]);
}

/** Changes of the URL: to another token, whose prediction is explained until another one is chosen, and its circuit. */
export const tokenAt = (position: number | null): StateValues => ({ position, token: null, selected: null });

/** The same, and the cell of the matrix that was open is closed. */
export const predictionAt = (position: number): StateValues => ({ ...tokenAt(position), cell: null });

/** Changes of the URL: to the cell of a head's pattern from which `dest` attends to `src`. */
export const cellAt = (head: string, dest: number, src: number): StateValues => ({
  ...tokenAt(dest),
  head,
  cell: `${dest}.${src}`,
});

/** The changes of the URL that show another text; what was locked, cut or open belongs to the old one and goes. */
export function showText(url: UrlState, text: Pick<StateValues, "example" | "text" | "tokens">): StateValues {
  // What is switched off at a position belongs to one text; what is off everywhere stays.
  return { ...cleared("text"), off: url.get("off").filter((name) => !name.includes("@")), ...text };
}

const BYTES = 256;

/**
 * The changes of the URL that show another model. Heads, edges and cuts belong to the model that is left; positions
 * stay if both models read the same tokens, and so do tokens that were chosen by id.
 *
 * @param run the text on the model that is left; null if it was refused, or cannot be run on the other one
 * @param to the other model; null if it did not answer
 */
export function showModel(url: UrlState, from: ModelInfo, name: string, run: TextRun | null, to: ModelInfo | null): StateValues {
  const head = to?.heads.find((each) => each === url.get("head")) ?? null;
  const changes: StateValues = { model: name === from.models[0] ? null : name, ...cleared("model"), head };
  if (run && from.comparable.includes(name)) return { ...changes, tokens: run.ids.join(",") };
  // A vocabulary without room for all bytes cannot spell any text: that model shows its own examples.
  const text = run && to?.has_tokenizer && !(to.d_vocab < BYTES) ? spelled(run, from) : "";
  return { ...changes, ...cleared("tokens"), text: text === "" ? null : text };
}

/** What the tokens of a text spell, its start token apart. */
export function spelled(run: Pick<TextRun, "ids" | "pieces">, info: Pick<ModelInfo, "start_token">): string {
  const start = run.ids[0] === info.start_token ? 1 : 0;
  return run.pieces.slice(start).filter(isText).join("");
}

/** What the URL says that predictions are compared with, as questions say it. */
export function comparison(url: Pick<UrlState, "get">, { d_vocab }: Pick<ModelInfo, "d_vocab">): { versus?: number | string } {
  const versus = url.get("versus");
  return versus === undefined || (typeof versus === "number" && versus >= d_vocab) ? {} : { versus };
}

/** The most informative prediction, which the server chose, and the position that followed the time before. */
export function mostTelling(run: TextRun): { token: number; source: number | null } {
  const { highlight, highlight_source: before } = run;
  return { token: highlight, source: before === null ? null : before + 1 };
}

/**
 * The position at which two texts are compared: a token that occurred before with the same token after it,
 * predicted most surely; else the surest prediction.
 */
export function comparedPosition(run: Pick<TextRun, "ids" | "next_prob" | "next_rank">): number {
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

/** The seed experiment: the start token, n random tokens out of the pool, and the same n again. */
export function randomRepeat(info: ModelInfo, pool: ArrayLike<number>, n: number, random: () => number = Math.random): number[] {
  const start = info.start_token === null ? [] : [info.start_token];
  const room = Math.max(1, Math.floor((info.n_ctx - start.length) / 2));
  const length = Math.min(Math.max(1, Math.floor(n)), room);
  const half = Array.from({ length }, () => pool[Math.floor(random() * pool.length)] as number);
  return [...start, ...half, ...half];
}

/** What the model would write next, after the whole text. */
interface Written {
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
  if (box.typed !== text || (box.ids !== undefined && box.ids !== ids)) return null;
  const last = run.ids.length - 1;
  const id = row(run.top_ids, last)[0];
  const probability = row(run.top_probs, last)[0];
  return id === undefined || probability === undefined ? null : { id, probability, ids: `${ids},${id}` };
}
