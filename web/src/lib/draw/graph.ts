/**
 * A graph as it is drawn: layers bottom to top as data flows. An edge leaves its writer's top and enters its reader's
 * bottom at one of three ports, Q left, K middle, V right, so that the three kinds differ in place as well.
 */
import type { Side } from "../names";

interface Point {
  readonly x: number;
  readonly y: number;
}

/** A node at its place; `x` and `y` are its middle. */
export interface GraphNode extends Point {
  readonly id: string;
  readonly width: number;
  readonly height: number;
  /** Rows are counted from below. */
  readonly row: number;
  /** What fits of its name; the whole name, if that is more; and what it is about. */
  readonly label: string;
  readonly name: string;
  readonly title?: string;
  /** Small words below the label. */
  readonly lines: readonly string[];
  /** A picture next to the words, or above them. */
  readonly image?: { readonly href: string | undefined; readonly side: number; readonly above: boolean } | null;
  /** Edges meet it straight above or below, instead of at a port. */
  readonly wide?: boolean;
  readonly look?: "head" | "leaf" | "pin" | "target";
  readonly off?: boolean;
  /** A mark at its corner, which opens its smaller inputs. */
  readonly badge?: { readonly text: string; readonly title: string; readonly opens: boolean } | null;
}

export interface GraphEdge {
  readonly id: string;
  readonly from: string;
  readonly to: string;
  readonly kind: Side;
  readonly curve: Curve;
  readonly width: number;
  /** Its numbers in words; an edge that has them can be focused. */
  readonly title?: string;
  /** Shown next to it while it is pointed at. */
  readonly tip?: string;
  readonly lowers?: boolean;
  readonly cut?: boolean;
  /** Carries nothing, because it is cut or its writer is off. */
  readonly dead?: boolean;
  readonly fixed?: boolean;
  /** Drawn lighter than the others: it is there by construction. */
  readonly faint?: boolean;
}

export interface Graph {
  readonly width: number;
  readonly height: number;
  readonly nodes: readonly GraphNode[];
  readonly edges: readonly GraphEdge[];
  /** Lines that are there by construction, faint under the edges: they say that a head is read, not how much. */
  readonly structure?: readonly Curve[];
  readonly rows: readonly { readonly y: number; readonly label: string }[];
  /** The positions of a text below their columns. */
  readonly columns?: readonly { readonly x: number; readonly token: string; readonly position: number }[];
}

export interface Curve {
  readonly from: Point;
  readonly c1: Point;
  readonly c2: Point;
  readonly to: Point;
}

type Box = Pick<GraphNode, "x" | "y" | "width" | "height" | "row" | "wide">;

const PORTS: Readonly<Record<Side, number>> = { q: -0.3, k: 0, v: 0.3, g: -0.15, u: 0.3 };
/** Wider than this, a node is not avoided. */
const WIDEST_AVOIDED = 150;
const ROW_BOW = 16;

/** From the writer's top to the reader's port for this kind; within a row from side to side, in a bow above it. */
export function curveBetween(writer: Box, reader: Box, kind: Side): Curve {
  if (writer.row === reader.row) {
    const sign = Math.sign(reader.x - writer.x) || 1;
    const from = { x: writer.x + sign * writer.width * 0.35, y: writer.y - writer.height / 2 };
    const to = { x: reader.x - sign * reader.width * 0.35, y: reader.y - reader.height / 2 };
    return { from, c1: { x: from.x, y: from.y - ROW_BOW }, c2: { x: to.x, y: to.y - ROW_BOW }, to };
  }
  const within = (x: number, node: Box) => Math.min(node.x + node.width / 2 - 6, Math.max(node.x - node.width / 2 + 6, x));
  const leaves = writer.x + PORTS[kind] * writer.width * 0.5;
  const enters = reader.x + PORTS[kind] * reader.width;
  const from = { x: writer.wide ? within(enters, writer) : leaves, y: writer.y - writer.height / 2 };
  const to = { x: reader.wide ? within(leaves, reader) : enters, y: reader.y + reader.height / 2 };
  const rise = from.y - to.y;
  // An edge that skips rows straight above itself would run through the nodes between: bow it out to the side that
  // its port is on. A curve reaches three quarters of its bow, so this just clears the narrower of the two.
  const isInTheWay = reader.row - writer.row > 1 && Math.abs(to.x - from.x) < Math.min(writer.width, WIDEST_AVOIDED);
  const bow = isInTheWay ? (kind === "q" ? -1 : 1) * Math.min(writer.width, reader.width, WIDEST_AVOIDED) * 0.69 : 0;
  return { from, c1: { x: from.x + bow, y: from.y - rise * 0.45 }, c2: { x: to.x + bow, y: to.y + rise * 0.45 }, to };
}

