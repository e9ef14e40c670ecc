import { describe, expect, it } from "vitest";
import { gridDensity, gridKey, gridRows } from "./headGrid";

const rows = gridRows(["L0H0", "L0H1", "L0H2", "L1H0", "L1H1"]);

describe("a grid of heads", () => {
  it("has the last layer on top", () => {
    expect(rows).toEqual([
      { layer: 1, indices: [3, 4] },
      { layer: 0, indices: [0, 1, 2] },
    ]);
  });

  it("moves with arrows and stops at the border", () => {
    expect(gridKey(rows, 0, "ArrowRight")).toBe(1);
    expect(gridKey(rows, 0, "ArrowUp")).toBe(3);
    expect(gridKey(rows, 2, "ArrowUp")).toBe(4);
    expect(gridKey(rows, 3, "ArrowUp")).toBe(3);
    expect(gridKey(rows, 3, "End")).toBe(4);
    expect(gridKey(rows, 3, "x")).toBeNull();
  });

  it("says less in each cell of a larger grid", () => {
    const grid = (layers: number, heads: number) =>
      gridRows(Array.from({ length: layers * heads }, (_, i) => `L${Math.floor(i / heads)}H${i % heads}`));
    expect([grid(2, 4), grid(2, 8), grid(12, 12), grid(30, 9), grid(48, 25)].map(gridDensity)).toEqual(["roomy", "roomy", "dense", "compact", "compact"]);
  });
});
