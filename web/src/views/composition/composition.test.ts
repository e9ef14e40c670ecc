import { describe, expect, it } from "vitest";
import type { CompositionAnswer, EmbedAndLogitEdges } from "../../generated/answers";
import {
  above,
  allEdges,
  chanceAbove,
  edgeName,
  edgeNamed,
  edgesOf,
  endEdges,
  filedP,
  headOfEnd,
  MOST_DRAWN,
  openingThreshold,
  sliderScale,
  worthDrawing,
} from "./edges";
import type { GraphEdge } from "./edges";
import { endMembers, membersOf, merged, parseGroups, printGroups, regroup } from "./groups";
import { curveBetween, middleOf } from "../../lib/draw/graph";
import { graphOf, layOut, levelOf, WIDTHS } from "./layout";

const HEADS = ["L0H0", "L0H1", "L1H0", "L1H1"];

function matrix(fill: (at: number) => number) {
  return { shape: [4, 4], data: Float32Array.from({ length: 16 }, (_, at) => fill(at)) };
}

/** Row writes, column reads: only layer 0 to layer 1 is possible. z = 1 … 12 in order. */
function composition(): CompositionAnswer {
  let next = 0;
  const scores = () => {
    const z = matrix((at) => {
      const [writer, reader] = [Math.floor(at / 4), at % 4];
      return writer < 2 && reader >= 2 ? ++next : Number.NaN;
    });
    return { z, score: z, excess: z, p: z };
  };
  const chance = [1, 2, 3].map((each) => ({ z: each, q: 8 / 2 ** each, k: 4 / 2 ** each, v: 0 }));
  const [q, k, v] = [scores(), scores(), scores()];
  return { composition: { heads: HEADS, q, k, v }, chance } as unknown as CompositionAnswer;
}

const edges = allEdges(composition());

describe("p in a file", () => {
  it("is a bound at the least value, and has the digits of single precision", () => {
    expect(filedP(9.999999974752427e-7)).toBe("< 1e-6");
    expect(filedP(Math.fround(0.034))).toBe(0.034);
  });
});

