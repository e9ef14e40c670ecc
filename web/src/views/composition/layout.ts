/** The composition graph as it is drawn: where heads stand, what fits into their boxes, how wide edges are. */
import { type Curve, curveBetween, type Graph, type GraphEdge as PlacedEdge, type GraphNode, throughLane } from "../../lib/draw/graph";
import { signed, wrapped } from "../../lib/format";
import { edgeName } from "./edges";
import type { DrawnEdge } from "./groups";

/** What is drawn as one node: a head, or several of one layer. */
export interface Member {
  readonly id: string;
  readonly label: string;
  readonly heads: readonly string[];
  readonly layer: number;
  /** As wide as the graph: every head has an edge to it straight above or below. */
  readonly wide?: boolean;
}

type PlacedMember = Member & Pick<GraphNode, "x" | "y" | "width" | "height" | "row">;

interface Layout {
  readonly width: number;
  readonly height: number;
  readonly nodes: readonly PlacedMember[];
  readonly rows: Graph["rows"];
}

const MARGIN = { left: 34, right: 12, top: 18, bottom: 26 };
const WIDEST_NODE = 150;
const TALLEST_NODE = 34;
/** The height of a node that shows its pattern. */
export const PICTURED_NODE = 76;
const LEAST_ROW = 26;
const MOST_ROW = 320;

/** `tallest` is the height that nodes of heads have where there is room for it. */
export function layOut(members: readonly Member[], width: number, height: number, tallest = TALLEST_NODE): Layout {
  const layers = [...new Set(members.map((each) => each.layer))].sort((a, b) => a - b);
  const spaces = Math.max(1, layers.length - 1);
  const room = height - MARGIN.top - MARGIN.bottom - TALLEST_NODE;
  const pitch = Math.min(MOST_ROW, Math.max(LEAST_ROW, room / spaces));
  const endHeight = Math.min(TALLEST_NODE, 0.6 * pitch);
  const nodeHeight = Math.max(endHeight, Math.min(tallest, 0.5 * pitch));
  const needed = pitch * (layers.length - 1) + MARGIN.top + MARGIN.bottom + nodeHeight;
  // A few layers stand in the middle of the room; many make it taller.
  const total = Math.max(needed, height);
  const bottom = total - (total - needed) / 2 - MARGIN.bottom - nodeHeight / 2;
  const nodes = layers.flatMap((layer, row) => {
    const own = members.filter((each) => each.layer === layer);
    const slot = (width - MARGIN.left - MARGIN.right) / own.length;
    return own.map((member, place) => ({
      ...member,
      row,
      x: MARGIN.left + slot * (place + 0.5),
      y: bottom - pitch * row,
      width: member.wide ? slot * 0.9 : Math.min(WIDEST_NODE, slot * 0.9),
      height: member.wide ? endHeight : nodeHeight,
    }));
  });
  const hasHeads = (layer: number) => members.some((each) => each.layer === layer && !each.wide);
  const rows = layers.map((layer, row) => ({ y: bottom - pitch * row, label: hasHeads(layer) ? `L${layer}` : "" }));
  return { width, height: total, nodes, rows };
}

/** The pattern of a head on the text as a picture of so many pixels: its address. */
export type PatternPicture = (head: string, side: number) => string | undefined;

interface Shown {
  /** The kind of a head, shown under its label; "" if unknown. */
  kindOf: (head: string) => string;
  pattern?: PatternPicture | null;
}

/** The graph of the members in a layout; edges of each list have widths on a scale of their own. */
export function graphOf(layout: Layout, drawn: readonly (readonly DrawnEdge[])[], threshold: number, shown: Shown): Graph {
  return {
    width: layout.width,
    height: layout.height,
    rows: layout.rows,
    nodes: layout.nodes.map((node) => withContent(node, shown)),
    // What reads the embedding or writes the logits is drawn faint: that is so by construction.
    edges: drawn.flatMap((edges, list) => placed(edges, layout, threshold).map((edge) => ({ ...edge, faint: list > 0 }))),
    structure: intoLogits(layout),
  };
}

/** So many nodes have a line to the logits each; more would be a gray sheet. */
const MOST_LINES = 40;

