/**
 * The circuit of one prediction: grown from the logits down, keeping the edges that carry enough of it, and each
 * kept edge cut. The page's counterpart of `pathsum.paths.growth`, `score` and `circuit`.
 */
import type { Attended, Graph, GraphEdge, GraphNode, LeftOut } from "../generated/answers";
import { layerOf, parseHead, type Side } from "../lib/names";
import { add, argmax, dot, product, rowOf, softmax, sum, transposed } from "../lib/algebra";
import { integrateScores } from "./attention";
import { directParts, type Engine, type Prediction, targetOf, writersBelow } from "./engine";
import { circuitSentence, type Lead, LeadFinder, type Shared } from "./reasons";
import { type Edit, Trace } from "./run";

const THRESHOLD = 0.02;
const MAX_NODES = 1000;
/** What the prediction is compared with, as a part of the sum of its direct shares' magnitudes. */
const CANCELED = 0.5;
/** The part of the floor from which edges of a kept node are kept. */
const EDGE_PART = 0.25;
/** How much the floor is raised at a time if too many nodes are kept. */
const RAISE = 1.5;

/** An edge that may be kept, and what it adds to the gradient of its writer. */
interface Candidate {
  writer: string;
  at: number;
  share: number;
  exact: number;
  common: number;
  gradient: (out: Float64Array) => void;
}

/** A component at a position, and all its edges that may be kept. */
interface Writer {
  gradient: Float64Array;
  value: number;
  common: number;
  edges: (Shared & { exact: number })[];
}

export interface Circuit {
  graph: Graph;
  lead: Lead | null;
  /** The share of the prediction that the kept edges into the logits carry. */
  coverage: number;
}

const SIDES: readonly (Side | null)[] = ["v", "k", "q"];

const positionOf = (node: string): number => Number(node.split("@").at(-1));

/** The order of nodes: from the logits down, then by position. */
const rankOf = (name: string, layers: number): number => (name === "logits" ? layers : (parseHead(name)?.layer ?? -1));

class Growth {
  readonly nodes: GraphNode[] = [];
  readonly edges: (Shared & { exact: number })[] = [];
  readonly leftOut: LeftOut[] = [];
  private readonly writers = new Map<string, Writer>();
  private readonly weak = new Map<string, Writer>();
  quadratureError = 0;
  readonly reads = new Map<string, Shared[]>();

  constructor(
    private readonly about: Prediction,
    private readonly engine: Engine,
    private readonly floor: number,
  ) {}

  /** False, and not to the end, if there are too many nodes. */
  grow(total: number): boolean {
    const { trace, position, token, versus } = this.about;
    const { model } = trace;
    const direction = model.direction(token, versus);
    const direct = directParts(this.about, trace);
    this.keep("logits", position, "v", writersBelow(model.layers, model).map((writer, number) => {
      const share = direct[number] as number;
      return { writer, at: position, share, exact: share, common: 0, gradient: (out) => add(out, direction) };
    }));
    this.nodes.push({ node: `logits@${position}`, text: this.engine.shown(token), value: total, attended: null, note: "" });
    for (let layer = model.layers - 1; layer >= 0; layer--) {
      const kept = this.decide(layer);
      for (const head of model.headsOf(layer)) {
        const places = kept.filter((node) => node.startsWith(`${head}@`)).map(positionOf);
        const reads = places.sort((a, b) => a - b).map((place) => this.head(head, place));
        for (const side of ["k", "q"] as const) {
          reads.forEach((read, number) => {
            const place = places[number] as number;
            if (!read) return;
            this.keep(head, place, side, read[side]);
            if (place === position) this.remember(head, side, read[side]);
          });
        }
        const together = [...this.weak.keys()].filter((node) => this.isStrong(node));
        if (1 + new Set([...this.writers.keys(), ...together]).size > MAX_NODES) return false;
      }
    }
    for (const node of this.decide(null)) {
      this.nodes.push({ node, text: this.text(positionOf(node)), value: (this.writers.get(node) as Writer).value, attended: null, note: "" });
    }
    return this.nodes.length <= MAX_NODES;
  }

