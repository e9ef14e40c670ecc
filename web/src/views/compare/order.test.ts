import { describe, expect, it } from "vitest";
import type { HeadAlignment } from "../../generated/answers";
import { bestPair, cell, closestTwo, matchedFirst, parsePair, printPair, usualStep } from "./order";

const similarity = { shape: [2, 3], data: Float32Array.from([0, 0.1, 0.9, 0.8, 0.2, 0]) };
const comparison = {
  left_heads: ["L0H0", "L0H1"],
  right_heads: ["L0H0", "L0H1", "L0H2"],
  similarity,
  matches: [
    { left: "L0H0", right: "L0H2", score: 0.9, null: 0.1, p: 0.01 },
    { left: "L0H1", right: "L0H0", score: 0.8, null: 0.1, p: 0.01 },
  ],
} as unknown as HeadAlignment;

it("compares a run with the snapshot before its last", () => {
  expect([[], [5], [0, 5], [0, 5, 9]].map(usualStep)).toEqual([undefined, 5, 0, 5]);
});

describe("order", () => {
  it("puts matched heads on the diagonal and the others after them", () => {
    const { rows, columns } = matchedFirst(comparison);
    expect(rows).toEqual([0, 1]);
    expect(columns).toEqual([2, 0, 1]);
    expect(rows.map((row, at) => cell(similarity, row, columns[at]!))).toEqual([
      similarity.data[2],
      similarity.data[3],
    ]);
  });

  it("opens with the two that are most alike", () => {
    expect(bestPair(comparison)).toMatchObject({ left: "L0H0", right: "L0H2" });
    expect(bestPair({ ...comparison, matches: [] })).toBeNull();
  });

  it("opens one model with its two most similar heads, not with a head and itself", () => {
    const itself = {
      ...comparison,
      right_heads: ["L0H0", "L0H1"],
      similarity: { shape: [2, 2], data: Float32Array.from([1, 0.3, 0.4, 1]) },
    } as unknown as HeadAlignment;
    expect(closestTwo(itself)).toMatchObject({ left: "L0H1", right: "L0H0" });
  });

  it("knows a pair from the URL only if both heads are there", () => {
    const pair = { left: "L0H1", right: "L0H2" };
    expect(parsePair(printPair(pair), comparison)).toEqual(pair);
    expect(parsePair("L0H1~L9H9", comparison)).toBeNull();
    expect(parsePair(undefined, comparison)).toBeNull();
  });
});
