/** Edges of the composition graph: which pass a threshold, and how many are expected under the null. */
import type { CompositionAnswer, EmbedAndLogitEdges } from "../../generated/answers";
import type { DataTable } from "../../lib/page/export";
import { ENDS, parseEdge, printEdge } from "../../lib/names";

export type Kind = "q" | "k" | "v";
export const KINDS: readonly Kind[] = ["q", "k", "v"];

export interface GraphEdge {
  readonly writer: string;
  readonly reader: string;
  readonly kind: Kind;
  readonly score: number;
  readonly excess: number;
  readonly z: number;
  readonly p: number;
}

/** How many edges the graph opens with: enough to see a circuit, few enough to read. */
const OPENING_EDGES = 40;
/** An edge below this is not worth showing on opening, however few edges there are. */
const LEAST_OPENING_Z = 3;

/** Every edge that can exist, strongest first. Impossible ones are NaN and left out. */
export function allEdges(answer: CompositionAnswer): GraphEdge[] {
  const each = answer.composition.heads.map((_, at) => at);
  return edgesAmong(answer, each.flatMap((row) => each.map((column) => [row, column] as const)));
}

/** The edges of one head, in and out, strongest first. */
export function edgesOf(answer: CompositionAnswer, head: string): GraphEdge[] {
  const own = answer.composition.heads.indexOf(head);
  if (own < 0) return [];
  const pairs = answer.composition.heads.flatMap((_, other) => [[own, other] as const, [other, own] as const]);
  return edgesAmong(answer, pairs);
}

function edgesAmong({ composition }: CompositionAnswer, pairs: (readonly [number, number])[]): GraphEdge[] {
  const { heads } = composition;
  const edges: GraphEdge[] = [];
  for (const kind of KINDS) {
    const scores = composition[kind];
    for (const [row, column] of pairs) {
      const at = row * heads.length + column;
      const z = scores.z.data[at] ?? Number.NaN;
      if (Number.isNaN(z)) continue;
      edges.push({
        writer: heads[row]!,
        reader: heads[column]!,
        kind,
        z,
        score: scores.score.data[at] ?? Number.NaN,
        excess: scores.excess.data[at] ?? Number.NaN,
        p: scores.p.data[at] ?? Number.NaN,
      });
    }
  }
  return edges.sort((a, b) => b.z - a.z);
}

/** The threshold with about `wanted` edges above it, and none that chance explains easily. */
export function openingThreshold(edges: readonly GraphEdge[], wanted = OPENING_EDGES): number {
  if (edges.length === 0) return LEAST_OPENING_Z;
  const last = edges[Math.min(wanted, edges.length) - 1]!;
  const strongest = edges[0]!.z;
  const threshold = Math.max(LEAST_OPENING_Z, Math.floor(last.z * 10) / 10);
  // A model with nothing above 3 still opens with its strongest edges.
  return strongest >= threshold ? threshold : Math.floor(last.z * 10) / 10;
}

export function above(edges: readonly GraphEdge[], z: number): GraphEdge[] {
  return edges.filter((edge) => edge.z >= z);
}

/** More lines than this are unreadable, and slow to draw. */
export const MOST_DRAWN = 500;

/**
 * Which of the edges above the threshold are drawn: the strongest, all of the selected heads, and the
 * one that is open.
 */
export function worthDrawing(
  shown: readonly GraphEdge[],
  heads: readonly string[],
  opened: GraphEdge | undefined,
): GraphEdge[] {
  const isSelected = (edge: GraphEdge) => heads.includes(edge.writer) || heads.includes(edge.reader);
  const drawn = shown.filter((edge, at) => at < MOST_DRAWN || isSelected(edge));
  return opened && !drawn.includes(opened) ? [...drawn, opened] : drawn;
}

export interface Chance {
  readonly total: number;
  readonly q: number;
  readonly k: number;
  readonly v: number;
  /** Beyond the last tabulated z the count is at most this. */
  readonly atMost: boolean;
}

/** How many edges chance gives above z: between tabulated values on a logarithmic scale. */
export function chanceAbove(table: CompositionAnswer["chance"], z: number): Chance | null {
  const first = table[0];
  const last = table[table.length - 1];
  if (!first || !last || z < first.z) return null;
  if (z >= last.z) return sum(last.q, last.k, last.v, z > last.z);
  const next = table.findIndex((row) => row.z > z);
  const [low, high] = [table[next - 1]!, table[next]!];
  const share = (z - low.z) / (high.z - low.z);
  const mix = (a: number, b: number) =>
    a > 0 && b > 0 ? Math.exp((1 - share) * Math.log(a) + share * Math.log(b)) : (1 - share) * a + share * b;
  return sum(mix(low.q, high.q), mix(low.k, high.k), mix(low.v, high.v), false);
}

function sum(q: number, k: number, v: number, atMost: boolean): Chance {
  return { total: q + k + v, q, k, v, atMost };
}

/** The slider's scale: positions 0…1 to z, logarithmic, so that weak and strong edges both fit. */
export function sliderScale(strongest: number): { toZ(at: number): number; toAt(z: number): number } {
  const [low, high] = [1, Math.max(2, strongest)];
  const span = Math.log(high / low);
  return {
    toZ: (at) => Number((low * Math.exp(span * at)).toPrecision(3)),
    toAt: (z) => Math.min(1, Math.max(0, Math.log(Math.max(z, low) / low) / span)),
  };
}

export const edgeName = (edge: { writer: string; reader: string; kind: Kind }): string =>
  printEdge({ writer: edge.writer, reader: edge.reader, side: edge.reader === "logits" ? null : edge.kind });

/** Edges from the embedding and into the logits, strongest first; what is moved on to the logits is a value. */
export function endEdges({ edges }: EmbedAndLogitEdges): GraphEdge[] {
  return edges.flatMap(({ edge, score, excess, z, p }) => {
    const parsed = parseEdge(edge);
    return parsed ? [{ writer: parsed.writer, reader: parsed.reader, kind: (parsed.side ?? "v") as Kind, score, excess, z, p }] : [];
  });
}

/** The head at the other end of such an edge; null for an edge between two heads. */
export function headOfEnd(edge: GraphEdge): string | null {
  if (ENDS.includes(edge.writer)) return edge.reader;
  return ENDS.includes(edge.reader) ? edge.writer : null;
}

export function edgeNamed(edges: readonly GraphEdge[], name: string | undefined): GraphEdge | undefined {
  return name === undefined ? undefined : edges.find((edge) => edgeName(edge) === name);
}

/** The least p that the fitted null is trusted with; numbers arrive in single precision. */
const LEAST_P = 1e-6;

/** p for a file: the bound where it is one, and no digits that single precision does not have. */
export function filedP(p: number): number | string {
  return p <= LEAST_P * (1 + 1e-6) ? `< ${LEAST_P}`.replace("0.000001", "1e-6") : Number(p.toPrecision(7));
}

export function edgeTable(edges: readonly GraphEdge[]): DataTable {
  return {
    header: ["writer", "reader", "kind", "score", "excess", "z", "p"],
    rows: edges.map((edge) => [edge.writer, edge.reader, edge.kind, edge.score, edge.excess, edge.z, filedP(edge.p)]),
  };
}