/** A curve whose middle passes through `x`: edges that share a lane there run as a bundle. */
export function throughLane(curve: Curve, x: number): Curve {
  const pull = (8 * x - curve.from.x - curve.to.x) / 6;
  return { ...curve, c1: { ...curve.c1, x: pull }, c2: { ...curve.c2, x: pull } };
}

/** The least part of its size that a graph is drawn at: its words stay legible. */
const SMALLEST = 0.68;

/** The part of its size at which a graph fits a width. */
export const scaleTo = ({ width }: Pick<Graph, "width">, room: number): number => Math.max(SMALLEST, Math.min(1, room / width));

export function pathOf({ from, c1, c2, to }: Curve): string {
  const at = ({ x, y }: Point) => `${Math.round(x * 10) / 10} ${Math.round(y * 10) / 10}`;
  return `M${at(from)}C${at(c1)} ${at(c2)} ${at(to)}`;
}

/** The middle of a curve, for its mark. */
export const middleOf = ({ from, c1, c2, to }: Curve): Point => ({
  x: (from.x + 3 * c1.x + 3 * c2.x + to.x) / 8,
  y: (from.y + 3 * c1.y + 3 * c2.y + to.y) / 8,
});

/** Straight pieces that a curve is measured by. */
const PIECES = 32;

/** The edge whose curve passes nearest to a point: where edges run side by side, the one that is pointed at. */
export function nearestEdge<E extends Pick<GraphEdge, "curve">>(edges: readonly E[], at: Point): E | null {
  const best = edges.map((edge) => ({ edge, away: distanceTo(edge.curve, at) })).sort((a, b) => a.away - b.away)[0];
  return best?.edge ?? null;
}

function distanceTo({ from, c1, c2, to }: Curve, at: Point): number {
  const point = (t: number): Point => {
    const s = 1 - t;
    const [a, b, c, d] = [s * s * s, 3 * s * s * t, 3 * s * t * t, t * t * t];
    return { x: a * from.x + b * c1.x + c * c2.x + d * to.x, y: a * from.y + b * c1.y + c * c2.y + d * to.y };
  };
  let [least, start] = [Infinity, from];
  for (let i = 1; i <= PIECES; i++) {
    const end = point(i / PIECES);
    const [dx, dy] = [end.x - start.x, end.y - start.y];
    const along = ((at.x - start.x) * dx + (at.y - start.y) * dy) / (dx * dx + dy * dy || 1);
    const t = Math.min(1, Math.max(0, along));
    least = Math.min(least, Math.hypot(start.x + t * dx - at.x, start.y + t * dy - at.y));
    start = end;
  }
  return least;
}

/**
 * The edges that stand out: those of the focused node, else those between pinned nodes (all edges of a single one).
 * Null where nothing is focused: then all are equal.
 */
export function standOut<E extends Pick<GraphEdge, "from" | "to">>(edges: readonly E[], focused: string | null, pinned: ReadonlySet<string>): readonly E[] | null {
  if (focused !== null) return edges.filter((edge) => edge.from === focused || edge.to === focused);
  if (pinned.size === 0) return null;
  if (pinned.size === 1) return edges.filter((edge) => pinned.has(edge.from) || pinned.has(edge.to));
  return edges.filter((edge) => pinned.has(edge.from) && pinned.has(edge.to));
}

/** The node an arrow key leads to: along the layer, or to the nearest of the next layer. */
export function neighbor<N extends Point>(nodes: readonly N[], from: N, key: string): N {
  const sideways = key === "ArrowLeft" || key === "ArrowRight";
  const sign = key === "ArrowLeft" || key === "ArrowUp" ? -1 : 1;
  const candidates = nodes.filter((each) =>
    sideways ? each.y === from.y && sign * (each.x - from.x) > 0 : sign * (each.y - from.y) > 0,
  );
  const cost = (each: N) => Math.abs(each.x - from.x) + 10 * Math.abs(each.y - from.y);
  return candidates.reduce((best, each) => (cost(each) < cost(best) ? each : best), candidates[0] ?? from);
}
