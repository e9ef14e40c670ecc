/** Where the nodes of a prediction's circuit stand: a column for each position that takes part, a row for each layer. */
import type { CircuitGraph, Edge, Node } from "../../lib/circuit";
import { short } from "../../lib/tokens";

export interface Placed {
  readonly node: Node;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
  readonly label: string;
}

interface Column {
  readonly position: number;
  readonly x: number;
  readonly width: number;
}

export interface Row {
  readonly layer: number;
  readonly y: number;
  readonly label: string;
}

export interface Line {
  readonly edge: Edge;
  readonly d: string;
  /** A point on it, for its mark. */
  readonly middle: { x: number; y: number };
}

export interface Layout {
  readonly width: number;
  readonly height: number;
  readonly nodes: ReadonlyMap<string, Placed>;
  readonly columns: readonly Column[];
  readonly rows: readonly Row[];
  readonly lines: readonly Line[];
}

const LETTER = 7.3;
const HEIGHT = 30;
const GAP = 10;
const LEFT = 8;
const TOP = 14;
const BOTTOM = 30;
const MOST_LETTERS = 12;
/** From one row to the next at least, and where there are many of them. */
const PITCH = 84;
const DENSE_PITCH = 52;
const MANY_ROWS = 6;
/** Where the reads of a head are: query left, key in the middle, value right. */
const PORTS = { q: -0.3, k: 0, v: 0.3 } as const;

/** What is written on a node: tokens by their text, what a head adds to the stream by its name. */
function nodeLabel(node: Node, token: (position: number) => string, predicted: string): string {
  if (node.component === "logits") return predicted;
  if (node.component === "embed") return short(token(node.position), MOST_LETTERS);
  if (node.component.startsWith("pos")) return "position";
  return node.component;
}

export function layOut(
  graph: CircuitGraph,
  edges: readonly Edge[],
  room: { width: number; height: number },
  token: (position: number) => string,
  predicted: string,
): Layout {
  const ids = new Set([graph.target.id, ...edges.flatMap((edge) => [edge.from, edge.to])]);
  const nodes = [...ids].flatMap((id) => graph.nodes.get(id) ?? []);
  const positions = [...new Set(nodes.map((node) => node.position))].sort((a, b) => a - b);
  const layers = [...new Set(nodes.map((node) => node.layer))].sort((a, b) => a - b);
  const widths = new Map(
    nodes.map((node) => [node.id, Math.max(46, 18 + LETTER * nodeLabel(node, token, predicted).length)]),
  );
  // Layer −1 is the tokens' row, which every column has a label in.
  if (layers[0] !== -1) layers.unshift(-1);
  const groups = new Map<string, Node[]>();
  for (const node of nodes.sort(inOrder)) {
    const key = `${node.position} ${node.layer}`;
    groups.set(key, [...(groups.get(key) ?? []), node]);
  }
  const rowWidth = (group: readonly Node[]): number =>
    group.reduce((sum, node) => sum + (widths.get(node.id) as number) + GAP, -GAP);
  const needed = positions.map((position) =>
    Math.max(
      LETTER * Math.min(MOST_LETTERS, token(position).length) + 8,
      ...layers.map((layer) => rowWidth(groups.get(`${position} ${layer}`) ?? [])),
      34,
    ),
  );
  const total = needed.reduce((sum, width) => sum + width, 0) + LEFT + 12;
  const between = Math.max(16, Math.min(140, (room.width - total) / Math.max(1, positions.length)));
  const columns: Column[] = [];
  let x = LEFT;
  positions.forEach((position, i) => {
    const width = (needed[i] as number) + between;
    columns.push({ position, x, width });
    x += width;
  });
  // Many layers stand closer together: a circuit should be seen without much scrolling.
  const height = Math.max(room.height, layers.length * (layers.length > MANY_ROWS ? DENSE_PITCH : PITCH) + BOTTOM);
  const pitch = (height - TOP - BOTTOM - HEIGHT) / Math.max(1, layers.length - 1);
  const rows = layers.map((layer, i): Row => ({
    layer,
    y: height - BOTTOM - HEIGHT / 2 - i * pitch,
    label: layer === -1 ? "tokens" : layer === Infinity ? "logit" : `layer ${layer}`,
  }));
  const placed = new Map<string, Placed>();
  for (const row of rows) {
    for (const column of columns) {
      const group = groups.get(`${column.position} ${row.layer}`) ?? [];
      let at = column.x + (column.width - rowWidth(group)) / 2;
      for (const node of group) {
        const width = widths.get(node.id) as number;
        const label = nodeLabel(node, token, predicted);
        placed.set(node.id, { node, x: at + width / 2, y: row.y, width, height: HEIGHT, label });
        at += width + GAP;
      }
    }
  }
  const lines = edges.flatMap((edge) => {
    const [from, to] = [placed.get(edge.from), placed.get(edge.to)];
    return from && to ? [line(edge, from, to, pitch)] : [];
  });
  return { width: Math.max(x + 12, room.width), height, nodes: placed, columns, rows, lines };
}

/** The embedding before what positions add, heads by number. */
const inOrder = (a: Node, b: Node): number =>
  Number(a.component !== "embed") - Number(b.component !== "embed") ||
  a.component.localeCompare(b.component, "en", { numeric: true });

function line(edge: Edge, from: Placed, to: Placed, pitch: number): Line {
  const port = to.node.component === "logits" ? 0 : PORTS[edge.kind];
  const [x1, y1] = [from.x, from.y - from.height / 2];
  const [x2, y2] = [to.x + port * to.width, to.y + to.height / 2];
  const rise = y1 - y2;
  // One that skips a row straight above itself would run through what is between: it bows out.
  const bow = rise > 1.5 * pitch && Math.abs(x2 - x1) < 40 ? (edge.kind === "q" ? -1 : 1) * 46 : 0;
  const [c1, c2] = [
    { x: x1 + bow, y: y1 - rise * 0.5 },
    { x: x2 + bow, y: y2 + rise * 0.5 },
  ];
  const at = (v: number): number => Math.round(v * 10) / 10;
  return {
    edge,
    d: `M${at(x1)} ${at(y1)}C${at(c1.x)} ${at(c1.y)} ${at(c2.x)} ${at(c2.y)} ${at(x2)} ${at(y2)}`,
    middle: { x: (x1 + 3 * c1.x + 3 * c2.x + x2) / 8, y: (y1 + 3 * c1.y + 3 * c2.y + y2) / 8 },
  };
}
