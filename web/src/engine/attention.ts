/** Why a head attends where it does: the effect of its attention, split over its scores (`pathsum.paths.attention`). */
import { softmax, sum } from "../lib/algebra";

/** Nodes of the first rule, doubled until the split is complete to this share of the range of values. */
const NODES = 16;
const MOST_NODES = 1024;
const TOLERANCE = 1e-6;

export interface ScoreWeights {
  /** The contribution of one unit of each score. */
  weights: Float64Array;
  /** The contribution of equal scores, and how much more that of the head's own is. */
  uniform: number;
  effect: number;
  error: number;
}

/** Σ A v − mean v = Σ s w, with w = ∫ A(t) (v − Σ A(t) v) dt over t from 0 to 1, scores scaled by t. */
export function integrateScores(scores: Float64Array, values: Float64Array): ScoreWeights {
  const uniform = sum(values) / values.length;
  const mean = (pattern: Float64Array): number => sum(pattern.map((weight, at) => weight * (values[at] as number)));
  const effect = mean(softmax(scores)) - uniform;
  const spread = Math.max(...values) - Math.min(...values);
  for (let nodes = NODES; ; nodes *= 2) {
    const weights = new Float64Array(scores.length);
    for (const [point, share] of gaussLegendre(nodes)) {
      const pattern = softmax(scores.map((score) => ((point + 1) / 2) * score));
      const own = mean(pattern);
      pattern.forEach((weight, at) => ((weights[at] as number) += (share / 2) * weight * ((values[at] as number) - own)));
    }
    const error = Math.abs(sum(weights.map((weight, at) => weight * (scores[at] as number))) - effect);
    if (error <= TOLERANCE * spread || nodes >= MOST_NODES) return { weights, uniform, effect, error };
  }
}

const rules = new Map<number, [point: number, weight: number][]>();

/** Points and weights of the Gauss–Legendre rule on [−1, 1], the roots found by Newton's method. */
function gaussLegendre(nodes: number): [point: number, weight: number][] {
  let rule = rules.get(nodes);
  if (!rule) {
    rule = Array.from({ length: nodes }, (_, i) => {
      let x = Math.cos((Math.PI * (i + 0.75)) / (nodes + 0.5));
      for (;;) {
        let [before, here] = [1, x];
        for (let n = 2; n <= nodes; n++) [before, here] = [here, ((2 * n - 1) * x * here - (n - 1) * before) / n];
        const slope = (nodes * (x * here - before)) / (x * x - 1);
        const step = here / slope;
        x -= step;
        if (Math.abs(step) < 1e-15) return [x, 2 / ((1 - x * x) * slope * slope)];
      }
    });
    rules.set(nodes, rule);
  }
  return rule;
}