  /** All parts of a query or of keys at the predicted position, kept or not. */
  private remember(reader: string, side: "k" | "q", candidates: readonly Candidate[]): void {
    const to = this.about.position;
    const parts = candidates.map(({ writer, at, share }) => ({ edge: { writer, at, reader, side, to }, share }));
    this.reads.set(`${reader}@${to}`, [...(this.reads.get(`${reader}@${to}`) ?? []), ...parts]);
  }

  /** The nodes of a layer that are kept, with their edges; null is for tokens and positions. Other weak edges are left out. */
  private decide(layer: number | null): string[] {
    const isHere = (node: string): boolean => (parseHead(node.split("@")[0] as string)?.layer ?? null) === layer;
    for (const [node, weak] of this.weak) {
      if (!isHere(node)) continue;
      if (this.isStrong(node)) {
        const strong = this.writer(this.writers, node);
        strong.edges.push(...weak.edges);
        strong.value += weak.value;
        strong.common += weak.common;
        add(strong.gradient, weak.gradient);
        continue;
      }
      for (const { edge, exact, share } of weak.edges) {
        const rest = this.leftOut.find((one) => one.node === `${edge.reader}@${edge.to}` && one.kind === (edge.side ?? "v")) as LeftOut;
        rest.exact += exact;
        rest.share += share;
        rest.count++;
      }
    }
    const kept = [...this.writers.keys()].filter(isHere);
    for (const node of kept) this.edges.push(...(this.writers.get(node) as Writer).edges);
    return kept;
  }

  /** Whether the weak edges of a node carry the floor together. */
  private isStrong(node: string): boolean {
    return Math.abs((this.weak.get(node) as Writer).value) >= this.floor;
  }

  private writer(among: Map<string, Writer>, node: string): Writer {
    const one = among.get(node) ?? { gradient: new Float64Array(this.about.trace.model.width), value: 0, common: 0, edges: [] };
    among.set(node, one);
    return one;
  }

  private text(place: number): string {
    return this.engine.shown(this.about.trace.ids[place] as number);
  }

  /** Decompose a head at a position: its values, and its keys and queries if where it attends matters. */
  private head(label: string, place: number): { k: Candidate[]; q: Candidate[] } | null {
    const { trace } = this.about;
    const { model } = trace;
    const { width, headWidth } = model;
    const { gradient, value, common } = this.writers.get(`${label}@${place}`) as Writer;
    const along = transposed(transposed(gradient, model.matrix("O", label), width), model.matrix("V", label), headWidth);
    const pattern = rowOf(trace.pattern(label), place, trace.length).subarray(0, place + 1);
    this.keep(label, place, "v", this.candidates(layerOf(label), place, (written, at) => dot(written, at * width, along, 0, width), (score, at) => {
      const share = score * (pattern[at] as number);
      return { share, exact: share, common: 0, gradient: (out) => add(out, along, pattern[at]) };
    }), -common);
    const stream = trace.streams[layerOf(label)] as Float64Array;
    const values = pattern.map((_, at) => dot(stream, at * width, along, 0, width));
    const query = rowOf(trace.head(label).queries, place, headWidth).map((one) => one * model.scale);
    const keys = trace.head(label).keys.subarray(0, (place + 1) * headWidth);
    const scores = transposed(query, keys, headWidth);
    const integrated = integrateScores(scores, values);
    const { weights, effect } = integrated;
    const mean = sum(values) / values.length;
    const source = argmax(pattern.map((weight, at) => Math.abs(weight * ((values[at] as number) - mean))));
    const contrast = contrastOf(pattern, source);
    const attended: Attended = {
      source,
      weight: pattern[source] as number,
      score: scores[source] as number,
      contrast: sum(contrast.map((one, at) => one * (scores[at] as number))),
      rival: null,
      uniform: integrated.uniform - common,
      effect,
      error: integrated.error,
    };
    const isAlone = place === 0;
    const note = isAlone ? "no other position to attend to" : this.noteOf(scores, effect);
    this.nodes.push({ node: `${label}@${place}`, text: this.text(place), value, attended: isAlone ? null : attended, note });
    if (!isAlone) this.quadratureError = Math.max(this.quadratureError, integrated.error);
    if (note) return null;
    return {
      k: this.keyCandidates(label, place, query, weights, contrast),
      q: this.queryCandidates(label, place, keys, weights, contrast),
    };
  }

