/** The grid of a lens: streams before each layer × positions, and the parts of one cell. */
import type { LensAnswer, LensPartsAnswer } from "../../generated/answers";
import { parseHead } from "../../lib/names";

/** Positions of one answer. */
const BLOCK = 64;

/** The first position of the answer that shows a position. */
export const blockOf = (position: number): number => Math.floor(position / BLOCK) * BLOCK;

export interface Cell {
  layer: number;
  position: number;
}

/** A number of the grid: its matrices have a row per layer and a column per position. */
export const at = (answer: LensAnswer, name: "top_ids" | "top_probs" | "prediction_probs", { layer, position }: Cell): number =>
  answer[name].data[layer * answer.predictions.length + position - answer.start] as number;

/** The layer from which on the stream reads the final prediction up to the end. */
export function settledAt(answer: LensAnswer, position: number): number {
  const prediction = answer.predictions[position - answer.start];
  let layer = (answer.top_ids.shape[0] as number) - 1;
  while (layer > 0 && at(answer, "top_ids", { layer: layer - 1, position }) === prediction) layer--;
  return layer;
}

/** What the layer just below a stream wrote into its direct readout, the largest first. */
export const lastWritten = ({ layer, writers, written }: LensPartsAnswer): Part[] =>
  writers
    .map((name, i) => ({ name, value: written.data[i] as number }))
    .filter(({ name }) => name === `mlp${layer - 1}` || parseHead(name)?.layer === layer - 1)
    .sort((a, b) => Math.abs(b.value) - Math.abs(a.value));

export interface Part {
  name: string;
  value: number;
}

/** Parts that are listed. */
const LISTED = 10;

/** The parts of a readout, the largest first, and the others as one: they add up to it. */
export function partsOf(answer: LensPartsAnswer, readout: "direct" | "held"): { parts: Part[]; rest: number; others: number } {
  const [names, values] = readout === "direct" ? [answer.writers, answer.written] : [answer.above, answer.carried];
  const all = names.map((name, i) => ({ name, value: values.data[i] as number })).sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const small = all.slice(LISTED).filter(({ value }) => value !== 0);
  return { parts: all.slice(0, LISTED), rest: small.reduce((sum, { value }) => sum + value, 0), others: small.length };
}
