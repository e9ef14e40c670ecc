import { describe, expect, it } from "vitest";
import type { Edge, Node } from "../../lib/circuit";
import { bandName, bandsOf, fold, isGroup, namedFrom, withNamed } from "./bands";

const node = (id: string, layer: number, value: number, source?: number): Node => ({
  ...{ id, layer, value, note: "" },
  component: id.slice(0, id.indexOf("@")),
  position: Number(id.slice(id.indexOf("@") + 1)),
  isHead: id.startsWith("L") && id.includes("H"),
  attended: source === undefined ? null : { source, weight: 1, score: 0, contrast: 0, rival: null, uniform: 0, effect: null, error: null } as unknown as Node["attended"],
});
const edge = (from: string, to: string, share: number, kind: Edge["kind"] = "v"): Edge => ({
  ...{ id: `${from}→${to}.${kind}`, from, to, kind, share, exact: 2 * share, unit: "logits", effect: share },
});

const NODES = [
  node("embed@5", -1, 1),
  ...[node("L0H1@9", 0, 1, 5), node("mlp0@9", 0, 2), node("L1H2@9", 1, 3, 5), node("L1H3@9", 1, 4, 2), node("mlp1@9", 1, 5)],
  ...[node("L2H0@9", 2, 6, 5), node("mlp3@9", 3, 7), node("logits@9", Infinity, 8)],
];
const EDGES = [
  ...[edge("embed@5", "L0H1@9", 1), edge("embed@5", "L1H2@9", 2), edge("embed@5", "L1H3@9", 4)],
  ...[edge("L0H1@9", "mlp0@9", 1, "u"), edge("mlp0@9", "mlp1@9", 3, "u"), edge("mlp1@9", "logits@9", 5), edge("mlp0@9", "logits@9", -2)],
];
const BANDS = bandsOf(NODES.map(({ layer }) => layer), 2);

describe("bands of layers", () => {
  it("hold the layers in use, about as many each", () => {
    expect(BANDS).toEqual([{ first: 0, last: 1 }, { first: 2, last: 3 }]);
    expect(bandsOf([4, 9, 4, 30, 11, -1, Infinity], 2).map(bandName)).toEqual(["L4–9", "L11–30"]);
    expect(bandsOf([3, 7], 5).map(bandName)).toEqual(["layer 3", "layer 7"]);
    expect(bandsOf([-1, Infinity], 4)).toEqual([]);
  });

  it("join MLPs of a position, and heads of a position that attend to the same source", () => {
    const { nodes } = fold(NODES, EDGES, BANDS, new Set());
    const groups = nodes.filter(isGroup);
    expect(groups.map(({ members }) => members.map(({ id }) => id))).toEqual([["L0H1@9", "L1H2@9"], ["mlp0@9", "mlp1@9"]]);
    expect(groups.map(({ component, value }) => [component, value])).toEqual([["2 heads", 4], ["mlp0–1", 4]]);
    expect(nodes).toHaveLength(NODES.length - 2);
  });

  it("keep every share, but for edges within a group", () => {
    const { edges, counts } = fold(NODES, EDGES, BANDS, new Set());
    const sum = (some: readonly Edge[]) => some.reduce((total, { share }) => total + share, 0);
    expect(sum(edges)).toBe(sum(EDGES) - 3);
    expect([...counts.values()]).toEqual([2, 2]);
    expect(edges.find(({ to }) => to === "logits@9")).toMatchObject({ share: 3, exact: 6, effect: null });
    // One that stands for itself keeps its name, by which it is cut.
    expect(edges.map(({ id }) => id)).toContain("embed@5→L1H3@9.v");
  });

  it("draw the members of a group that is open, and fold nothing where each layer has its row", () => {
    const closed = fold(NODES, EDGES, BANDS, new Set()).nodes.filter(isGroup).map(({ id }) => id);
    expect(fold(NODES, EDGES, BANDS, new Set(closed)).nodes).toEqual(NODES);
    expect(fold(NODES, EDGES, bandsOf([0, 1, 2, 3], 9), new Set()).nodes).toBe(NODES);
  });

  it("hold groups that the reader named, in every model, until they are opened", () => {
    const named = namedFrom(["movers:L1H2@9+mlp1@9+mlp0@9"]);
    const { nodes, edges } = fold(NODES, EDGES, bandsOf([0, 1, 2, 3], 9), new Set(), named);
    const [own, ...others] = nodes.filter(isGroup);
    // Where the last of them is; what they pass to one another counts once.
    expect([own!.component, own!.layer, own!.value, others.length]).toEqual(["movers", 1, 3 + 5 + 2 - 3, 0]);
    expect(edges.filter(({ from, to }) => from === own!.id && to === own!.id)).toEqual([]);
    expect(fold(NODES, EDGES, bandsOf([0, 1, 2, 3], 9), new Set([own!.id]), named).nodes).toEqual(NODES);
    // In a band, the others are grouped by their role.
    expect(fold(NODES, EDGES, BANDS, new Set(), namedFrom(["a:L1H2@9+L2H0@9"])).nodes.filter(isGroup).map(({ component }) => component)).toEqual(["a", "mlp0–1"]);
  });

  it("keep a node in one group, and survive a link", () => {
    const first = withNamed([], { name: "a,b:c", ids: ["L0H1@9", "L1H2@9", "mlp0@9"] });
    expect(first).toEqual(["a b c:L0H1@9+L1H2@9+mlp0@9"]);
    expect(withNamed(namedFrom(first), { name: "d", ids: ["L0H1@9", "L1H2@9"] })).toEqual(["d:L0H1@9+L1H2@9"]);
    expect(namedFrom(["d:L0H1@9+L1H2@9", "e:L0H1@9+L1H3@9", ":x+y", "f"])).toEqual([{ name: "d", ids: ["L0H1@9", "L1H2@9"] }]);
  });
});