  private noteOf(scores: Float64Array, effect: number): string {
    const [high, low] = [Math.max(...scores), Math.min(...scores)];
    // Equal up to the rounding of single precision.
    if (high - low <= 16 * 2 ** -23 * Math.max(1, Math.abs(low), Math.abs(high))) {
      return `it attends to all ${scores.length} sources equally, so no scores need explaining`;
    }
    return Math.abs(effect) < this.floor ? "the effect of its attention is too small to decompose its scores" : "";
  }

  /** One candidate for each writer below a layer and each position in sight. */
  private candidates(
    layer: number,
    place: number,
    project: (written: Float64Array, at: number) => number,
    make: (score: number, at: number, mean: number) => Omit<Candidate, "writer" | "at">,
    extra: Float64Array | null = null,
    places = Array.from({ length: place + 1 }, (_, at) => at),
  ): Candidate[] {
    const { trace } = this.about;
    const parts: [string, number[]][] = writersBelow(layer, trace.model).map((writer) => [writer, places.map((at) => project(trace.written(writer), at))]);
    if (extra) parts.push([`pos@${layer}`, [...extra]]);
    return parts.flatMap(([writer, scores]) => {
      const mean = sum(scores) / scores.length;
      return scores.map((score, number) => ({ writer, at: places[number] as number, ...make(score, places[number] as number, mean) }));
    });
  }

  private keyCandidates(head: string, place: number, query: Float64Array, weights: Float64Array, contrast: Float64Array): Candidate[] {
    const { model } = this.about.trace;
    const along = transposed(query, model.matrix("K", head), model.headWidth);
    const positions = model.hasPositions
      ? transposed(query, model.positionPart("K", head).subarray(0, (place + 1) * model.headWidth), model.headWidth)
      : null;
    return this.candidates(layerOf(head), place, (written, at) => dot(written, at * model.width, along, 0, model.width), (score, at, mean) => {
      const weight = weights[at] as number;
      return {
        share: (score - mean) * weight,
        exact: (score - mean) * (contrast[at] as number),
        common: mean * weight,
        gradient: (out) => add(out, along, weight),
      };
    }, positions);
  }

  private queryCandidates(head: string, place: number, keys: Float64Array, weights: Float64Array, contrast: Float64Array): Candidate[] {
    const { trace } = this.about;
    const { model } = trace;
    // The gradient at the query of the prediction, and that of the contrast.
    const [ofShare, ofExact] = [weights, contrast].map((each) =>
      product(each, keys, each.length, model.headWidth).map((one) => one * model.scale),
    ) as [Float64Array, Float64Array];
    const [along, alongExact] = [ofShare, ofExact].map((each) => transposed(each, model.matrix("Q", head), model.headWidth)) as [Float64Array, Float64Array];
    const found = writersBelow(layerOf(head), model).map((writer): Candidate => {
      const written = rowOf(trace.written(writer), place, model.width);
      const [share, exact] = [along, alongExact].map((each) => dot(written, 0, each, 0, model.width)) as [number, number];
      return { writer, at: place, share, exact, common: 0, gradient: (out) => add(out, along) };
    });
    if (model.hasPositions) {
      const own = rowOf(model.positionPart("Q", head), place, model.headWidth);
      const [share, exact] = [ofShare, ofExact].map((each) => dot(own, 0, each, 0, model.headWidth)) as [number, number];
      found.push({ writer: `pos@${layerOf(head)}`, at: place, share, exact, common: 0, gradient: () => undefined });
    }
    return found;
  }

  /** Add the edges that may be kept to their writers; the rest is left out together, with `held`, which no edge carries. */
  private keep(reader: string, to: number, side: "v" | "k" | "q", candidates: Candidate[], held = 0): void {
    const rest: LeftOut = { node: `${reader}@${to}`, kind: side, exact: 0, share: held, count: 0, held };
    for (const { writer, at, share, exact, common, gradient } of candidates) {
      if (Math.abs(share) < EDGE_PART * this.floor || share === 0) {
        rest.exact += exact;
        rest.share += share;
        // What is zero in single precision, in which the library computes, is no edge.
        rest.count += Number(Math.fround(share) !== 0);
        continue;
      }
      const one = this.writer(Math.abs(share) >= this.floor ? this.writers : this.weak, `${writer}@${at}`);
      one.edges.push({ edge: { writer, at, reader, side: reader === "logits" ? null : side, to }, exact, share });
      gradient(one.gradient);
      one.value += share;
      one.common += common;
    }
    this.leftOut.push(rest);
  }
}

