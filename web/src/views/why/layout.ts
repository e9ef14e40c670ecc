/** The circuit of a prediction as it is drawn: a column for each position that takes part, a row for each band of layers. */
import type { CircuitGraph, Edge, Node } from "../../lib/circuit";
import { KINDS } from "../../lib/draw/color";
import { plural, signed } from "../../lib/format";
import { curveBetween, type Graph, type GraphNode } from "../../lib/draw/graph";
import { everywhere } from "../../lib/names";
import { short } from "../../lib/tokens";
import { type Band, bandName, bandsOf, fold, type Folded, isGroup, type Named } from "./bands";

const LETTER = 7.9;
const HEIGHT = 38;
const GAP = 10;
const LEFT = 8;
/** A position is a pin at the foot of its token; the line from it passes next to the token. */
const PIN = 10;
const PIN_GAP = 3;
const TOP = 14;
const BOTTOM = 30;
const MOST_LETTERS = 12;
/** In a panel as narrow as a phone tokens have fewer letters. */
const NARROW = 420;
const FEW_LETTERS = 5;
/** From one row to the next at least, and where that would not fit. */
const PITCH = 86;
const DENSE_PITCH = 60;
const FEWEST_BANDS = 3;
const WIDEST_EDGE = 6;
/** The least and the most room between two columns. */
const LEAST_BETWEEN = 4;
const MOST_BETWEEN = 200;

export interface Shown {
  edges: readonly Edge[];
  room: { width: number; height: number };
  /** From one row to the next at least; by default more where there are few rows. */
  pitch?: number;
  /** Layers that do not fit share rows, and nodes of one role there are one; by default each layer has its row. */
  banded?: boolean;
  token: (position: number) => string;
  predicted: string;
  /** Names of what is switched off, and nodes whose inputs are all drawn. */
  off: ReadonlySet<string>;
  open: ReadonlySet<string>;
  /** Groups that the reader made. */
  named?: readonly Named[];
}

/** The graph, with the names of its rows apart: they stay next to it, however far it is scrolled. */
export function layOut(circuit: CircuitGraph, shown: Shown): Graph & { readonly rowNames: readonly string[]; readonly members: ReadonlyMap<string, readonly string[]> } {
  const { room, token, predicted } = shown;
  const letters = room.width < NARROW ? FEW_LETTERS : MOST_LETTERS;
  const ids = new Set([circuit.target.id, ...shown.edges.flatMap((edge) => [edge.from, edge.to])]);
  const all = [...ids].flatMap((id) => circuit.nodes.get(id) ?? []).sort(inOrder);
  // Two rows are those of the tokens and of the logit.
  const most = shown.banded ? Math.max(FEWEST_BANDS, Math.floor((room.height - BOTTOM) / DENSE_PITCH) - 2) : Infinity;
  const bands = bandsOf(all.map((node) => node.layer), most);
  const folded = fold(all, shown.edges, bands, shown.open, shown.named, circuit.edges);
  const nodes = [...folded.nodes].sort(inOrder);
  const positions = [...new Set(nodes.map((node) => node.position))].sort((a, b) => a - b);
  // The lowest row is that of the tokens, which every column has a label in.
  const rows = [{ first: -1, last: -1 }, ...bands, { first: Infinity, last: Infinity }];
  const labelOf = (node: Node): string => {
    if (node.component === "logits") return predicted;
    if (node.component === "embed") return short(token(node.position), letters);
    return isPosition(node) ? "" : node.component;
  };
  const widthOf = (node: Node): number => {
    if (isPosition(node)) return PIN;
    return Math.max(node.component === "embed" ? 30 : 42, 16 + LETTER * labelOf(node).length);
  };
  const gapBefore = (node: Node): number => (isPosition(node) ? PIN_GAP : GAP);
  const groupAt = (position: number, { first, last }: Band) =>
    nodes.filter((node) => node.position === position && node.layer >= first && node.layer <= last);
  const rowWidth = (group: readonly Node[]): number => group.reduce((sum, node, i) => sum + widthOf(node) + (i > 0 ? gapBefore(node) : 0), 0);
  const needed = positions.map((position) =>
    Math.max(LETTER * Math.min(letters, token(position).length) + 8, ...rows.map((row) => rowWidth(groupAt(position, row))), 34),
  );
  const total = needed.reduce((sum, width) => sum + width, 0) + LEFT + 12;
  const between = Math.max(LEAST_BETWEEN, Math.min(MOST_BETWEEN, (room.width - total) / Math.max(1, positions.length)));
  // Many rows stand closer together: a circuit should be seen without scrolling.
  const least = shown.pitch ?? (rows.length * PITCH + BOTTOM > room.height ? DENSE_PITCH : PITCH);
  const height = Math.max(room.height, rows.length * least + BOTTOM);
  const pitch = (height - TOP - BOTTOM - HEIGHT) / Math.max(1, rows.length - 1);
  const y = (row: number): number => height - BOTTOM - HEIGHT / 2 - row * pitch;
  const drawn = new Set(shown.edges.map((edge) => edge.id));
  const placed: GraphNode[] = [];
  const columns: { x: number; token: string; position: number }[] = [];
  // What a wide panel leaves stands on both sides.
  let from = LEFT + Math.max(0, (room.width - total - between * positions.length) / 2);
  positions.forEach((position, i) => {
    const width = (needed[i] as number) + between;
    const hasToken = nodes.some((node) => node.id === `embed@${position}`);
    columns.push({ x: from + width / 2, position, token: hasToken ? "" : short(token(position), letters) });
    rows.forEach((band, row) => {
      const group = groupAt(position, band);
      let at = from + (width - rowWidth(group)) / 2;
      group.forEach((node, i) => {
        const [own, pinned] = [widthOf(node), isPosition(node)];
        if (i > 0) at += gapBefore(node);
        const box = { row, x: at + own / 2, y: y(row) + (pinned ? HEIGHT / 2 : 0), width: own, height: pinned ? PIN : HEIGHT };
        placed.push({ ...contentOf(circuit, node, labelOf(node), drawn, shown), ...box });
        at += own;
      });
    });
    from += width;
  });
  return {
    width: Math.max(from + 12, room.width),
    height,
    nodes: placed,
    columns,
    rows: rows.map((_, row) => ({ y: y(row), label: "" })),
    rowNames: rows.map((band) => (band.first === -1 ? "tokens" : band.first === Infinity ? "logit" : bandName(band))),
    edges: edgesBetween(folded, placed, shown),
    members: new Map(nodes.filter(isGroup).map(({ id, members }) => [id, members.map((each) => each.id)])),
  };
}

