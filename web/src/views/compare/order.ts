/** How a similarity matrix is shown: matched heads along the diagonal, the rest after them. */
import type { HeadAlignment, Matrix } from "../../generated/answers";

export interface Ordered {
  readonly rows: readonly number[];
  readonly columns: readonly number[];
}

/** Matched heads first, the most alike on top; then, in their models' order, those left over. */
export function matchedFirst({ left_heads, right_heads, matches }: HeadAlignment): Ordered {
  const pairs = [...matches].sort((a, b) => b.score - a.score);
  const ordered = (heads: readonly string[], matched: readonly string[]) =>
    [...matched, ...heads.filter((head) => !matched.includes(head))].map((head) => heads.indexOf(head));
  return { rows: ordered(left_heads, pairs.map(({ left }) => left)), columns: ordered(right_heads, pairs.map(({ right }) => right)) };
}

export function cell(matrix: Matrix, row: number, column: number): number {
  return matrix.data[row * (matrix.shape[1] ?? 0) + column] ?? Number.NaN;
}

export interface Pair {
  readonly left: string;
  readonly right: string;
}

/** What a run is compared with at first: its last snapshot before the end, where heads are what they will be. */
export const usualStep = (steps: readonly number[]): number | undefined => steps[Math.max(0, steps.length - 2)];

/** The two heads that are most alike: shown until others are chosen. */
export function bestPair(comparison: HeadAlignment): Pair | null {
  return [...comparison.matches].sort((a, b) => b.score - a.score)[0] ?? null;
}

/** Of a model compared with itself: the two different heads that are most alike. */
export function closestTwo(comparison: HeadAlignment): Pair | null {
  let best: (Pair & { score: number }) | null = null;
  comparison.left_heads.forEach((left, row) =>
    comparison.right_heads.forEach((right, column) => {
      const score = cell(comparison.similarity, row, column);
      if (left !== right && (best === null || score > best.score)) best = { left, right, score };
    }),
  );
  return best;
}

/** "L0H1~L1H2" in the URL. */
export function printPair(pair: Pair): string {
  return `${pair.left}~${pair.right}`;
}

export function parsePair(text: string | undefined, comparison: HeadAlignment): Pair | null {
  const [left, right] = text?.split("~") ?? [];
  if (left === undefined || right === undefined) return null;
  return comparison.left_heads.includes(left) && comparison.right_heads.includes(right)
    ? { left, right }
    : null;
}
