import { describe, expect, it } from "vitest";
import type { LensAnswer, LensPartsAnswer } from "../../generated/answers";
import { at, blockOf, lastWritten, partsOf, settledAt } from "./grid";

const shape = [3, 2];
const ANSWER: LensAnswer = {
  format: "pathsum-page-lens",
  version: 1,
  readout: "direct",
  start: 64,
  predictions: [7, 9],
  top_ids: { shape, data: Int32Array.from([7, 9, 5, 9, 7, 9]) },
  top_probs: { shape, data: Float32Array.from([0.5, 0.25, 0.5, 0.25, 0.5, 0.75]) },
  prediction_probs: { shape, data: Float32Array.from([0.5, 0.25, 0.125, 0.25, 0.5, 0.75]) },
};

describe("the grid of a lens", () => {
  it("is asked for in blocks of positions", () => expect([0, 63, 64, 130].map(blockOf)).toEqual([0, 0, 64, 128]));

  it("finds the numbers of a cell by its layer and position", () => {
    expect(at(ANSWER, "prediction_probs", { layer: 1, position: 64 })).toBe(0.125);
    expect(at(ANSWER, "top_ids", { layer: 2, position: 65 })).toBe(9);
  });

  it("knows the layer from which on the prediction is read, not where it was read first", () => {
    expect(settledAt(ANSWER, 64)).toBe(2);
    expect(settledAt(ANSWER, 65)).toBe(0);
  });

  it("finds what the last layer wrote", () => {
    const writers = ["embed", "L0H0", "L1H0", "L1H1", "mlp0", "mlp1"];
    const cell = { layer: 2, writers, written: { shape: [6], data: Float32Array.from([9, 8, 1, -2, 7, 3]) } } as unknown as LensPartsAnswer;
    expect(lastWritten(cell).map(({ name }) => name)).toEqual(["mlp1", "L1H1", "L1H0"]);
  });

  it("lists the largest parts, and the others add up to the rest", () => {
    const values = Array.from({ length: 14 }, (_, i) => (i % 2 ? -i : i));
    const cell = { direct: -7, writers: values.map(String), written: { shape: [14], data: Float32Array.from(values) } } as unknown as LensPartsAnswer;
    const { parts, rest, others } = partsOf(cell, "direct");
    expect(parts.map(({ value }) => value)).toEqual([-13, 12, -11, 10, -9, 8, -7, 6, -5, 4]);
    expect(others).toBe(3);
    expect(parts.reduce((sum, { value }) => sum + value, rest)).toBe(cell.direct);
  });
});
