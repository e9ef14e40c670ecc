/**
 * Where heads and edges are drawn: layers bottom to top as data flows, heads of a layer left to
 * right. An edge leaves its writer's top and enters its reader's bottom at one of three ports,
 * Q left, K middle, V right, so that the three kinds differ in place as well.
 */
import type { Kind } from "./edges";

export interface Point {
  readonly x: number;
  readonly y: number;
}

export interface GraphNode {
  /** What edges refer to: the head's label, or a group's name. */
  readonly id: string;
  readonly label: string;
  readonly heads: readonly string[];
  readonly layer: number;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
  readonly wide?: boolean;
}

export interface Layout {
  readonly width: number;
  readonly height: number;
  readonly nodes: readonly GraphNode[];
  readonly layers: readonly { readonly layer: number; readonly y: number }[];
}

/** What is drawn as one node: a head, or several of one layer. */
export interface Member {
  readonly id: string;
  readonly label: string;
  readonly heads: readonly string[];
  readonly layer: number;
  /** As wide as the graph: every head has an edge to it straight above or below. */
  readonly wide?: boolean;
}

const MARGIN = { left: 34, right: 12, top: 18, bottom: 26 };
const WIDEST_NODE = 150;
const TALLEST_NODE = 34;
/** The height of a node that shows its pattern. */
export const PICTURED_NODE = 66;
const LEAST_ROW = 46;
const MOST_ROW = 320;

/** `tallest` is the height that nodes of heads have where there is room for it. */
export function layOut(members: readonly Member[], width: number, height: number, tallest = TALLEST_NODE): Layout {
  const layers = [...new Set(members.map((each) => each.layer))].sort((a, b) => a - b);
  const rows = Math.max(1, layers.length - 1);
  const room = height - MARGIN.top - MARGIN.bottom - TALLEST_NODE;
  const row = Math.min(MOST_ROW, Math.max(LEAST_ROW, room / rows));
  const endHeight = Math.min(TALLEST_NODE, 0.6 * row);
  const nodeHeight = Math.max(endHeight, Math.min(tallest, 0.45 * row));
  const needed = row * (layers.length - 1) + MARGIN.top + MARGIN.bottom + nodeHeight;
  // A few layers stand in the middle of the room; many make it taller.
  const total = Math.max(needed, height);
  const bottom = total - (total - needed) / 2 - MARGIN.bottom - nodeHeight / 2;
  const nodes = layers.flatMap((layer, index) => {
    const own = members.filter((each) => each.layer === layer);
    const slot = (width - MARGIN.left - MARGIN.right) / own.length;
    const nodeWidth = Math.min(WIDEST_NODE, slot * 0.82);
    return own.map((member, place) => ({
      ...member,
      x: MARGIN.left + slot * (place + 0.5),
      y: bottom - row * index,
      width: member.wide ? slot * 0.9 : nodeWidth,
      height: member.wide ? endHeight : nodeHeight,
    }));
  });
  return {
    width,
    height: total,
    nodes,
    layers: layers.map((layer, index) => ({ layer, y: bottom - row * index })),
  };
}

export interface Curve {
  readonly from: Point;
  readonly c1: Point;
  readonly c2: Point;
  readonly to: Point;
}

const PORTS: Readonly<Record<Kind, number>> = { q: -0.3, k: 0, v: 0.3 };

/** From the writer's top to the reader's port for this kind. */
export function curveBetween(writer: GraphNode, reader: GraphNode, kind: Kind): Curve {
  const within = (x: number, node: GraphNode) => Math.min(node.x + node.width / 2 - 6, Math.max(node.x - node.width / 2 + 6, x));
  const leaves = writer.x + PORTS[kind] * writer.width * 0.5;
  const enters = reader.x + PORTS[kind] * reader.width;
  const from = { x: writer.wide ? within(enters, writer) : leaves, y: writer.y - writer.height / 2 };
  const to = { x: reader.wide ? within(leaves, reader) : enters, y: reader.y + reader.height / 2 };
  const rise = from.y - to.y;
  // An edge that skips layers straight above itself would run through the nodes between: bow it
  // out to the side that its port is on.
  const skips = reader.layer - writer.layer > 1 && Math.abs(to.x - from.x) < Math.min(writer.width, WIDEST_NODE);
  const side = kind === "q" ? -1 : 1;
  // A curve reaches three quarters of its bow, so this just clears the narrower of the two.
  const bow = skips ? side * Math.min(writer.width, reader.width, WIDEST_NODE) * 0.69 : 0;
  return {
    from,
    c1: { x: from.x + bow, y: from.y - rise * 0.45 },
    c2: { x: to.x + bow, y: to.y + rise * 0.45 },
    to,
  };
}

