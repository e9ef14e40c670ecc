import { largest, softmax, sum } from "../../lib/algebra";
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

function dot(a: ArrayLike<number>, from: number, b: ArrayLike<number>, at: number, width: number): number {
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
  const firsts = parts.key_parts.map((_, b) => b * positions);
  return Float64Array.from({ length: dest + 1 }, (_, src) => sum(firsts.map((from) => dot(query, 0, parts.key.data, (from + src) * width, width))));
}

/** Scores of one term (query part a, key part b) against all sources up to a destination. */
export function termAlongRow(parts: ScoreParts, dest: number, a: number, b: number): Float64Array {
  const { positions, width } = widths(parts.query);
  const [query, key] = [(a * positions + dest) * width, b * positions * width];
  return Float64Array.from({ length: dest + 1 }, (_, src) => dot(parts.query.data, query, parts.key.data, key + src * width, width));
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
  const at = (a: number, b: number): number => terms.values[a * k + b] as number;
  const all = (n: number): number[] => Array.from({ length: n }, (_, i) => i);
  const strongest = (n: number, size: (i: number) => number): number[] => largest(Float64Array.from(all(n), size), most).sort((x, y) => x - y);
  const rows = strongest(q, (a) => sum(all(k).map((b) => Math.abs(at(a, b)))));
  const columns = strongest(k, (b) => sum(all(q).map((a) => Math.abs(at(a, b)))));
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
