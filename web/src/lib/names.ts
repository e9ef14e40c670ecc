/**
 * Names of heads, paths and edges: the grammar of `pathsum.base`, the same in Python, in JSON and in URLs.
 *
 *     head  L1H4      path  embed→L0H7→L1H4      edge  L0H7→L1H4.k | embed→mlp3 | L1H4→logits
 *
 * Where "→" is hard to type, ">" and "->" are accepted. What is not a name parses to null.
 */
import type { UrlState } from "./page/state.svelte";

export type Side = "q" | "k" | "v" | "u" | "g";

export interface Path {
  readonly source: string;
  /** Bottom to top. */
  readonly heads: readonly string[];
}

export interface Edge {
  /** A head or a source. */
  readonly writer: string;
  /** A head, an MLP such as "mlp3", or "logits". */
  readonly reader: string;
  /** Which read of a head; null for an MLP and for the logits. */
  readonly side: Side | null;
}

/** An edge between two heads. */
interface HeadEdge extends Edge {
  readonly side: Side;
}

const ARROW = "→";
const HEAD = /^L(\d+)H(\d+)$/;
const SOURCE = /^(?:embed|pos|bias_U|(mlp|bias)(\d+))$/;

const split = (text: string): string[] => text.split(/→|->|>/).map((part) => part.trim());

export function parseHead(text: string): { layer: number; head: number } | null {
  const found = HEAD.exec(text.trim());
  return found ? { layer: Number(found[1]), head: Number(found[2]) } : null;
}

/** The layer of a head; 0 for what is not a head. */
export const layerOf = (head: string): number => parseHead(head)?.layer ?? 0;

export function parsePath(text: string): Path | null {
  const [source = "", ...heads] = split(text);
  const found = SOURCE.exec(source);
  if (!found || heads.some((head) => !HEAD.test(head))) return null;
  if (source === "bias_U" && heads.length > 0) return null;
  // Data flows upwards: every head is in a later layer than what it reads.
  let below = found[2] === undefined ? -1 : Number(found[2]);
  for (const head of heads) {
    if (layerOf(head) <= below) return null;
    below = layerOf(head);
  }
  return { source, heads };
}

/** The paper's notation: patterns ⊗ weights. */
export function pathFormula({ source, heads }: Path): string {
  if (source === "bias_U") return "Id ⊗ b_U";
  const found = SOURCE.exec(source);
  const symbols: Readonly<Record<string, string>> = { embed: "W_E", pos: "W_pos" };
  const symbol = symbols[source] ?? `${found?.[1] === "mlp" ? "MLP" : "b"}[${found?.[2] ?? ""}]`;
  const patterns = [...heads].reverse().map((head) => `A[${head}]`);
  const circuits = heads.map((head) => `OV[${head}]`);
  return `${patterns.join("·") || "Id"} ⊗ ${[symbol, ...circuits, "W_U"].join("·")}`;
}

export const printEdge = ({ writer, reader, side }: Edge): string =>
  `${writer}${ARROW}${reader}${side === null ? "" : `.${side}`}`;

export function parseEdge(text: string): Edge | null {
  const [writer = "", read = "", ...more] = split(text);
  if (more.length > 0 || !(HEAD.test(writer) || SOURCE.test(writer))) return null;
  if (read === "logits" || /^mlp\d+$/.test(read)) return { writer, reader: read, side: null };
  const found = /^(L\d+H\d+)\.([qkv])$/.exec(read) ?? /^(mlp\d+)\.([ug])$/.exec(read);
  return found ? { writer, reader: found[1] as string, side: found[2] as Side } : null;
}

/** The edge between two heads of this name; null if it is another edge or none. */
export function parseHeadEdge(text: string): HeadEdge | null {
  const edge = parseEdge(text);
  return edge && edge.side !== null && HEAD.test(edge.writer) ? { ...edge, side: edge.side } : null;
}

/** The name of what a node or an edge is at all positions: "L0H3@4→L1H0@9.k" is one of "L0H3→L1H0.k". */
export const everywhere = (name: string): string => name.replaceAll(/@\d+/g, "");

/** Whether this can be switched off in a model with these heads: a head, a source or an edge, anywhere or at positions. */
export function isSwitch(name: string, heads: readonly string[]): boolean {
  const plain = everywhere(name);
  if (HEAD.test(plain)) return heads.includes(plain);
  if (SOURCE.test(plain)) return true;
  const edge = parseEdge(plain);
  if (!edge) return false;
  const isThere = (end: string) => !HEAD.test(end) || heads.includes(end);
  const isUpward = !(HEAD.test(edge.writer) && HEAD.test(edge.reader)) || layerOf(edge.writer) < layerOf(edge.reader);
  return isThere(edge.writer) && isThere(edge.reader) && isUpward;
}

/** What stands below and above all heads in the graph of a model. */
export const ENDS: readonly string[] = ["embed", "logits"];

/** Keys of the URL that name heads and edges. */
export const NAME_KEYS = ["head", "node", "pinned", "pattern", "heads", "edge", "off", "pair"] as const;

/** In a link, in place of a head: all heads together, which a text does not open with. */
export const ALL_HEADS = "all";

/** Heads and edges that a link names and that a model with these heads does not have. */
export function unknownNames(url: Pick<UrlState, "get">, heads: readonly string[]): string[] {
  const has = (name: string): boolean => heads.includes(name) || (name === ALL_HEADS && name === url.get("head"));
  const named = [url.get("head"), url.get("pattern"), ...url.get("pinned"), ...url.get("heads"), url.get("node")];
  const found = named.filter((name) => name !== undefined && !has(name) && !(name === url.get("node") && ENDS.includes(name)));
  found.push(...url.get("off").filter((name) => !isSwitch(name, heads)));
  // The second of a pair may be a head of another model.
  const [left = "", right] = url.get("pair")?.split("~") ?? [];
  if (url.get("pair") !== undefined && (right === undefined || !has(left))) found.push(left);
  else if (right !== undefined && !HEAD.test(right)) found.push(right);
  const edge = parseHeadEdge(url.get("edge") ?? "");
  const isKnown = edge && has(edge.writer) && has(edge.reader) && layerOf(edge.writer) < layerOf(edge.reader);
  if (!isKnown) found.push(url.get("edge"));
  return [...new Set(found.filter((name) => name !== undefined))];
}
