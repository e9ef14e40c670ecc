/** Why a head attends where it does: the effect of its attention, split over its scores (`pathsum.paths.attention`). */
import { softmax, sum } from "../lib/algebra";

/** Steps of the first rule, doubled until the split is complete to this share of the range of values. */
const STEPS = 16;
const MOST_STEPS = 4096;
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
  for (let steps = STEPS; ; steps *= 2) {
    const weights = new Float64Array(scores.length);
    for (let step = 0; step <= steps; step++) {
      // Simpson's rule: 1, 4, 2, 4, …, 4, 1.
      const share = (step === 0 || step === steps ? 1 : step % 2 === 1 ? 4 : 2) / (3 * steps);
      const pattern = softmax(scores.map((score) => (step / steps) * score));
      const own = mean(pattern);
      pattern.forEach((weight, at) => ((weights[at] as number) += share * weight * ((values[at] as number) - own)));
    }
    const error = Math.abs(sum(weights.map((weight, at) => weight * (scores[at] as number))) - effect);
    if (error <= TOLERANCE * spread || steps >= MOST_STEPS) return { weights, uniform, effect, error };
  }
}