describe("edges", () => {
  it("are the possible ones, strongest first, row writes and column reads", () => {
    expect(edges).toHaveLength(12);
    expect(edgeName(edges[0]!)).toBe("L0H1→L1H1.v");
    expect(edgeName(edges[11]!)).toBe("L0H0→L1H0.q");
    expect(edges.map((edge) => edge.z)).toEqual([12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
  });

  it("of one head are those that it writes or reads, strongest first", () => {
    const own = edges.filter((edge) => edge.writer === "L0H1" || edge.reader === "L0H1");
    expect(edgesOf(composition(), "L0H1")).toEqual(own);
    expect(edgesOf(composition(), "L9H9")).toEqual([]);
  });

  it("open with about as many as wanted, and none that chance explains", () => {
    expect(above(edges, openingThreshold(edges, 4))).toHaveLength(4);
    expect(openingThreshold(edges)).toBe(3);
    const weak = edges.map((edge) => ({ ...edge, z: edge.z / 10 }));
    expect(above(weak, openingThreshold(weak, 5))).toHaveLength(5);
    expect(openingThreshold([])).toBe(3);
  });

  it("are drawn up to a number, with all of the heads that are looked at and the one opened", () => {
    const many = Array.from({ length: MOST_DRAWN + 10 }, (_, at) => ({
      ...edges[0]!,
      writer: `L0H${at}`,
      z: 99 - at,
    }));
    const last = many[many.length - 1]!;
    expect(worthDrawing(many, [], undefined)).toHaveLength(MOST_DRAWN);
    expect(worthDrawing(many, [last.writer], undefined)).toContain(last);
    expect(worthDrawing(many, [], last)).toHaveLength(MOST_DRAWN + 1);
    expect(worthDrawing([], [], last)).toEqual([last]);
  });

  it("are found again from the URL", () => {
    expect(edgeNamed(edges, "L0H1→L1H0.k")).toMatchObject({ writer: "L0H1", reader: "L1H0", kind: "k" });
    expect(edgeNamed(edges, "L9H1→L1H0.k")).toBeUndefined();
  });

  it("are compared with chance between tabulated values", () => {
    const { chance } = composition();
    expect(chanceAbove(chance, 2)?.total).toBeCloseTo(3);
    expect(chanceAbove(chance, 1.5)?.q).toBeCloseTo(Math.sqrt(8));
    expect(chanceAbove(chance, 9)).toMatchObject({ q: 1, k: 0.5, atMost: true });
    expect(chanceAbove(chance, 0.5)).toBeNull();
  });

  it("share a slider that goes there and back", () => {
    const scale = sliderScale(60);
    for (const z of [1, 3, 12.5, 60]) expect(scale.toZ(scale.toAt(z))).toBeCloseTo(z, 1);
    expect(scale.toAt(1000)).toBe(1);
  });
});

const layout = layOut(membersOf(HEADS, []), 600, 400);
const node = (id: string) => layout.nodes.find((each) => each.id === id)!;

describe("layout", () => {
  it("puts later layers higher, heads in order, all inside", () => {
    expect(node("L1H0").y).toBeLessThan(node("L0H0").y);
    expect(node("L0H0").x).toBeLessThan(node("L0H1").x);
    for (const each of layout.nodes) {
      expect(each.x - each.width / 2).toBeGreaterThan(0);
      expect(each.x + each.width / 2).toBeLessThan(layout.width);
      expect(each.y + each.height / 2).toBeLessThan(layout.height);
    }
  });

  it("does not let 144 heads overlap at 800 px", () => {
    const many = Array.from({ length: 144 }, (_, at) => `L${Math.floor(at / 12)}H${at % 12}`);
    const { nodes } = layOut(membersOf(many, []), 800, 600);
    for (let at = 1; at < nodes.length; at++) {
      const [left, right] = [nodes[at - 1]!, nodes[at]!];
      if (left.y === right.y) expect(right.x - left.x).toBeGreaterThan(left.width);
      else expect(left.y - right.y).toBeGreaterThan(left.height);
    }
  });

  it("widens lines with strength", () => {
    expect(levelOf(3, 3, 60)).toBe(0);
    expect(levelOf(60, 3, 60)).toBe(WIDTHS.length - 1);
    expect(levelOf(5, 3, 60)).toBeLessThan(levelOf(30, 3, 60));
    expect(levelOf(3, 3, 3)).toBe(WIDTHS.length - 1);
  });

  it("writes into a box what fits", () => {
    const shown = (width: number) =>
      graphOf(layOut(membersOf(HEADS, []), width, 400), [merged(edges, membersOf(HEADS, []))], 3, { kindOf: () => "induction" });
    expect(shown(600).nodes.map(({ label, lines }) => [label, ...lines])[0]).toEqual(["L0H0", "induction"]);
    expect(shown(110).nodes.map(({ label, name, lines }) => [label, name, ...lines])[0]).toEqual(["H0", "L0H0"]);
    expect(shown(600).edges).toHaveLength(12);
  });
});

describe("groups", () => {
  it("come back from the URL, without what is not a group", () => {
    expect(printGroups(parseGroups("L0H0+L0H1,L1H0+L9H9", HEADS))).toBe("L0H0+L0H1");
    expect(parseGroups("L0H0+L1H0", HEADS)).toEqual([]);
  });

  it("are made and taken apart by the same key", () => {
    const made = regroup([], ["L0H1", "L0H0", "L1H0"]);
    expect(made).toEqual([["L0H0", "L0H1"]]);
    expect(regroup(made, ["L0H0", "L0H1"])).toEqual([]);
  });

  it("are one node with the strongest edge of each kind", () => {
    const members = membersOf(HEADS, [["L0H0", "L0H1"]]);
    expect(members.map((each) => each.label)).toEqual(["L0H0,1", "L1H0", "L1H1"]);
    const drawn = merged(edges, members);
    expect(drawn).toHaveLength(6);
    const v: GraphEdge = drawn.find((each) => each.kind === "v" && each.to === "L1H1")!.edge;
    expect(v.writer).toBe("L0H1");
    expect(drawn.every((each) => each.count === 2)).toBe(true);
  });
});

describe("the ends of the graph", () => {
  const found = endEdges({
    note: "",
    edges: [
      { edge: "embed→L0H0.k", score: 0.4, excess: 0.3, z: 50, p: 1e-6 },
      { edge: "L1H0→logits", score: 0.2, excess: 0.1, z: 9, p: 1e-6 },
    ],
  } as unknown as EmbedAndLogitEdges);
  const members = [...membersOf(HEADS, []), ...endMembers(2)];
  const layout = layOut(members, 600, 500);
  const node = (id: string) => layout.nodes.find((each) => each.id === id)!;

  it("are edges with a kind, a name and a head", () => {
    expect(found.map(edgeName)).toEqual(["embed→L0H0.k", "L1H0→logits"]);
    expect(found.map(headOfEnd)).toEqual(["L0H0", "L1H0"]);
    expect(edges.map(headOfEnd).every((head) => head === null)).toBe(true);
  });

  it("stand below the first layer and above the last, as wide as the graph, with edges straight to them", () => {
    expect(node("embed").y).toBeGreaterThan(node("L0H0").y);
    expect(node("logits").y).toBeLessThan(node("L1H0").y);
    const drawn = merged(found, members);
    expect(drawn.map(({ from, to }) => [from, to])).toEqual([["embed", "L0H0"], ["L1H0", "logits"]]);
    for (const head of ["L0H0", "L0H1"]) {
      const curve = curveBetween(node("embed"), node(head), "k");
      expect(Math.abs(curve.from.x - curve.to.x)).toBeLessThan(1);
    }
  });
});

describe("lines by construction", () => {
  it("lead from every head to the logits, where there are few heads", () => {
    const members = [...membersOf(HEADS, []), ...endMembers(2)];
    const { structure } = graphOf(layOut(members, 600, 500), [], 3, { kindOf: () => "" });
    expect(structure).toHaveLength(HEADS.length);
    const many = Array.from({ length: 60 }, (_, i) => `L${Math.floor(i / 10)}H${i % 10}`);
    expect(graphOf(layOut([...membersOf(many, []), ...endMembers(6)], 600, 500), [], 3, { kindOf: () => "" }).structure).toEqual([]);
  });
});

describe("edges of a deep model", () => {
  const heads = Array.from({ length: 8 }, (_, layer) => Array.from({ length: 9 }, (_, head) => `L${layer}H${head}`)).flat();
  const members = membersOf(heads, []);
  const drawn = (pairs: readonly (readonly [string, string])[]) =>
    pairs.map(([from, to]) => ({ from, to, kind: "v" as const, count: 1, edge: { writer: from, reader: to, kind: "v" as const, score: 1, excess: 1, z: 9, p: 0 } }));
  const middles = (...pairs: readonly (readonly [string, string])[]) =>
    graphOf(layOut(members, 900, 600), [drawn(pairs)], 3, { kindOf: () => "" }).edges.map(({ curve }) => Math.round(middleOf(curve).x));

  it("run in bundles where they skip layers", () => {
    const [first, second, third] = middles(["L0H0", "L4H3"], ["L0H1", "L5H2"], ["L0H8", "L6H8"]);
    expect(first).toBe(second);
    expect(third).not.toBe(first);
  });
  it("keep their own way to the next layer", () => {
    const [first, second] = middles(["L0H0", "L1H3"], ["L0H1", "L1H3"]);
    expect(first).not.toBe(second);
  });
  it("are faint where they are there by construction", () => {
    const layout = layOut([...members, ...endMembers(8)], 900, 600);
    const { edges } = graphOf(layout, [drawn([["L0H0", "L4H3"]]), drawn([["embed", "L4H3"]])], 3, { kindOf: () => "" });
    expect(edges.map(({ faint }) => faint)).toEqual([false, true]);
  });
});
