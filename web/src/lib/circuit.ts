/** The circuit of a prediction as the page draws it: nodes at (layer, position), and V, Q and K edges. */
import type { Attended, Graph as Circuit } from "../generated/answers";
import { layerOf, parseHead, type Side } from "./names";

export interface Node {
  /** As `pathsum.base` prints it: "L0H3@4", "embed@2", "pos@0@4", "logits@9". */
  readonly id: string;
  /** What it is without its position: "L0H3", "embed", "pos@0", "logits". */
  readonly component: string;
  readonly position: number;
  /** −1 for what is there before the first layer, the number of layers or more for the logits. */
  readonly layer: number;
  readonly isHead: boolean;
  readonly value: number;
  readonly attended: Attended | null;
  readonly note: string;
}

export interface Edge {
  /** Its name: "L0H3@4→L1H0@9.k". */
  readonly id: string;
  readonly from: string;
  readonly to: string;
  readonly kind: Side;
  readonly exact: number;
  readonly unit: "logits" | "score";
  readonly share: number;
  /** What cutting it costs; null where nothing can be cut: positions and biases. */
  readonly effect: number | null;
}

interface Rest {
  readonly kind: Side;
  readonly share: number;
  readonly count: number;
}

/** Shares of a prediction from which edges may be drawn, and how many edges make a graph worth looking at. */
const FIRST_SHARES = [0.1, 0.07, 0.05, 0.035, 0.02] as const;
const FEWEST_EDGES = 12;

export class CircuitGraph {
  readonly nodes: ReadonlyMap<string, Node>;
  readonly edges: readonly Edge[];
  readonly target: Node;
  private readonly into = new Map<string, Edge[]>();

  constructor(readonly answer: Circuit) {
    this.nodes = new Map(
      answer.nodes.map((each) => {
        const at = each.node.lastIndexOf("@");
        const component = each.node.slice(0, at);
        const node: Node = {
          id: each.node,
          component,
          position: Number(each.node.slice(at + 1)),
          layer: layerOfComponent(component),
          isHead: parseHead(component) !== null,
          value: each.value,
          attended: each.attended,
          note: each.note,
        };
        return [each.node, node];
      }),
    );
    this.target = this.nodes.get(`logits@${answer.position}`) as Node;
    this.edges = answer.edges.map((each) => {
      const [from = "", read = ""] = each.edge.split("→");
      const dot = read.indexOf(".");
      return {
        id: each.edge,
        from,
        to: dot < 0 ? read : read.slice(0, dot),
        kind: (dot < 0 ? "v" : read.slice(dot + 1)) as Side,
        exact: each.exact,
        unit: each.unit,
        share: each.share,
        effect: each.effect,
      };
    });
    for (const edge of this.edges) this.into.set(edge.to, [...(this.into.get(edge.to) ?? []), edge]);
    for (const edges of this.into.values()) edges.sort((a, b) => Math.abs(b.share) - Math.abs(a.share));
  }

  /** The edges into a node, the largest share first. */
  inputs(node: string, kind?: Side): readonly Edge[] {
    const all = this.into.get(node) ?? [];
    return kind === undefined ? all : all.filter((edge) => edge.kind === kind);
  }

  /** What was left out of a node's inputs, by kind. */
  leftOut(node: string): readonly Rest[] {
    return this.answer.left_out
      .filter((rest) => rest.node === node)
      .map(({ kind, share, count }) => ({ kind, share, count }));
  }

  /** The share of the prediction from which edges are drawn at first: a tenth, or less where that draws few of them. */
  get firstShare(): number {
    const none = new Set<string>();
    return FIRST_SHARES.find((share) => this.shown(share, none).length >= FEWEST_EDGES) ?? FIRST_SHARES[FIRST_SHARES.length - 1]!;
  }

  /** Edges reachable from the prediction through edges of at least this share, or into nodes that are open. */
  shown(share: number, open: ReadonlySet<string>): readonly Edge[] {
    const least = share * Math.abs(this.answer.total);
    const found = new Map<string, Edge>();
    const waiting = [this.target.id];
    const seen = new Set(waiting);
    for (let id = waiting.pop(); id !== undefined; id = waiting.pop()) {
      for (const edge of this.inputs(id)) {
        if (Math.abs(edge.share) < least && !open.has(id)) continue;
        found.set(edge.id, edge);
        if (!seen.has(edge.from)) {
          seen.add(edge.from);
          waiting.push(edge.from);
        }
      }
    }
    return [...found.values()];
  }

  /** The head that raises the prediction most. */
  get top(): Edge | null {
    return this.inputs(this.target.id).find((edge) => this.nodes.get(edge.from)?.isHead && edge.share > 0) ?? null;
  }
}

function layerOfComponent(component: string): number {
  if (parseHead(component)) return layerOf(component);
  const source = /^(?:mlp|bias)(\d+)$/.exec(component);
  if (source) return Number(source[1]);
  return component === "logits" ? Infinity : -1;
}
