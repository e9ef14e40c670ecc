/** Row-major matrices of doubles. One type of array everywhere: code that sees several runs many times slower. */

/** x W: rows of width `inner` times a matrix with so many columns. */
export function product(x: Float64Array, W: Float64Array, inner: number, columns: number): Float64Array {
  const rows = x.length / inner;
  const out = new Float64Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    const from = row * inner;
    const to = row * columns;
    let i = 0;
    // Four rows of W at a time: a row of the result is read and written less often.
    for (; i + 3 < inner; i += 4) {
      const a = x[from + i] as number;
      const b = x[from + i + 1] as number;
      const c = x[from + i + 2] as number;
      const d = x[from + i + 3] as number;
      if (a === 0 && b === 0 && c === 0 && d === 0) continue;
      const w = i * columns;
      for (let j = 0; j < columns; j++) {
        (out[to + j] as number) +=
          a * (W[w + j] as number) +
          b * (W[w + columns + j] as number) +
          c * (W[w + 2 * columns + j] as number) +
          d * (W[w + 3 * columns + j] as number);
      }
    }
    for (; i < inner; i++) {
      const a = x[from + i] as number;
      for (let j = 0; j < columns; j++) (out[to + j] as number) += a * (W[i * columns + j] as number);
    }
  }
  return out;
}

/** x Wᵀ, where x and W have rows of the same width. */
export function transposed(x: Float64Array, W: Float64Array, width: number): Float64Array {
  const rows = x.length / width;
  const columns = W.length / width;
  const out = new Float64Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    for (let j = 0; j < columns; j++) out[row * columns + j] = dot(x, row * width, W, j * width, width);
  }
  return out;
}

export function dot(x: Float64Array, from: number, y: Float64Array, at: number, width: number): number {
  let sum = 0;
  for (let i = 0; i < width; i++) sum += (x[from + i] as number) * (y[at + i] as number);
  return sum;
}

/** Row `index` of a matrix with rows of this width, as a view. */
export const rowOf = (x: Float64Array, index: number, width: number): Float64Array => x.subarray(index * width, (index + 1) * width);

/** out += factor · x, from `at` on. */
export function add(out: Float64Array, x: Float64Array, factor = 1, at = 0): void {
  for (let i = 0; i < x.length; i++) (out[at + i] as number) += factor * (x[i] as number);
}

export const sum = (x: Iterable<number>): number => {
  let total = 0;
  for (const value of x) total += value;
  return total;
};

export function softmax(scores: Float64Array): Float64Array {
  let most = -Infinity;
  for (const score of scores) most = Math.max(most, score);
  const out = scores.map((score) => Math.exp(score - most));
  const total = sum(out);
  return out.map((value) => value / total);
}

export function logSumExp(scores: Float64Array): number {
  let most = -Infinity;
  for (const score of scores) most = Math.max(most, score);
  let total = 0;
  for (const score of scores) total += Math.exp(score - most);
  return most + Math.log(total);
}

/** Places of the k largest numbers, the largest first; of equal ones, the first. */
export function largest(x: Float64Array, k: number): number[] {
  const found: number[] = [];
  for (let i = 0; i < x.length; i++) {
    if (found.length === k && !((x[i] as number) > (x[found[k - 1] as number] as number))) continue;
    let at = found.length;
    while (at > 0 && (x[i] as number) > (x[found[at - 1] as number] as number)) at--;
    found.splice(at, 0, i);
    found.length = Math.min(found.length, k);
  }
  return found;
}

export const argmax = (x: Float64Array | readonly number[]): number => {
  let best = 0;
  for (let i = 1; i < x.length; i++) if ((x[i] as number) > (x[best] as number)) best = i;
  return best;
};
