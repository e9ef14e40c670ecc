import { describe, expect, it } from "vitest";
import type { ModelInfo, Vocabulary } from "../generated/answers";
import { drawable, randomRepeat } from "./repeat";

const info = { d_vocab: 6, n_ctx: 9, start_token: 0 } as ModelInfo;
const vocabulary = { tokens: [], undecodable: [2], counts: { shape: [6], data: Int32Array.of(9, 1, 1, 0, 1, 0) } } as unknown as Vocabulary;

describe("the seed experiment", () => {
  it("draws from tokens that were seen and can be read, never the start token", () => {
    expect(drawable(info, vocabulary)).toEqual([1, 4]);
    expect(drawable(info, null)).toEqual([1, 2, 3, 4, 5]);
  });
  it("is the start token and the same tokens twice", () => {
    let turn = 0;
    expect(randomRepeat(info, vocabulary, 3, () => (turn++ % 2) / 2)).toEqual([0, 1, 4, 1, 1, 4, 1]);
  });
  it("fits the context", () => {
    expect(randomRepeat(info, vocabulary, 100)).toHaveLength(9);
  });
});