const isPosition = ({ component }: Node): boolean => component.startsWith("pos");

/** Lower layers first, as data flows; the embedding before what positions add, heads by number. */
const inOrder = (a: Node, b: Node): number =>
  (a.layer === b.layer ? 0 : a.layer - b.layer) ||
  Number(a.component !== "embed") - Number(b.component !== "embed") || a.component.localeCompare(b.component, "en", { numeric: true });

const nameOf = (node: Node, { token, predicted }: Shown): string =>
  node.component === "logits"
    ? `the logit of ${predicted}`
    : `${isPosition(node) ? "position" : node.component} at “${token(node.position)}”@${node.position}`;

type Content = Pick<GraphNode, "id" | "label" | "name" | "title" | "lines" | "wide" | "look" | "off" | "badge">;

function contentOf(circuit: CircuitGraph, node: Node, label: string, drawn: ReadonlySet<string>, shown: Shown): Content {
  const isTarget = node.component === "logits";
  const opens = node.isHead || isTarget;
  const title = nameOf(node, shown);
  const members = isGroup(node) ? node.members.map(({ component }) => component) : [];
  return {
    id: node.id,
    ...{ label, name: isPosition(node) ? `position ${node.position}` : label },
    title: `${title}: ${signed(node.value)} logits${members.length > 0 ? `; ${members.join(", ")}` : ""}`,
    lines: opens || members.length > 0 ? [signed(node.value, 1)] : [],
    wide: isTarget,
    look: isTarget ? "target" : opens || members.length > 0 ? "head" : isPosition(node) ? "pin" : "leaf",
    off: shown.off.has(node.id) || shown.off.has(node.component),
    badge: members.length > 0 ? { text: `×${members.length}`, title: `${title}: draw each`, opens: true } : opens ? badgeOf(circuit, node, title, drawn, shown.open.has(node.id)) : null,
  };
}

/** Inputs of a node that are not drawn: kept ones, which a click opens, and omitted ones. */
function badgeOf(circuit: CircuitGraph, node: Node, name: string, drawn: ReadonlySet<string>, isOpen: boolean): GraphNode["badge"] {
  const hidden = circuit.inputs(node.id).filter((edge) => !drawn.has(edge.id));
  const values = [...hidden, ...circuit.leftOut(node.id)].filter((each) => each.kind === "v");
  const share = values.reduce((sum, each) => sum + each.share, 0);
  if (hidden.length === 0 && Math.abs(share) < 0.005) return null;
  const more = hidden.length > 0 ? `${plural(hidden.length, "smaller input")} not drawn; ` : "";
  return {
    text: hidden.length > 0 ? `+${hidden.length}` : isOpen ? "−" : "…",
    title: `${name}: ${more}omitted values add ${signed(share)} logits`,
    opens: hidden.length > 0 || isOpen,
  };
}

function edgesBetween({ nodes: drawn, edges, counts }: Folded, placed: readonly GraphNode[], shown: Shown): Graph["edges"] {
  const { off } = shown;
  const names = new Map(drawn.map((node) => [node.id, nameOf(node, shown)]));
  const nodes = new Map(placed.map((node) => [node.id, node]));
  const most = Math.max(1e-9, ...edges.map((edge) => Math.abs(edge.share)));
  const name = (id: string): string => names.get(id) ?? id;
  return edges.flatMap(({ id, from, to, kind, share, effect }) => {
    const [writer, reader] = [nodes.get(from), nodes.get(to)];
    if (!writer || !reader) return [];
    // An edge is cut by its own name, or by the name that it has at all positions.
    const cut = off.has(id) || off.has(everywhere(id));
    const cost = counts.has(id) ? `, ${plural(counts.get(id)!, "edge")}` : effect === null ? "" : `, cutting it costs ${signed(effect)}`;
    return [
      {
        ...{ id, from, to, kind, cut, fixed: effect === null, lowers: share < 0 },
        curve: curveBetween(writer, reader, kind),
        width: 1 + (WIDEST_EDGE - 1) * (Math.abs(share) / most),
        dead: cut || writer.off === true,
        title: `${name(from)} → ${name(to)}, ${KINDS[kind].name}: ${signed(share)} logits${cost}`,
      },
    ];
  });
}