export function pathOf(curve: Curve): string {
  const at = (point: Point) => `${round(point.x)} ${round(point.y)}`;
  return `M${at(curve.from)}C${at(curve.c1)} ${at(curve.c2)} ${at(curve.to)}`;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}

export function pointOn(curve: Curve, t: number): Point {
  const s = 1 - t;
  const [a, b, c, d] = [s * s * s, 3 * s * s * t, 3 * s * t * t, t * t * t];
  return {
    x: a * curve.from.x + b * curve.c1.x + c * curve.c2.x + d * curve.to.x,
    y: a * curve.from.y + b * curve.c1.y + c * curve.c2.y + d * curve.to.y,
  };
}

const SAMPLES = 24;

export function distanceTo(curve: Curve, point: Point): number {
  let least = Number.POSITIVE_INFINITY;
  let before = curve.from;
  for (let step = 1; step <= SAMPLES; step++) {
    const next = pointOn(curve, step / SAMPLES);
    least = Math.min(least, toSegment(point, before, next));
    before = next;
  }
  return least;
}

function toSegment(point: Point, from: Point, to: Point): number {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = dx * dx + dy * dy;
  const along = length === 0 ? 0 : ((point.x - from.x) * dx + (point.y - from.y) * dy) / length;
  const t = Math.min(1, Math.max(0, along));
  return Math.hypot(point.x - from.x - t * dx, point.y - from.y - t * dy);
}

/** The distance from a point to a node's box; 0 inside. */
export function distanceToNode(node: GraphNode, point: Point): number {
  const dx = Math.max(0, Math.abs(point.x - node.x) - node.width / 2);
  const dy = Math.max(0, Math.abs(point.y - node.y) - node.height / 2);
  return Math.hypot(dx, dy);
}

/** Hovering near a node is hovering it. */
const REACH = 30;
const EDGE_REACH = 6;

export type Hit<E> =
  { readonly type: "node"; readonly node: GraphNode } | { readonly type: "edge"; readonly edge: E };

/** What the pointer is at: a node it is in, else an edge it is on, else the nearest node. */
export function hit<E extends { readonly curve: Curve }>(
  nodes: readonly GraphNode[],
  edges: readonly E[],
  point: Point,
): Hit<E> | null {
  const node = nearest(nodes, (each) => distanceToNode(each, point), REACH);
  if (node && distanceToNode(node, point) === 0) return { type: "node", node };
  const edge = nearest(edges, (each) => distanceTo(each.curve, point), EDGE_REACH);
  if (edge) return { type: "edge", edge };
  return node ? { type: "node", node } : null;
}

function nearest<T>(things: readonly T[], distance: (thing: T) => number, reach: number): T | null {
  let found: T | null = null;
  let least = reach;
  for (const thing of things) {
    const own = distance(thing);
    if (own <= least) [found, least] = [thing, own];
  }
  return found;
}

/** The node an arrow key leads to: along the layer, or to the nearest of the next layer. */
export function neighbor(
  nodes: readonly GraphNode[],
  from: GraphNode,
  key: "ArrowLeft" | "ArrowRight" | "ArrowUp" | "ArrowDown",
): GraphNode {
  const sideways = key === "ArrowLeft" || key === "ArrowRight";
  const sign = key === "ArrowLeft" || key === "ArrowUp" ? -1 : 1;
  const candidates = nodes.filter((each) =>
    sideways ? each.y === from.y && sign * (each.x - from.x) > 0 : sign * (each.y - from.y) > 0,
  );
  const cost = (each: GraphNode) => Math.abs(each.x - from.x) + 10 * Math.abs(each.y - from.y);
  return candidates.reduce((best, each) => (cost(each) < cost(best) ? each : best), candidates[0] ?? from);
}
