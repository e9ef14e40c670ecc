import { describe, expect, it } from "vitest";
import { tellingPosition } from "./telling";

const run = (ids: number[], prob: number[], rank: number[]) =>
  ({ ids, next_prob: { data: prob }, next_rank: { data: rank } }) as unknown as Parameters<typeof tellingPosition>[0];

describe("the position that two texts are compared at", () => {
  it("is a repeat that is predicted, however sure another prediction is", () => {
    expect(tellingPosition(run([0, 5, 6, 7, 5, 6, 8], [0, 0.9, 0.99, 0, 0.6, 0, NaN], [9, 1, 1, 9, 1, 9, 0]))).toBe(4);
  });
  it("is the surest prediction of a text without repeats, and the end of one without predictions", () => {
    expect(tellingPosition(run([0, 1, 2, 3], [0, 0.2, 0.7, NaN], [9, 1, 1, 0]))).toBe(2);
    expect(tellingPosition(run([0, 1, 2], [0, 0.2, NaN], [9, 4, 0]))).toBe(2);
  });
});
