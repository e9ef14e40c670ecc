import { describe, expect, it } from "vitest";
import type { ScoreParts } from "../../generated/answers";
import { softmax } from "../../lib/algebra";
import { condensed, scoresOf, termAlongRow, termsOf, withoutTermHere, withoutTermInRow } from "./terms";

/** Numbers that look random and are the same every time. */
function noise(n: number, seed: number): Float32Array {
  let x = seed;
  return Float32Array.from({ length: n }, () => {
    x = (1103515245 * x + 12345) % 2147483648;
    return x / 1073741824 - 1;
  });
}

const [Q, K, T, D] = [5, 4, 6, 3];
const parts = {
  head: "L1H0",
  query_parts: ["embed", "pos", "L0H0", "L0H1", "L0H2"],
  key_parts: ["embed", "pos", "L0H0", "L0H1"],
  query: { shape: [Q, T, D], data: noise(Q * T * D, 1) },
  key: { shape: [K, T, D], data: noise(K * T * D, 2) },
  remainder: 0,
  total_max: 1,
} as unknown as ScoreParts;

const total = (values: Iterable<number>) => [...values].reduce((a, b) => a + b, 0);

describe("the terms of a score", () => {
  it("add up to the score, cell by cell", () => {
    for (let dest = 0; dest < T; dest++) {
      const scores = scoresOf(parts, dest);
      expect(scores).toHaveLength(dest + 1);
      for (let src = 0; src <= dest; src++) {
        const terms = termsOf(parts, dest, src);
        expect(total(terms.values)).toBeCloseTo(terms.score, 10);
        expect(terms.score).toBeCloseTo(scores[src] as number, 6);
      }
    }
  });

  it("still add up when only the strongest are shown", () => {
    const terms = termsOf(parts, 5, 3);
    const table = condensed(terms, 2);
    expect(table.queryParts).toHaveLength(3);
    expect(table.queryParts[2]).toBe("rest");
    expect(total(table.values)).toBeCloseTo(terms.score, 10);
    const whole = condensed(terms, 9);
    expect(whole.queryParts).toEqual(terms.queryParts);
    expect([...whole.values]).toEqual([...terms.values]);
  });

  it("says what the weight would be without a term: here, and in the whole row", () => {
    const [dest, src, a, b] = [5, 2, 1, 3];
    const scores = scoresOf(parts, dest);
    const along = termAlongRow(parts, dest, a, b);
    const term = termsOf(parts, dest, src).values[a * K + b] as number;
    expect(along[src]).toBeCloseTo(term, 10);
    const without = [...scores];
    without[src] = (without[src] as number) - term;
    expect(withoutTermHere(scores, src, term)).toBeCloseTo(softmax(Float64Array.from(without))[src] as number, 12);
    expect(withoutTermInRow(scores, src, along)).toBeCloseTo(
      softmax(scores.map((score, i) => score - (along[i] as number)))[src] as number,
      12,
    );
  });

  it("softmax holds for large scores", () => {
    expect([...softmax(Float64Array.of(1000, 1000, -1000))]).toEqual([0.5, 0.5, 0]);
  });
});
