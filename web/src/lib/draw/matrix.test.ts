import { describe, expect, it } from "vitest";
import { table } from "./color";
import { pixels, sparseToDense, wholeWindow } from "./matrix";

const cells = { rows: 2, columns: 3, values: Float32Array.of(0, 0.5, 1, -1, NaN, 2) };

describe("heat maps", () => {
  it("is one pixel a cell, clamped at the ends, paper where nothing is", () => {
    const colors = table("sequential", "light");
    const { width, height, data } = pixels(cells, wholeWindow(cells), 1, "sequential", "light", { width: 99, height: 99 });
    expect([width, height]).toEqual([3, 2]);
    expect([...data]).toEqual([0, 128, 255, 0, 0, 255].map((i) => colors[i]));
  });
  it("shows a window alone", () => {
    const colors = table("sequential", "light");
    const { data } = pixels(cells, { row: 1, column: 2, rows: 1, columns: 1 }, 2, "sequential", "light", { width: 9, height: 9 });
    expect([...data]).toEqual([colors[255]]);
  });
  it("keeps the largest of cells that share a pixel, with its sign", () => {
    const wide = { rows: 1, columns: 4, values: Float32Array.of(0.1, -0.9, 0.2, 0.3) };
    const colors = table("diverging", "dark");
    const { data } = pixels(wide, wholeWindow(wide), 1, "diverging", "dark", { width: 2, height: 1 });
    expect([...data]).toEqual([Math.round(127.5 - 0.9 * 127.5), Math.round(127.5 + 0.3 * 127.5)].map((i) => colors[i]));
  });
  it("spreads sparse rows", () => {
    const dense = sparseToDense([0, 0, 1, 0], [1, 0, 0.75, 0.25], 2, 2);
    expect([...dense]).toEqual([1, 0, 0.25, 0.75]);
  });
  it("has a contrast: square roots, or each row by its own largest", () => {
    const faint = { rows: 2, columns: 2, values: Float32Array.of(0.0121, 0.0484, 0.25, 1) };
    const colors = table("sequential", "light");
    const drawn = (contrast: "sqrt" | "row") => [
      ...pixels(faint, wholeWindow(faint), 1, "sequential", "light", { width: 9, height: 9 }, contrast).data,
    ];
    const shown = (shares: number[]) => shares.map((share) => colors[Math.round(255 * share)]);
    expect(drawn("sqrt")).toEqual(shown([0.11, 0.22, 0.5, 1]));
    expect(drawn("row")).toEqual(shown([0.25, 1, 0.25, 1]));
  });
});
