import { describe, expect, it } from "vitest";
import type { Graph as Circuit } from "../../generated/answers";
import { layOut } from "./layout";
import { lastMove, moveText } from "../paths/reasons";
import type { ListedPath } from "../paths/tree";
import { CircuitGraph } from "../../lib/circuit";

const attended = (source: number) => ({ source, weight: 0.9, score: 1, contrast: 1, rival: null, uniform: 0, effect: 5, error: 0 });
const node = (name: string, value: number, source?: number) => ({
  node: name,
  text: "",
  value,
  attended: source === undefined ? null : attended(source),
  note: "",
});
const edge = (name: string, share: number, effect: number | null = share) => ({
  edge: name,
  exact: share,
  unit: "logits" as const,
  share,
  effect,
});

const answer = {
  position: 9,
  token: 3,
  total: 10,
  probability: 0.5,
  nodes: [
    node("logits@9", 10),
    node("L1H0@9", 8, 5),
    node("L0H3@5", 6, 4),
    node("embed@5", 7),
    node("embed@4", 6),
    node("embed@9", 1),
    node("pos@0@4", 2),
  ],
  edges: [
    edge("L1H0@9→logits@9", 8),
    edge("embed@9→logits@9", 0.5),
    edge("embed@5→L1H0@9.v", 7),
    edge("L0H3@5→L1H0@9.k", 6, 1),
    edge("embed@9→L1H0@9.q", -3),
    edge("embed@4→L0H3@5.v", 6),
    edge("pos@0@4→L0H3@5.k", 2, null),
  ],
  left_out: [{ node: "L1H0@9", kind: "v", exact: 1, share: 1, count: 12 }],
} as unknown as Circuit;
const graph = new CircuitGraph(answer);

describe("the circuit of a prediction", () => {
  it("has nodes at a layer and a position", () => {
    const at = (id: string) => [graph.nodes.get(id)?.component, graph.nodes.get(id)?.position, graph.nodes.get(id)?.layer];
    expect(at("pos@0@4")).toEqual(["pos@0", 4, -1]);
    expect(at("L0H3@5")).toEqual(["L0H3", 5, 0]);
    expect(at("logits@9")).toEqual(["logits", 9, Infinity]);
    expect(graph.inputs("L1H0@9").map((each) => each.kind)).toEqual(["v", "k", "q"]);
    expect(graph.leftOut("L1H0@9")).toEqual([{ kind: "v", share: 1, count: 12 }]);
  });

  it("shows strong edges, and all inputs of nodes that are open", () => {
    const names = (open: string[]) => graph.shown(0.1, new Set(open)).map((each) => each.id);
    expect(names([])).not.toContain("embed@9→logits@9");
    expect(names(["logits@9"])).toContain("embed@9→logits@9");
    expect(names([])).toHaveLength(6);
  });

  it("begins with smaller edges where few are large", () => {
    const into = (share: number, count: number, first = 0) =>
      Array.from({ length: count }, (_, i) => ({ edge: `mlp${first + i}@9→logits@9`, exact: share, unit: "logits", share, effect: null }));
    const one = answer.total / 100;
    const of = (...edges: object[]) => new CircuitGraph({ ...answer, edges } as unknown as Circuit);
    expect(of(...into(20 * one, 12), ...into(4 * one, 9, 20)).firstShare).toBe(0.1);
    expect(of(...into(20 * one, 3), ...into(4 * one, 9, 20)).firstShare).toBe(0.035);
    expect(of(...into(20 * one, 3)).firstShare).toBe(0.02);
  });

  it("says which lower head placed the attention", () => {
    expect(graph.top?.from).toBe("L1H0@9");
    const path = { source: "embed", heads: ["L1H0"], routes: { ways: [[5, 9]] } } as unknown as ListedPath;
    const move = lastMove(path, graph);
    expect(move && moveText(move, () => "ble")).toBe("L1H0 ← ble@5, attends there because of L0H3 (K)");
    const elsewhere = { ...path, routes: { ways: [[2, 9]] } } as unknown as ListedPath;
    expect(lastMove(elsewhere, graph)?.reason).toBeNull();
    expect(lastMove({ ...path, heads: [] }, graph)).toBeNull();
  });

  it("stands in columns of the positions that take part, rows of layers, nothing overlapping", () => {
    const token = (position: number) => `token${position}`;
    for (const width of [280, 1000]) {
      const layout = layOut(graph, { edges: graph.shown(0, new Set()), room: { width, height: 400 }, token, predicted: "ble", off: new Set(), open: new Set() });
      expect(layout.columns?.map((column) => column.position)).toEqual([4, 5, 9]);
      expect(layout.rowNames).toEqual(["tokens", "layer 0", "layer 1", "logit"]);
      expect(layout.edges).toHaveLength(7);
      const boxes = layout.nodes;
      for (const a of boxes) {
        expect(a.x - a.width / 2).toBeGreaterThan(0);
        expect(a.x + a.width / 2).toBeLessThan(layout.width);
        for (const b of boxes) {
          if (a !== b && a.y === b.y) expect(Math.abs(a.x - b.x)).toBeGreaterThanOrEqual((a.width + b.width) / 2);
        }
      }
    }
  });
});
