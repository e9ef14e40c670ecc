/** Names of edges between heads, the same as in Python (`pathsum.names`): "L0H7→L1H4.k". */

export type Side = "q" | "k" | "v";

export interface HeadEdge {
  readonly writer: string;
  readonly reader: string;
  readonly kind: Side;
}

export const edgeName = (edge: { writer: string; reader: string; kind: string }): string =>
  `${edge.writer}→${edge.reader}.${edge.kind}`;

/** The heads of an edge by its name; null if it does not join two heads. */
export function parseEdge(name: string): HeadEdge | null {
  const found = /^(L\d+H\d+)→(L\d+H\d+)\.([qkv])$/.exec(name);
  return found ? { writer: found[1]!, reader: found[2]!, kind: found[3] as Side } : null;
}
