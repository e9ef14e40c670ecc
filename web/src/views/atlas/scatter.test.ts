import { describe, expect, it } from "vitest";
import { fixedAxis } from "../../lib/draw/plot";
import { brushed, meanOf, placeLabels, radii } from "./scatter";

describe("scatter", () => {
  it("reads what a brush encloses, whichever way it was dragged", () => {
    const [x, y] = [fixedAxis(0, 1, 0, 100), fixedAxis(0, 1, 100, 0)];
    const box = { x: [0.2, 0.6], y: [0.5, 0.9] };
    const close = (found: typeof box) =>
      (["x", "y"] as const).every((side) => found[side].every((v, i) => Math.abs(v - box[side][i]!) < 1e-9));
    expect(close(brushed([20, 10], [60, 50], x, y) as never)).toBe(true);
    expect(close(brushed([60, 50], [20, 10], x, y) as never)).toBe(true);
  });

  it("makes areas grow with values, and all equal without", () => {
    const [a, b, c] = radii([0, 0.5, 1]) as [number, number, number];
    expect(b * b - a * a).toBeCloseTo(c * c - b * b);
    expect(new Set(radii([NaN, NaN])).size).toBe(1);
  });

  it("labels large points before small ones", () => {
    const places: [number, number][] = [[40, 50], [150, 50], [260, 50]];
    const labels = placeLabels(places, [5, 12, 5], ["L0H0", "L0H1", "L0H2"], 1, [true, true, true], 300);
    expect(labels.map((label) => label !== null)).toEqual([false, true, false]);
  });

  it("names the largest even in a crowd", () => {
    const crowd = [-30, 0, 30].flatMap((dx) => [-14, 0, 14].map((dy): [number, number] => [150 + dx, 100 + dy]));
    const names = crowd.map((_, at) => `L0H${at}`);
    const radius = crowd.map(([x, y]) => (x === 150 && y === 100 ? 9 : 6));
    const labels = placeLabels(crowd, radius, names, 16, crowd.map(() => true), 300);
    expect(labels[4]).not.toBeNull();
  });

  it("labels points without covering others", () => {
    const places = [
      [50, 50],
      [60, 50],
      [150, 50],
    ] as const;
    const labels = placeLabels(places, [5, 5, 5], ["L0H0", "L0H1", "L0H2"], 3, [false, false, false], 300);
    expect(labels[0]?.anchor).toBe("end");
    expect(labels[1]?.anchor).toBe("start");
    expect(labels[2]?.anchor).toBe("start");
  });

  it("names heads that are something first when there is room for few", () => {
    const places = [
      [50, 50],
      [150, 50],
    ] as const;
    const labels = placeLabels(places, [5, 5], ["L0H0", "L0H1"], 1, [false, true], 300);
    expect(labels[0]).toBeNull();
    expect(labels[1]).not.toBeNull();
  });

  it("averages what there is", () => {
    expect(meanOf([1, NaN, 3])).toBe(2);
    expect(meanOf(undefined)).toBeNaN();
  });
});
