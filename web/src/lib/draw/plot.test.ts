import { describe, expect, it } from "vitest";
import { fixedAxis, linearAxis, linePath, logAxis, nearest, roundTicks } from "./plot";

describe("axes", () => {
  it("has round ticks inside the range", () => {
    expect(roundTicks(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
    expect(roundTicks(-3, 17, 4)).toEqual([0, 5, 10, 15]);
    expect(roundTicks(2, 2)).toEqual([2]);
  });
  it("goes from value to pixel and back", () => {
    const axis = fixedAxis(-1, 3, 100, 0);
    expect(axis.at(-1)).toBe(100);
    expect(axis.at(3)).toBe(0);
    expect(axis.value(axis.at(1.7))).toBeCloseTo(1.7);
    const withZero = logAxis([0, 65, 15000], 0, 300);
    expect(withZero.ticks).toEqual([0, 100, 1000, 10000]);
    expect(withZero.at(0)).toBe(0);
    // The steps take the plot; 0 stands just before the first of them.
    expect(withZero.at(65)).toBeGreaterThan(10);
    expect(withZero.at(65)).toBeLessThan(60);
    expect([withZero.value(3), withZero.value(300)]).toEqual([0, expect.closeTo(15000)]);
    const log = logAxis([1, 1000], 0, 300);
    expect(log.at(10)).toBeCloseTo(100);
    expect(log.value(log.at(42))).toBeCloseTo(42);
    expect(log.ticks).toEqual([1, 10, 100, 1000]);
  });
  it("ignores missing values and never has width 0", () => {
    const axis = linearAxis([NaN, 5, Infinity], 0, 10);
    expect(axis.low).toBeLessThan(5);
    expect(axis.high).toBeGreaterThan(5);
    expect(linearAxis([], 0, 1).high).toBeGreaterThan(0);
  });
  it("leaves a gap in a line where a value is missing", () => {
    const axis = fixedAxis(0, 3, 0, 3);
    expect(linePath([0, 1, 2, 3], [0, 1, NaN, 3], axis, axis)).toBe("M0.0 0.0L1.0 1.0M3.0 3.0");
  });
  it("finds the nearest point in reach", () => {
    expect(nearest([[0, 0], [10, 0]], 8, 0)).toBe(1);
    expect(nearest([[0, 0]], 100, 0)).toBe(-1);
  });
});
