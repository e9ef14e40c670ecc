/** The slider over snapshots: which one a step or a key selects, and which head to follow. */
import type { Matrix } from "../../generated/answers";

/** The snapshot nearest to a step on a logarithmic axis (where steps are spread out). */
export function nearestStep(steps: readonly number[], step: number): number {
  const far = (at: number) => Math.abs(Math.log1p(at) - Math.log1p(Math.max(0, step)));
  let best = 0;
  steps.forEach((each, index) => {
    if (far(each) < far(steps[best]!)) best = index;
  });
  return best;
}

/** The index a key leads to: an arrow one snapshot, a page a tenth of all, home and end. */
export function moved(index: number, count: number, key: string): number | null {
  const page = Math.max(1, Math.round(count / 10));
  const steps: Readonly<Record<string, number>> = {
    ArrowLeft: -1,
    ArrowRight: 1,
    PageDown: -page,
    PageUp: page,
    Home: -count,
    End: count,
  };
  const by = steps[key];
  return by === undefined ? null : Math.min(count - 1, Math.max(0, index + by));
}

/** One row of a [steps, n] matrix. */
export function rowAt(matrix: Matrix, row: number): number[] {
  const width = matrix.shape[1] ?? 0;
  return Array.from(matrix.data.slice(row * width, (row + 1) * width));
}

/** One column of a [steps, n] matrix: a head over training. */
export function columnAt(matrix: Matrix, column: number): number[] {
  const [count = 0, width = 0] = matrix.shape;
  return Array.from({ length: count }, (_, row) => matrix.data[row * width + column] ?? Number.NaN);
}

/** The column that ends highest: the head that is worth following from the start. */
export function strongestAtEnd(matrix: Matrix): number {
  const last = rowAt(matrix, (matrix.shape[0] ?? 1) - 1);
  return last.reduce((best, value, index) => (value > (last[best] ?? -Infinity) ? index : best), 0);
}
