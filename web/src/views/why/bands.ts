/**
 * The circuit of a deep model in few rows: bands of layers. In a band, the MLPs of a position are one node, and so are
 * heads of a position that attend to the same source. A group that is open is drawn as its members.
 */
import type { Edge, Node } from "../../lib/circuit";
import { plural } from "../../lib/format";

export interface Band {
  readonly first: number;
  readonly last: number;
}

/** Several nodes drawn as one. */
export interface Group extends Node {
  readonly members: readonly Node[];
}

export interface Folded {
  readonly nodes: readonly Node[];
  readonly edges: readonly Edge[];
  /** How many edges of the circuit a drawn edge stands for, where that is more than one. */
  readonly counts: ReadonlyMap<string, number>;
}

export const isGroup = (node: Node): node is Group => "members" in node;

/** The layers in use, in at most so many bands of about as many layers each. */
export function bandsOf(layers: readonly number[], most: number): Band[] {
  const used = [...new Set(layers)].filter((layer) => layer >= 0 && layer < Infinity).sort((a, b) => a - b);
  const count = Math.min(used.length, Math.max(1, most));
  return Array.from({ length: count }, (_, i) => {
    const own = used.slice(Math.ceil((i * used.length) / count), Math.ceil(((i + 1) * used.length) / count));
    return { first: own[0]!, last: own[own.length - 1]! };
  });
}

const nameOf = ({ first, last }: Band): string => (first === last ? `${first}` : `${first}–${last}`);

/** A band in words, for its row. */
export const bandName = (band: Band): string => `${band.first === band.last ? "layer " : "L"}${nameOf(band)}`;

/** Whether the id is that of a group; those that are open are in the link. */
export const isGroupId = (id: string): boolean => id.startsWith("group:");

export function fold(nodes: readonly Node[], edges: readonly Edge[], bands: readonly Band[], open: ReadonlySet<string>): Folded {
  // Where every layer has its own row, nothing is folded.
  if (bands.every(({ first, last }) => first === last)) return { nodes, edges, counts: new Map() };
  const together = new Map<string, Node[]>();
  for (const node of nodes) {
    const band = bands.find(({ first, last }) => node.layer >= first && node.layer <= last);
    const role = node.component.startsWith("mlp") ? "MLPs" : node.isHead ? `heads←${node.attended?.source ?? ""}` : null;
    if (!band || role === null) continue;
    const id = `group:${role}@${node.position}:${nameOf(band)}`;
    together.set(id, [...(together.get(id) ?? []), node]);
  }
  const groups = [...together].filter(([id, members]) => members.length > 1 && !open.has(id)).map(([id, members]) => groupOf(id, members));
  const home = new Map(groups.flatMap((group) => group.members.map((member) => [member.id, group.id] as const)));
  return {
    nodes: [...nodes.filter((node) => !home.has(node.id)), ...groups],
    ...mergeEdges(edges, home),
  };
}

function groupOf(id: string, members: readonly Node[]): Group {
  const [first, last] = [members[0]!, members[members.length - 1]!];
  const isMlps = first.component.startsWith("mlp");
  return {
    ...first,
    id,
    component: isMlps ? `${first.component}–${last.component.replace("mlp", "")}` : plural(members.length, "head"),
    value: members.reduce((sum, { value }) => sum + value, 0),
    isHead: false,
    members,
  };
}

/** Edges between what is drawn: those of one kind between the same two are one, with the sum of their shares. */
function mergeEdges(edges: readonly Edge[], home: ReadonlyMap<string, string>): Pick<Folded, "edges" | "counts"> {
  const found = new Map<string, Edge[]>();
  for (const edge of edges) {
    const [from, to] = [home.get(edge.from) ?? edge.from, home.get(edge.to) ?? edge.to];
    if (from === to) continue;
    const key = `${from}→${to}.${edge.kind}`;
    found.set(key, [...(found.get(key) ?? []), { ...edge, from, to }]);
  }
  const sum = (some: readonly Edge[], of: "exact" | "share") => some.reduce((total, edge) => total + edge[of], 0);
  const merged = [...found].map(([id, some]) =>
    some.length === 1 ? some[0]! : { ...some[0]!, id, exact: sum(some, "exact"), share: sum(some, "share"), effect: null },
  );
  return { edges: merged, counts: new Map([...found].flatMap(([id, some]) => (some.length > 1 ? [[id, some.length]] : []))) };
}
