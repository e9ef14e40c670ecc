/**
 * Groups: heads of one layer that are drawn as one node. In the URL "L0H1+L0H2,L1H0+L1H3".
 * Between two nodes the strongest edge of each kind is drawn, with how many it stands for.
 */
import { layerOf } from "../../lib/names";
import type { GraphEdge, Kind } from "./edges";
import type { Member } from "./layout";

type Groups = readonly (readonly string[])[];

export function parseGroups(text: string | undefined, heads: readonly string[]): Groups {
  if (!text) return [];
  const taken = new Set<string>();
  const groups: string[][] = [];
  for (const part of text.split(",")) {
    const own = part.split("+").filter((head) => heads.includes(head) && !taken.has(head));
    const first = own[0];
    if (first === undefined) continue;
    const together = own.filter((head) => layerOf(head) === layerOf(first));
    if (together.length < 2) continue;
    together.forEach((head) => taken.add(head));
    groups.push(together);
  }
  return groups;
}

export function printGroups(groups: Groups): string | undefined {
  return groups.length === 0 ? undefined : groups.map((group) => group.join("+")).join(",");
}

/**
 * What pressing G does to the pinned heads: those of a layer become one group; if they are
 * exactly a group already, it is taken apart.
 */
export function regroup(groups: Groups, pinned: readonly string[]): Groups {
  const layers = new Map<number, string[]>();
  for (const head of pinned) layers.set(layerOf(head), [...(layers.get(layerOf(head)) ?? []), head]);
  let next: (readonly string[])[] = [...groups];
  for (const own of layers.values()) {
    const same = next.find((group) => group.length === own.length && own.every((h) => group.includes(h)));
    next = next
      .map((group) => group.filter((head) => !own.includes(head)))
      .filter((group) => group.length > 1);
    if (!same && own.length > 1) next.push([...own].sort(byPlace));
  }
  return next;
}

function byPlace(a: string, b: string): number {
  return a.localeCompare(b, "en", { numeric: true });
}

/** The nodes to draw: each group where its first head would be, every other head by itself. */
export function membersOf(heads: readonly string[], groups: Groups): Member[] {
  return heads.flatMap((head) => {
    const group = groups.find((each) => each.includes(head));
    if (!group) return [{ id: head, label: head, heads: [head], layer: layerOf(head) }];
    if (group[0] !== head) return [];
    const places = group.map((each) => each.replace(/^L\d+H/, "")).join(",");
    return [{ id: head, label: `L${layerOf(head)}H${places}`, heads: group, layer: layerOf(head) }];
  });
}

export interface DrawnEdge {
  readonly from: string;
  readonly to: string;
  readonly kind: Kind;
  /** The strongest of those it stands for. */
  readonly edge: GraphEdge;
  readonly count: number;
}

/** Edges between nodes; expects the strongest edges first, as `allEdges` gives them. */
export function merged(edges: readonly GraphEdge[], members: readonly Member[]): DrawnEdge[] {
  const home = new Map(members.flatMap((each) => each.heads.map((head) => [head, each.id] as const)));
  const found = new Map<string, { edge: DrawnEdge; count: number }>();
  for (const edge of edges) {
    const [from, to] = [home.get(edge.writer), home.get(edge.reader)];
    if (from === undefined || to === undefined) continue;
    const key = `${from} ${to} ${edge.kind}`;
    const known = found.get(key);
    if (known) known.count += 1;
    else found.set(key, { edge: { from, to, kind: edge.kind, edge, count: 1 }, count: 1 });
  }
  return [...found.values()].map(({ edge, count }) => ({ ...edge, count }));
}

/** The embedding below all heads and the logits above them. */
export const endMembers = (layers: number): readonly Member[] => [
  { id: "embed", label: "embedding", heads: ["embed"], layer: -1, wide: true },
  { id: "logits", label: "logits", heads: ["logits"], layer: layers, wide: true },
];