/** Every head writes into the logits, whether or not it writes there more than a random one. */
function intoLogits({ nodes }: Layout): Curve[] {
  const logits = nodes.find(({ id }) => id === "logits");
  const heads = nodes.filter(({ wide }) => !wide);
  return logits && heads.length <= MOST_LINES ? heads.map((head) => curveBetween(head, logits, "v")) : [];
}

/** The width of letters of a label and of small words, and the fewest letters that still tell a kind. */
const LABEL_LETTER = 7.9;
const WORD_LETTER = 6.5;
const LEAST_LETTERS = 5;
/** The least side of a picture that shows something, the room that words need next to one, and below it. */
const LEAST_PICTURE = 24;
const ROOM_FOR_WORDS = 46;
const WORDS_BELOW = 50;

/** A node with what fits of its label, its kind and its pattern. */
function withContent(node: PlacedMember, { kindOf, pattern }: Shown): GraphNode {
  const isHead = node.heads.length === 1;
  const image = isHead && !node.wide && pattern ? pictureIn(node, pattern) : null;
  const room = node.width - (image && !image.above ? image.side + 3 : 0);
  const fits = (text: string) => text.length * LABEL_LETTER <= room;
  const label = [node.label, isHead ? node.label.replace(/^L\d+/, "") : node.label].find(fits) ?? "";
  const kind = isHead ? kindOf(node.id) : "group";
  const letters = Math.floor((room - 4) / WORD_LETTER);
  const words = kind === "" || kind === "unknown" || letters < LEAST_LETTERS ? [] : image ? wrapped(kind, letters) : [kind];
  const lines = words.slice(0, 2).map((line) => (line.length <= letters ? line : `${line.slice(0, letters - 1)}…`));
  return { ...node, name: node.label, label, lines, image, look: "head" };
}

function pictureIn(node: PlacedMember, pattern: PatternPicture): GraphNode["image"] {
  const whole = node.height - 6;
  const isBeside = whole >= LEAST_PICTURE && node.width - whole >= ROOM_FOR_WORDS;
  const side = isBeside ? whole : Math.min(node.height - WORDS_BELOW, node.width - 6);
  return side >= LEAST_PICTURE ? { href: pattern(node.id, side), side, above: !isBeside } : null;
}

/** In a model of more layers, edges that skip some run in bundles, so many over the width. */
const FEWEST_BUNDLED = 6;
const BUNDLES = 5;

/** The lane nearest to the middle of an edge. */
function lane({ from, to }: Curve, { width }: Layout): number {
  const pitch = (width - MARGIN.left - MARGIN.right) / BUNDLES;
  const at = Math.floor(((from.x + to.x) / 2 - MARGIN.left) / pitch);
  return MARGIN.left + pitch * (Math.min(BUNDLES - 1, Math.max(0, at)) + 0.5);
}

export const WIDTHS = [1, 1.7, 2.6, 4] as const;

/** Levels grow with log z from the threshold to the strongest edge. */
export function levelOf(z: number, threshold: number, strongest: number): number {
  const low = Math.max(threshold, 0.5);
  if (!(strongest > low)) return WIDTHS.length - 1;
  const share = Math.log(Math.max(z, low) / low) / Math.log(strongest / low);
  return Math.min(WIDTHS.length - 1, Math.floor(share * WIDTHS.length));
}

function placed(drawn: readonly DrawnEdge[], layout: Layout, threshold: number): PlacedEdge[] {
  const nodes = new Map(layout.nodes.map((node) => [node.id, node]));
  const strongest = Math.max(...drawn.map((each) => each.edge.z), threshold);
  return drawn.flatMap(({ from, to, kind, edge, count }) => {
    const [writer, reader] = [nodes.get(from), nodes.get(to)];
    if (!writer || !reader) return [];
    const tip = `${edgeName(edge)}, z ${signed(edge.z, 1)}${count > 1 ? ` +${count - 1}` : ""}`;
    const width = WIDTHS[levelOf(edge.z, threshold, strongest)]!;
    const curve = curveBetween(writer, reader, kind);
    const skips = reader.row - writer.row > 1 && layout.rows.length > FEWEST_BUNDLED;
    return [{ id: edgeName(edge), from, to, kind, curve: skips ? throughLane(curve, lane(curve, layout)) : curve, width, tip }];
  });
}
