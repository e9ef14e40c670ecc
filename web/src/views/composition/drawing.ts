/** What of the graph is drawn how: widths by strength, and which edges stand out. */
import type { DrawnEdge } from "./groups";
import type { Kind } from "./edges";
import { type Curve, curveBetween, type Layout, pathOf } from "./layout";

export interface PlacedEdge extends DrawnEdge {
  readonly curve: Curve;
  readonly level: number;
}

export const WIDTHS = [1, 1.7, 2.6, 4] as const;

/** Levels grow with log z from the threshold to the strongest edge. */
export function levelOf(z: number, threshold: number, strongest: number): number {
  const low = Math.max(threshold, 0.5);
  if (!(strongest > low)) return WIDTHS.length - 1;
  const share = Math.log(Math.max(z, low) / low) / Math.log(strongest / low);
  return Math.min(WIDTHS.length - 1, Math.floor(share * WIDTHS.length));
}

export function placed(drawn: readonly DrawnEdge[], layout: Layout, threshold: number): PlacedEdge[] {
  const nodes = new Map(layout.nodes.map((node) => [node.id, node]));
  const strongest = Math.max(...drawn.map((each) => each.edge.z), threshold);
  return drawn.flatMap((each) => {
    const [from, to] = [nodes.get(each.from), nodes.get(each.to)];
    if (!from || !to) return [];
    const curve = curveBetween(from, to, each.kind);
    return [{ ...each, curve, level: levelOf(each.edge.z, threshold, strongest) }];
  });
}

interface Stroke {
  readonly kind: Kind;
  readonly level: number;
  readonly d: string;
}

/** One path for all edges of a kind and level: thousands of edges are a dozen elements. */
export function strokes(edges: readonly PlacedEdge[]): Stroke[] {
  const found = new Map<string, { kind: Kind; level: number; parts: string[] }>();
  for (const edge of edges) {
    const key = `${edge.kind}${edge.level}`;
    const stroke = found.get(key) ?? { kind: edge.kind, level: edge.level, parts: [] };
    stroke.parts.push(pathOf(edge.curve));
    found.set(key, stroke);
  }
  return [...found.values()]
    .map(({ kind, level, parts }) => ({ kind, level, d: parts.join("") }))
    .sort((a, b) => a.level - b.level);
}

/**
 * The edges that stand out: those of the focused node, else those between pinned nodes (all edges
 * of a single one). Null where nothing is focused: then all are equal.
 */
export function standOut(
  edges: readonly PlacedEdge[],
  focused: string | null,
  pinned: ReadonlySet<string>,
): readonly PlacedEdge[] | null {
  const touches = (edge: PlacedEdge, id: string) => edge.from === id || edge.to === id;
  if (focused !== null) return edges.filter((edge) => touches(edge, focused));
  if (pinned.size === 0) return null;
  if (pinned.size === 1) return edges.filter((edge) => pinned.has(edge.from) || pinned.has(edge.to));
  return edges.filter((edge) => pinned.has(edge.from) && pinned.has(edge.to));
}
