import { describe, expect, it } from "vitest";
import type { ModelInfo } from "../generated/answers";
import { randomRepeat } from "./repeat";

const info = { d_vocab: 6, n_ctx: 9, start_token: 0 } as ModelInfo;
const pool = Int32Array.of(1, 4);

describe("the seed experiment", () => {
  it("draws from the tokens that the server says may be drawn", () => {
    const drawn = new Set(Array.from({ length: 50 }, () => randomRepeat(info, pool, 4).slice(1)).flat());
    expect([...drawn].sort()).toEqual([1, 4]);
  });
  it("is the start token and the same tokens twice", () => {
    let turn = 0;
    expect(randomRepeat(info, pool, 3, () => (turn++ % 2) / 2)).toEqual([0, 1, 4, 1, 1, 4, 1]);
  });
  it("fits the context", () => {
    expect(randomRepeat(info, pool, 100)).toHaveLength(9);
  });
});
