import { describe, expect, it } from "vitest";
import { curveBetween, middleOf, nearestEdge, neighbor, standOut } from "./graph";

const box = (x: number, row: number) => ({ x, y: 300 - 100 * row, width: 80, height: 30, row });

describe("a graph", () => {
  it("tells Q, K and V apart by the port", () => {
    const ends = (["q", "k", "v"] as const).map((kind) => curveBetween(box(100, 0), box(100, 1), kind).to.x);
    expect(ends[0]!).toBeLessThan(ends[1]!);
    expect(ends[1]!).toBeLessThan(ends[2]!);
  });

  it("bows edges that skip a row straight above", () => {
    expect(Math.abs(middleOf(curveBetween(box(100, 0), box(100, 2), "k")).x - 100)).toBeGreaterThan(40);
    expect(middleOf(curveBetween(box(100, 0), box(100, 1), "k")).x).toBe(100);
  });

  it("lets the focused node's edges stand out, else those between pins", () => {
    const edges = [
      { from: "L0H0", to: "L1H0" },
      { from: "L0H0", to: "L1H1" },
      { from: "L0H1", to: "L1H1" },
    ];
    expect(standOut(edges, null, new Set())).toBeNull();
    expect(standOut(edges, "L1H1", new Set())).toEqual([edges[1], edges[2]]);
    expect(standOut(edges, null, new Set(["L0H1"]))).toEqual([edges[2]]);
    expect(standOut(edges, null, new Set(["L0H0", "L1H0"]))).toEqual([edges[0]]);
  });

  it("goes with the arrows and stops at the border", () => {
    const [a, b, c] = [box(100, 0), box(200, 0), box(210, 1)];
    expect(neighbor([a, b, c], a, "ArrowRight")).toBe(b);
    expect(neighbor([a, b, c], b, "ArrowUp")).toBe(c);
    expect(neighbor([a, b, c], a, "ArrowDown")).toBe(a);
  });
});

describe("the edge that is meant", () => {
  const straight = (x: number) => ({ id: String(x), curve: { from: { x, y: 100 }, c1: { x, y: 60 }, c2: { x, y: 40 }, to: { x, y: 0 } } });
  it("is the nearest one, also where others are in reach", () => {
    const edges = [straight(10), straight(16), straight(30)];
    expect(nearestEdge(edges, { x: 14, y: 50 })?.id).toBe("16");
    expect(nearestEdge(edges, { x: 12, y: 50 })?.id).toBe("10");
    // Also between the points that a curve is measured at.
    expect(nearestEdge([straight(10), straight(11)], { x: 10.2, y: 51.7 })?.id).toBe("10");
    expect(nearestEdge([], { x: 0, y: 0 })).toBe(null);
  });
});
