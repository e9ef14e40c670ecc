import { describe, expect, it } from "vitest";
import { levelOf, type PlacedEdge, placed, standOut, strokes, WIDTHS } from "./drawing";
import type { GraphEdge, Kind } from "./edges";
import { membersOf, merged } from "./groups";
import { layOut } from "./layout";

const HEADS = ["L0H0", "L0H1", "L1H0", "L1H1"];
const edge = (writer: string, reader: string, kind: Kind, z: number): GraphEdge => ({
  ...{ writer, reader, kind, z, score: 0.1, excess: 0, p: 0.01 },
});
const members = membersOf(HEADS, []);
const edges = placed(
  merged(
    [edge("L0H0", "L1H0", "k", 60), edge("L0H0", "L1H1", "q", 5), edge("L0H1", "L1H1", "q", 4)],
    members,
  ),
  layOut(members, 600, 400),
  3,
);
const names = (found: readonly PlacedEdge[] | null) => found?.map((each) => `${each.from}-${each.to}`);

describe("drawing the graph", () => {
  it("widens lines with strength", () => {
    expect(levelOf(3, 3, 60)).toBe(0);
    expect(levelOf(60, 3, 60)).toBe(WIDTHS.length - 1);
    expect(levelOf(5, 3, 60)).toBeLessThan(levelOf(30, 3, 60));
    expect(levelOf(3, 3, 3)).toBe(WIDTHS.length - 1);
  });

  it("draws edges of one kind and width as one path", () => {
    const drawn = strokes(edges);
    expect(drawn).toHaveLength(2);
    expect(drawn.find((each) => each.kind === "q")!.d.match(/M/g)).toHaveLength(2);
  });

  it("lets the focused node's edges stand out, else those between pins", () => {
    expect(standOut(edges, null, new Set())).toBeNull();
    expect(names(standOut(edges, "L1H1", new Set()))).toEqual(["L0H0-L1H1", "L0H1-L1H1"]);
    expect(names(standOut(edges, null, new Set(["L0H1"])))).toEqual(["L0H1-L1H1"]);
    expect(names(standOut(edges, null, new Set(["L0H0", "L1H0"])))).toEqual(["L0H0-L1H0"]);
  });
});
