/**
 * The circuit of a deep model in few rows: bands of layers. In a band, the MLPs of a position are one node, and so are
 * heads of a position that attend to the same source. Readers group pinned nodes under a name; in the URL
 * "names:L0H1@12+L0H3@12". A group that is open is drawn as its members.
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

/** Nodes that the reader grouped. */
export interface Named {
  readonly name: string;
  readonly ids: readonly string[];
}

/** Groups from a link; a node is in one of them. */
export function namedFrom(texts: readonly string[]): Named[] {
  const taken = new Set<string>();
  return texts.flatMap((text) => {
    const [name = "", list = ""] = text.split(":", 2);
    const ids = list.split("+").filter((id) => id !== "" && !taken.has(id));
    ids.forEach((id) => taken.add(id));
    return name && ids.length > 1 ? [{ name, ids }] : [];
  });
}

/** The groups with another, as texts for the link: nodes leave the groups that they were in. */
export const withNamed = (groups: readonly Named[], { name, ids }: Named): string[] =>
  [...groups.map((each) => ({ ...each, ids: each.ids.filter((id) => !ids.includes(id)) })), { name: name.replace(/[,:+]/g, " ").trim() || "group", ids }]
    .filter((each) => each.ids.length > 1)
    .map((each) => `${each.name}:${each.ids.join("+")}`);

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

/** The id of a group that the reader named. */
export const namedId = (name: string): string => `group:${name}`;

export function fold(nodes: readonly Node[], edges: readonly Edge[], bands: readonly Band[], open: ReadonlySet<string>, named: readonly Named[] = [], all = edges): Folded {
  const own = named.map(({ name, ids }) => ({ name, members: nodes.filter(({ id }) => ids.includes(id)) })).filter(({ members }) => members.length > 1);
  // Where every layer has its own row, nothing is folded by itself.
  const isFlat = bands.every(({ first, last }) => first === last);
  if (isFlat && own.length === 0) return { nodes, edges, counts: new Map() };
  const together = new Map<string, Node[]>(own.map(({ name, members }) => [namedId(name), members]));
  const taken = new Set(own.flatMap(({ members }) => members.map(({ id }) => id)));
  for (const node of isFlat ? [] : nodes) {
    if (taken.has(node.id)) continue;
    const band = bands.find(({ first, last }) => node.layer >= first && node.layer <= last);
    const role = node.component.startsWith("mlp") ? "MLPs" : node.isHead ? `heads←${node.attended?.source ?? ""}` : null;
    if (!band || role === null) continue;
    const id = `group:${role}@${node.position}:${nameOf(band)}`;
    together.set(id, [...(together.get(id) ?? []), node]);
  }
  const groups = [...together].filter(([id, members]) => members.length > 1 && !open.has(id)).map(([id, members]) => groupOf(id, members, all, own.find(({ name }) => namedId(name) === id)?.name));
  const home = new Map(groups.flatMap((group) => group.members.map((member) => [member.id, group.id] as const)));
  return {
    nodes: [...nodes.filter((node) => !home.has(node.id)), ...groups],
    ...mergeEdges(edges, home),
  };
}

/** One node for several, where the last of them is; what they pass to one another counts once. */
function groupOf(id: string, members: readonly Node[], edges: readonly Edge[], name?: string): Group {
  const [first, last] = [members[0]!, members[members.length - 1]!];
  const within = new Set(members.map((member) => member.id));
  const passed = edges.filter(({ from, to }) => within.has(from) && within.has(to));
  const isMlps = first.component.startsWith("mlp");
  return {
    ...(name === undefined ? first : last),
    id,
    component: name !== undefined ? name : isMlps ? `${first.component}–${last.component.replace("mlp", "")}` : plural(members.length, "head"),
    value: members.reduce((sum, { value }) => sum + value, 0) - passed.reduce((sum, { share }) => sum + share, 0),
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
