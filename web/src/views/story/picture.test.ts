import { describe, expect, it } from "vitest";
import type { Graph, Story } from "../../generated/answers";
import { CircuitGraph } from "../../lib/circuit";
import { span } from "../../engine/sentence";
import { arcsOf, claimOf, drawnIntoLogit, litBy, readOf, smallCircuit, switches, writersOf } from "./picture";

const node = (name: string, value = 1) => ({ node: name, value, attended: null, note: "" });
const edge = (name: string, share: number, effect: number | null = share) => ({ edge: name, exact: share, unit: "logits", share, effect });

/** A prediction at 9 through L1H0, which reads what two heads wrote at 4, one of them faintly. */
const answer = {
  position: 9,
  token: 3,
  total: 10,
  nodes: ["logits@9", "L1H0@9", "L0H0@4", "L0H1@4", "L0H2@4", "embed@4", "embed@3", "embed@9", "pos@1@4"].map((name) => node(name)),
  edges: [
    edge("L1H0@9→logits@9", 8),
    edge("embed@9→logits@9", 1),
    edge("embed@4→L1H0@9.v", 7),
    edge("L0H0@4→L1H0@9.k", 6, 5),
    edge("L0H1@4→L1H0@9.k", 5, 4),
    edge("L0H2@4→L1H0@9.k", 4.5, 1),
    edge("pos@1@4→L1H0@9.k", 9, null),
    edge("embed@3→L0H0@4.v", 0.2),
  ],
  left_out: [],
} as unknown as Graph;
const graph = new CircuitGraph(answer);
const reason = (edge: string, wrote: number | null) => ({ edge, share: 1, effect: 1, weight: 0, probability: 0, wrote });
const reasons = [reason("L0H1@4→L1H0@9.k", 3), reason("L0H0@4→L1H0@9.k", 3), reason("embed@9→L1H0@9.q", null)];
const story = { position: 9, head: "L1H0", source: 4, reasons, writer: "L0H0", heads: ["L1H0"] } as unknown as Story;

describe("the small circuit", () => {
  it("joins the strongest edges, without positions and faint edges", () => {
    expect(smallCircuit(graph).map(({ id }) => id)).toEqual([
      "L1H0@9→logits@9",
      "embed@4→L1H0@9.v",
      "L0H0@4→L1H0@9.k",
      "L0H1@4→L1H0@9.k",
      "L0H2@4→L1H0@9.k",
      "embed@9→logits@9",
    ]);
  });
  it("has no more nodes than fit", () => {
    const edges = smallCircuit(graph, 3);
    expect(new Set(edges.flatMap(({ from, to }) => [from, to])).size).toBe(3);
  });
  it("has the head of the story, however faint, and what it moves", () => {
    const faint = [edge("L1H1@9→logits@9", 0.3), edge("embed@3→L1H1@9.v", 0.2)];
    const wide = new CircuitGraph({ ...answer, nodes: [...answer.nodes, node("L1H1@9")], edges: [...answer.edges, ...faint] } as unknown as Graph);
    const drawn = smallCircuit(wide, 7, "L1H1").map(({ id }) => id);
    expect(drawn).toEqual(expect.arrayContaining(["L1H1@9→logits@9", "embed@3→L1H1@9.v", "L1H0@9→logits@9"]));
    expect(smallCircuit(wide).map(({ id }) => id)).not.toContain("L1H1@9→logits@9");
  });
  it("states how much of the logit is drawn", () => {
    expect(drawnIntoLogit(graph, smallCircuit(graph))).toBeCloseTo(9);
    expect(drawnIntoLogit(graph, smallCircuit(graph, 2))).toBeCloseTo(8);
  });
});

describe("the handles", () => {
  it("name the parts of one read, positions left out", () => {
    expect(readOf(graph, story, "key").map(({ id, component, position }) => [id, component, position])).toEqual([
      ["L0H0@4→L1H0@9.k", "L0H0", 4],
      ["L0H1@4→L1H0@9.k", "L0H1", 4],
      ["L0H2@4→L1H0@9.k", "L0H2", 4],
    ]);
    expect(readOf(graph, story, "query")).toEqual([]);
  });
  it("light the read, and the value as far as the logit", () => {
    const drawn = smallCircuit(graph);
    expect(litBy(drawn, story, "key")).toHaveLength(3);
    expect(litBy(drawn, story, "value")).toEqual(["L1H0@9→logits@9", "embed@4→L1H0@9.v"]);
  });
});

describe("the writers", () => {
  it("are the heads among the reasons", () => {
    expect(writersOf(story)).toEqual(["L0H0", "L0H1"]);
    expect(writersOf({ ...story, reasons: [] })).toEqual([]);
  });
  it("and the copying heads can be switched off", () => {
    expect(switches(story, ["L0H0", "L0H1"])).toEqual(["L0H0", "L0H1", "L1H0"]);
  });
  it("share a label if they wrote at several tokens", () => {
    const [first, second] = story.reasons as [Story["reasons"][0], Story["reasons"][0]];
    const arcs = arcsOf({ ...story, reasons: [first, { ...second, wrote: 2 }] }, new Set());
    expect(arcs.map(({ from, label }) => [from, label])).toEqual([
      [2, "L0H0, L0H1"],
      [3, ""],
      [4, "L1H0"],
    ]);
  });
  it("lead to the query if they wrote there", () => {
    const [first, second] = story.reasons as [Story["reasons"][0], Story["reasons"][0]];
    const query = (wrote: number) => ({ ...second, edge: "L0H1@9→L1H0@9.q", wrote });
    expect(arcsOf({ ...story, reasons: [first, query(7)] }, new Set()).map(({ from, to }) => [from, to])).toEqual([[3, 4], [7, 9], [4, 9]]);
    // Its own token needs no arrow.
    expect(arcsOf({ ...story, reasons: [first, query(9)] }, new Set())).toHaveLength(2);
  });
  it("have an arrow until they are off", () => {
    expect(arcsOf(story, new Set()).map(({ from, to, label }) => [from, to, label])).toEqual([
      [3, 4, "L0H0, L0H1"],
      [4, 9, "L1H0"],
    ]);
    expect(arcsOf(story, new Set(["L0H0"]))[0]?.label).toBe("L0H1");
    expect(arcsOf(story, new Set(["L1H0"]))).toHaveLength(1);
  });
});

describe("the claim of a sentence", () => {
  const words = (...pieces: string[]) => claimOf(pieces.map((text) => span(text))).map(({ text }) => text);
  it("has neither the opening nor the reasons", () => {
    expect(words("After “er”, ", "99%", ". This is ", "induction", ": it attends to “man”, because ", "L0H3", " wrote it.")).toEqual([
      "This is ",
      "induction",
      ": it attends to “man”",
    ]);
    expect(words("After “er”. MLPs write most", " of the logit. The circuit explains less.")).toEqual(["MLPs write most", " of the logit"]);
  });
  it("is the opening where nothing follows it", () => {
    expect(words("After “er”", " 99%.")).toEqual(["After “er”", " 99%."]);
  });
});
