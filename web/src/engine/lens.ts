/** The lens (`pathsum.paths.lens`) of an attention-only model: the stream before each layer, read at its own position. */
import type { LensAnswer, LensPartsAnswer } from "../generated/answers";
import { add, argmax, dot, product, rowOf, softmax, sum } from "../lib/algebra";
import { matrix, writersBelow } from "./engine";
import type { Trace } from "./run";

/** Positions of one answer, as in Python. */
const LENS_POSITIONS = 64;

/** What a head adds to a stream at a position if the position attends to itself alone, with its own weight. */
function stay(trace: Trace, head: string, position: number, stream: Float64Array): Float64Array {
  const { width, headWidth } = trace.model;
  const own = trace.weight(head, position, position);
  const z = product(stream, trace.model.matrix("V", head), width, headWidth).map((value) => own * value);
  return product(z, trace.model.matrix("O", head), headWidth, width);
}

/** The stream before a layer at a position, carried to the top by the heads above. */
function carried(trace: Trace, layer: number, position: number): Float64Array {
  const { model } = trace;
  const stream = rowOf(trace.streams[layer] as Float64Array, position, model.width).slice();
  for (let above = layer; above < model.layers; above++) {
    for (const moved of model.headsOf(above).map((head) => stay(trace, head, position, stream))) add(stream, moved);
  }
  return stream;
}

export function lens(trace: Trace, readout: "direct" | "held", start: number): LensAnswer {
  const { model } = trace;
  const positions = Array.from({ length: Math.min(LENS_POSITIONS, trace.length - start) }, (_, i) => start + i);
  const predictions = positions.map((position) => argmax(trace.logitsAt(position)));
  const [tops, topProbs, predictionProbs] = [[], [], []] as [number[], number[], number[]];
  for (let layer = 0; layer <= model.layers; layer++) {
    positions.forEach((position, place) => {
      const stream = readout === "held" ? carried(trace, layer, position) : rowOf(trace.streams[layer] as Float64Array, position, model.width);
      const probabilities = softmax(product(stream, model.W_U, model.width, model.vocabulary));
      const top = argmax(probabilities);
      tops.push(top);
      topProbs.push(probabilities[top] as number);
      predictionProbs.push(probabilities[predictions[place] as number] as number);
    });
  }
  const shape = [model.layers + 1, positions.length];
  return {
    format: "pathsum-page-lens",
    version: 1,
    readout,
    start,
    predictions,
    top_ids: { shape, data: Int32Array.from(tops) },
    top_probs: matrix(shape, topProbs),
    prediction_probs: matrix(shape, predictionProbs),
  };
}

export function lensParts(trace: Trace, layer: number, position: number, token: number): LensPartsAnswer {
  const { model } = trace;
  const direction = model.direction(token, "mean");
  const toward = (stream: Float64Array, at = 0): number => dot(stream, at * model.width, direction, 0, model.width);
  const writers = writersBelow(layer, model);
  const written = writers.map((writer) => toward(trace.written(writer), position));
  const start = rowOf(trace.streams[layer] as Float64Array, position, model.width).slice();
  const names = [`residual${layer}`];
  const parts = [toward(start)];
  /** The stream by the number of heads that it went through. */
  const orders = [start];
  for (let above = layer; above < model.layers; above++) {
    const moved = orders.map(() => new Float64Array(model.width));
    for (const head of model.headsOf(above)) {
      const own = orders.map((stream) => stay(trace, head, position, stream));
      own.forEach((stream, order) => add(moved[order] as Float64Array, stream));
      names.push(head);
      parts.push(sum(own.map((stream) => toward(stream))));
    }
    orders.push(new Float64Array(model.width));
    moved.forEach((stream, order) => add(orders[order + 1] as Float64Array, stream));
  }
  return {
    format: "pathsum-page-lens-parts",
    version: 1,
    layer,
    position,
    token,
    direct: parts[0] as number,
    held: sum(parts),
    writers: [...writers, "positions and biases"],
    written: matrix([writers.length + 1], [...written, 0]),
    above: names,
    carried: matrix([parts.length], parts),
    by_order: matrix([orders.length], orders.map((stream) => toward(stream))),
  };
}
