import type { ScoreParts } from "../../generated/answers";
import type { Matrix } from "../../lib/source/wire";

/** One cell's score as query-part × key-part terms, which add up to it. */
interface Terms {
  queryParts: readonly string[];
  keyParts: readonly string[];
  /** [query part, key part]. */
  values: Float64Array;
  score: number;
}

function dot(a: Matrix["data"], from: number, b: Matrix["data"], at: number, width: number): number {
  let sum = 0;
  for (let d = 0; d < width; d++) sum += (a[from + d] as number) * (b[at + d] as number);
  return sum;
}

const widths = (matrix: Matrix): { positions: number; width: number } => ({
  positions: matrix.shape[1] as number,
  width: matrix.shape[2] as number,
});

/** The terms of the score from destination to source: ⟨query part at dest, key part at src⟩. */
export function termsOf(parts: ScoreParts, dest: number, src: number): Terms {
  const { positions, width } = widths(parts.query);
  const [q, k] = [parts.query_parts.length, parts.key_parts.length];
  const values = new Float64Array(q * k);
  let score = 0;
  for (let a = 0; a < q; a++) {
    for (let b = 0; b < k; b++) {
      const term = dot(parts.query.data, (a * positions + dest) * width, parts.key.data, (b * positions + src) * width, width);
      values[a * k + b] = term;
      score += term;
    }
  }
  return { queryParts: parts.query_parts, keyParts: parts.key_parts, values, score };
}

/** Scores of a destination against all sources up to it. */
export function scoresOf(parts: ScoreParts, dest: number): Float64Array {
  const { positions, width } = widths(parts.query);
  const query = new Float64Array(width);
  parts.query_parts.forEach((_, a) => {
    for (let d = 0; d < width; d++) {
      (query[d] as number) += parts.query.data[(a * positions + dest) * width + d] as number;
    }
  });
  const out = new Float64Array(dest + 1);
  for (let src = 0; src <= dest; src++) {
    let sum = 0;
    for (let b = 0; b < parts.key_parts.length; b++) {
      const at = (b * positions + src) * width;
      for (let d = 0; d < width; d++) sum += (query[d] as number) * (parts.key.data[at + d] as number);
    }
    out[src] = sum;
  }
  return out;
}

/** Scores of one term (query part a, key part b) against all sources up to a destination. */
export function termAlongRow(parts: ScoreParts, dest: number, a: number, b: number): Float64Array {
  const { positions, width } = widths(parts.query);
  const out = new Float64Array(dest + 1);
  for (let src = 0; src <= dest; src++) {
    out[src] = dot(parts.query.data, (a * positions + dest) * width, parts.key.data, (b * positions + src) * width, width);
  }
  return out;
}

export function softmax(scores: ArrayLike<number>): Float64Array {
  let most = -Infinity;
  for (let i = 0; i < scores.length; i++) most = Math.max(most, scores[i] as number);
  const out = new Float64Array(scores.length);
  let sum = 0;
  for (let i = 0; i < scores.length; i++) {
    out[i] = Math.exp((scores[i] as number) - most);
    sum += out[i] as number;
  }
  for (let i = 0; i < out.length; i++) (out[i] as number) /= sum;
  return out;
}

/** The weight a source would have if its score lacked `term`, the others unchanged. */
export function withoutTermHere(scores: ArrayLike<number>, src: number, term: number): number {
  const changed = Float64Array.from(scores);
  (changed[src] as number) -= term;
  return softmax(changed)[src] as number;
}

/** The same if this pair of parts were missing from every score of the row. */
export function withoutTermInRow(scores: ArrayLike<number>, src: number, row: ArrayLike<number>): number {
  const changed = Float64Array.from(scores, (score, i) => score - (row[i] as number));
  return softmax(changed)[src] as number;
}

/** A table small enough to read: the strongest parts each way, the others added up as "rest". */
export function condensed(terms: Terms, most: number): Terms & { rows: number[]; columns: number[] } {
  const [q, k] = [terms.queryParts.length, terms.keyParts.length];
  const size = (n: number, of: (i: number) => number): number[] => {
    const order = Array.from({ length: n }, (_, i) => i).sort((x, y) => of(y) - of(x));
    return order.slice(0, most).sort((x, y) => x - y);
  };
  const at = (a: number, b: number): number => terms.values[a * k + b] as number;
  const sum = (n: number, value: (i: number) => number): number => {
    let total = 0;
    for (let i = 0; i < n; i++) total += Math.abs(value(i));
    return total;
  };
  const rows = size(q, (a) => sum(k, (b) => at(a, b)));
  const columns = size(k, (b) => sum(q, (a) => at(a, b)));
  // −1 stands for the rest.
  const rowGroups = rows.length < q ? [...rows, -1] : rows;
  const columnGroups = columns.length < k ? [...columns, -1] : columns;
  const values = new Float64Array(rowGroups.length * columnGroups.length);
  const rowOf = new Map(rows.map((a, i) => [a, i]));
  const columnOf = new Map(columns.map((b, i) => [b, i]));
  for (let a = 0; a < q; a++) {
    for (let b = 0; b < k; b++) {
      const i = rowOf.get(a) ?? rowGroups.length - 1;
      const j = columnOf.get(b) ?? columnGroups.length - 1;
      (values[i * columnGroups.length + j] as number) += at(a, b);
    }
  }
  return {
    queryParts: rowGroups.map((a) => (a < 0 ? "rest" : (terms.queryParts[a] as string))),
    keyParts: columnGroups.map((b) => (b < 0 ? "rest" : (terms.keyParts[b] as string))),
    values,
    score: terms.score,
    rows: rowGroups,
    columns: columnGroups,
  };
}
