import { describe, expect, it } from "vitest";
import { columnAt, moved, nearestStep, rowAt, strongestAtEnd } from "./scrub";

const steps = [0, 1, 10, 100, 1000];
const matrix = { shape: [2, 3], data: Float32Array.from([1, 2, 3, 4, 6, 5]) };

describe("scrubber", () => {
  it("snaps to the snapshot nearest on the logarithmic axis", () => {
    expect(steps[nearestStep(steps, 40)]).toBe(100);
    expect(steps[nearestStep(steps, 25)]).toBe(10);
    expect(steps[nearestStep(steps, -3)]).toBe(0);
    expect(steps[nearestStep(steps, 1e9)]).toBe(1000);
  });

  it("moves with keys and stops at the ends", () => {
    expect(moved(2, 5, "ArrowRight")).toBe(3);
    expect(moved(4, 5, "ArrowRight")).toBe(4);
    expect(moved(2, 5, "Home")).toBe(0);
    expect(moved(2, 5, "End")).toBe(4);
    expect(moved(50, 100, "PageUp")).toBe(60);
    expect(moved(2, 5, "x")).toBeNull();
  });

  it("reads rows and columns, and finds the head that ends highest", () => {
    expect(rowAt(matrix, 1)).toEqual([4, 6, 5]);
    expect(columnAt(matrix, 2)).toEqual([3, 5]);
    expect(strongestAtEnd(matrix)).toBe(1);
  });
});