/** Coefficients of a source's score minus the others', weighted by their attention. */
function contrastOf(pattern: Float64Array, source: number): Float64Array {
  const others = pattern.map((weight, at) => (at === source ? 0 : weight));
  // Attention that is all on one source leaves no weights for the others: take their plain mean.
  if (sum(others) === 0) others.fill(1).fill(0, source, source + 1);
  const total = sum(others) || 1;
  return others.map((weight, at) => (at === source ? 1 : -weight / total));
}

export const printEdge = ({ writer, at, reader, side, to }: Edit): string => `${writer}@${at}→${reader}@${to}${side === null ? "" : `.${side}`}`;

/** The circuit of a prediction; the effects of its edges are measured only if they are asked for. */
export function circuit(about: Prediction, engine: Engine, effects = true): Circuit {
  const { trace, position, token, versus } = about;
  const { layers } = trace.model;
  const total = targetOf(about, trace);
  const direct = directParts(about, trace);
  const first = Math.max(THRESHOLD * Math.max(Math.abs(total), CANCELED * sum(direct.map(Math.abs))), 2 ** -1022);
  let floor = first;
  let growth = new Growth(about, engine, floor);
  while (!growth.grow(total)) growth = new Growth(about, engine, (floor *= RAISE));
  const tokens = trace.ids.slice(0, position + 1).map((id) => engine.shown(id));
  const logits = trace.logitsAt(position);
  const key = (node: string): [number, number, string] => {
    const [, name, at] = /^(.*)@(\d+)$/.exec(node) as unknown as [string, string, string];
    return [-rankOf(name, layers), Number(at), name];
  };
  const compare = (a: string, b: string): number => {
    const [x, y] = [key(a), key(b)];
    return x[0] - y[0] || x[1] - y[1] || (x[2] < y[2] ? -1 : Number(x[2] > y[2]));
  };
  const edges = growth.edges.sort(
    (a, b) => compare(`${a.edge.reader}@${a.edge.to}`, `${b.edge.reader}@${b.edge.to}`) || SIDES.indexOf(a.edge.side ?? "v") - SIDES.indexOf(b.edge.side ?? "v"),
  );
  const effectOf = (edge: Edit): number | null =>
    !effects || edge.writer.startsWith("pos") ? null : total - targetOf(about, new Trace(trace.model, trace.ids, [edge], trace, position));
  const graph: Graph = {
    format: "pathsum-circuit",
    version: 1,
    model: engine.name,
    tokens,
    position,
    token,
    token_text: engine.shown(token),
    versus: typeof versus === "number" ? engine.shown(versus) : versus,
    total,
    probability: softmax(logits)[token] as number,
    threshold: THRESHOLD,
    floor,
    raised_from: floor > first ? first : null,
    max_nodes: MAX_NODES,
    nodes: growth.nodes.sort((a, b) => compare(a.node, b.node)),
    edges: edges.map(({ edge, exact, share }): GraphEdge => ({
      edge: printEdge(edge), exact, unit: (edge.side ?? "v") === "v" ? "logits" : "score", share, effect: effectOf(edge), prompts: 1, estimates: null,
    })),
    left_out: growth.leftOut,
    quadrature_error: growth.quadratureError,
    remainder: Math.abs(sum(direct) - total) / Math.max(Math.abs(total), ...logits.map(Math.abs)),
    by: "share",
    prompts: [tokens.join("")],
    n_layers: layers,
    sentence_spans: [],
  };
  const lead = new LeadFinder(about, graph, edges, growth.reads).find();
  const omitted = sum(growth.leftOut.filter(({ node }) => node === `logits@${position}`).map(({ share }) => share));
  const coverage = total === 0 ? 0 : 1 - Math.abs(omitted / total);
  graph.sentence_spans = circuitSentence(lead, graph, coverage);
  return { graph, lead, coverage };
}
