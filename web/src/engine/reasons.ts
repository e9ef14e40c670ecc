/** The leading head of a prediction (`pathsum.paths.lead`) and the reasons for its attention (`pathsum.paths.reasons`). */
import type { Graph, Reason, Span } from "../generated/answers";
import { WORDS } from "../generated/words";
import { percent, signed } from "../lib/format";
import { parseHead } from "../lib/names";
import { dot, product, rowOf, softmax, sum, transposed } from "../lib/algebra";
import { directParts, type Prediction, targetOf } from "./engine";
import { type Edit, Trace } from "./run";
import { fill, headSpan, join, type Slot, span } from "./sentence";

/** Parts of at least this share of the largest are named with it. */
export const COMPARABLE = 0.5;
/** A part without which the prediction drops by less than this share of it is no reason. */
const LEAST_EFFECT = 0.02;
/** A head copies if more than this share of its attention is on earlier followers: most of it. */
const MOST = 0.5;
/** Parts of a key or a query that are cut, the largest shares first. */
const PARTS = 12;
/** Attention to an earlier follower is induction if it exceeds this many times the usual attention, and that without the repeat. */
const TIMES_USUAL = 2;
/** Tokens that replace the one before a follower. */
const REPLACEMENTS = 4;

/** The head that explains most of a prediction; the fields are those of `pathsum.paths.lead.Lead`. */
export interface Lead {
  head: string;
  share: number;
  probability: number;
  copying: string[];
  source: number | null;
  weight: number;
  kind: "induction" | "sink" | null;
  reasons: Reason[];
  note: string;
}

/** An edge of a graph and its share. */
export interface Shared {
  edge: Edit;
  share: number;
}

/** Whether a head attends to a source by induction, or as to a sink. */
function attentionKind(trace: Trace, head: string, position: number, source: number): "induction" | "sink" | null {
  if (exceedsUsual(trace, head, position, source) && needsRepeat(trace, head, position, [source])) return "induction";
  if (source !== 0 || position === 0) return null;
  const isStart = trace.ids[0] === trace.model.startToken;
  return isStart || !needsRepeat(trace, head, position, [source], [0]) ? "sink" : null;
}

/** Whether a head attends to some sources less than half as much if the tokens before them, or at some places, are other ones. */
function needsRepeat(trace: Trace, head: string, position: number, sources: readonly number[], at?: readonly number[]): boolean {
  const ids = trace.ids.slice(0, position + 1);
  const others = [...new Set([...ids].reverse())].filter((id) => id !== ids[position]).slice(0, REPLACEMENTS);
  if (others.length === 0) others.push(((ids[position] as number) + 1) % trace.model.vocabulary);
  const before = sources.map((source) => source - 1).filter((place) => !sources.includes(place));
  const places = at ?? (before.length > 0 ? before : [Math.min(...sources) - 1]);
  const attention = (run: Trace): number => sum(sources.map((source) => run.weight(head, position, source)));
  const left = others.map((id) => attention(new Trace(trace.model, ids.map((own, place) => (places.includes(place) ? id : own)))));
  return attention(trace) > (TIMES_USUAL * sum(left)) / left.length;
}

/** Whether a source after a copy of a token gets more attention than in rows without a copy. */
function exceedsUsual(trace: Trace, head: string, position: number, source: number): boolean {
  const { ids } = trace;
  if (source > 0 && source < position && ids[source - 1] === ids[position]) {
    const offset = position - source;
    const rows = Array.from({ length: position }, (_, row) => row);
    const others = [
      rows.filter((row) => row > source && ids[row] !== ids[position]).map((row) => trace.weight(head, row, source)),
      rows.filter((row) => row > offset && ids[row] !== ids[row - offset - 1]).map((row) => trace.weight(head, row, row - offset)),
    ].filter((each) => each.length > 0);
    const usual = others.map((each) => sum(each) / each.length);
    return usual.length > 0 && trace.weight(head, position, source) > TIMES_USUAL * Math.max(...usual);
  }
  return false;
}

/** A run without some heads, as far as a position needs it. */
export function without(trace: Trace, heads: readonly string[], position: number): Trace {
  const edits = heads.map((writer): Edit => ({ writer, at: null, reader: null, side: null, to: null }));
  return new Trace(trace.model, trace.ids, edits, trace, position);
}

export const probabilityOf = (trace: Trace, position: number, token: number): number => softmax(trace.logitsAt(position))[token] as number;

/** Earlier positions of a token right after a copy of the token at a position. */
const followers = ({ ids }: Trace, position: number, token: number): number[] =>
  ids.flatMap((id, place) => (place >= 1 && place <= position && id === token && ids[place - 1] === ids[position] ? [place] : []));

/** How much a head adds to the prediction directly. */
const directShare = (about: Prediction, head: string): number =>
  directParts(about, about.trace)[1 + about.trace.model.labels.indexOf(head)] as number;

/** The heads that seem to copy a token by induction, the strongest attention first. */
export function copyingHeads(trace: Trace, position: number, token: number): string[] {
  const sources = followers(trace, position, token);
  const about: Prediction = { trace, position, token, versus: "mean" };
  const least = LEAST_EFFECT * targetOf(about, trace);
  const weights = new Map<string, number>();
  for (const head of trace.model.labels) {
    const attention = (at: number): number => trace.weight(head, position, at);
    if (!(sum(sources.map(attention)) > MOST && directShare(about, head) > least)) continue;
    weights.set(head, sum(sources.filter((at) => exceedsUsual(trace, head, position, at)).map(attention)));
  }
  return [...weights].filter(([, weight]) => weight > MOST).sort(([, a], [, b]) => b - a).map(([head]) => head);
}

/** The leading head of a circuit, found in its graph and by cutting. */
export class LeadFinder {
  constructor(
    private readonly about: Prediction,
    private readonly graph: Graph,
    private readonly edges: readonly Shared[],
    private readonly reads: ReadonlyMap<string, Shared[]>,
  ) {}

  /** The edges into a node, the largest share first. */
  private inputs(node: string, side: "v" | "k" | "q" | null): Shared[] {
    const found = this.edges.filter(({ edge }) => `${edge.reader}@${edge.to}` === node && edge.side === side);
    return found.sort((a, b) => Math.abs(b.share) - Math.abs(a.share));
  }

  find(): Lead | null {
    const { trace, position, token } = this.about;
    const direct = this.inputs(`logits@${position}`, null);
    const shares = new Map(direct.filter(({ edge }) => parseHead(edge.writer)).map(({ edge, share }) => [edge.writer, share]));
    const shareOf = (head: string): number => shares.get(head) as number;
    const strongest = [...shares.keys()].find((head) => shareOf(head) * this.graph.total > 0);
    const sources = followers(trace, position, token);
    let copying = copyingHeads(trace, position, token).filter((head) => shares.has(head) && needsRepeat(trace, head, position, sources));
    if (strongest !== undefined && sum(copying.map(shareOf)) < COMPARABLE * shareOf(strongest)) {
      copying = []; // other heads make this prediction
    }
    if (copying.length > 0 && probabilityOf(without(trace, copying, position), position, token) >= this.graph.probability) {
      copying = []; // the prediction does not rely on them
    }
    let [head, probability] = ["", Infinity];
    for (const one of copying.length > 0 || strongest === undefined ? copying : [strongest]) {
      const left = probabilityOf(without(trace, [one], position), position, token);
      if (left < probability) [head, probability] = [one, left];
    }
    if (head === "") return null;
    const node = this.graph.nodes.find((one) => one.node === `${head}@${position}`);
    const weight = (at: number): number => trace.weight(head, position, at);
    let source = node?.attended?.source ?? null;
    if (copying.length > 0) source = sources.reduce((a, b) => (weight(b) > weight(a) ? b : a));
    return {
      head,
      share: shareOf(head),
      probability,
      copying,
      source,
      weight: source === null ? 0 : weight(source),
      kind: source === null ? null : attentionKind(trace, head, position, source),
      reasons: node && source !== null ? this.reasons(node.node, source) : [],
      note: node?.note ?? "",
    };
  }

  /** The reasons for the attention of a head node to a source, keys before queries. */
  private reasons(node: string, source: number): Reason[] {
    const sign = Math.sign(this.graph.total);
    const least = LEAST_EFFECT * Math.abs(this.graph.total);
    const parts = [...(this.reads.get(node) ?? [])].sort((a, b) => Math.abs(b.share) - Math.abs(a.share));
    return (["k", "q"] as const).flatMap((side) => {
      const edges = parts.filter(({ edge }) => edge.side === side && (side === "q" || edge.at === source)).slice(0, PARTS);
      const measured = edges.map(({ edge, share }) => this.measure(edge, share, source));
      const largest = Math.max(...edges.map(({ share }) => Math.abs(share)));
      const strongest = Math.max(...measured.map(({ effect }) => sign * effect));
      return measured.filter(({ edge, share, effect, weight }) => {
        const before = this.about.trace.weight(edge.split("→")[1]?.split("@")[0] as string, Number(node.split("@")[1]), source);
        const matters = sign * effect > least && Math.fround(weight) < before;
        return matters && (sign * share >= COMPARABLE * largest || sign * effect >= COMPARABLE * strongest);
      });
    });
  }

  private measure(edge: Edit, share: number, source: number): Reason {
    const { trace, position, token } = this.about;
    const [reader, to] = [edge.reader as string, edge.to as number];
    // Positions are taken out of the scores, everything else out of the read.
    const pattern = edge.writer.startsWith("pos") ? this.patternWithoutPosition(edge) : null;
    const cut = pattern ? this.withPattern(reader, to, pattern) : edge;
    const after = new Trace(trace.model, trace.ids, [cut], trace, position);
    return {
      edge: `${edge.writer}@${edge.at}→${reader}@${to}.${edge.side}`,
      share,
      effect: this.graph.total - targetOf(this.about, after),
      weight: pattern ? (pattern[source] as number) : after.weight(reader, to, source),
      probability: softmax(after.logitsAt(position))[token] as number,
      wrote: this.wrote(`${edge.writer}@${edge.at}`),
    };
  }

  /** The position from which a head moved most of its output there, if there is one. */
  private wrote(writer: string): number | null {
    const moved = new Map<number, number>();
    for (const { edge, share } of this.inputs(writer, "v")) moved.set(edge.at as number, (moved.get(edge.at as number) ?? 0) + share);
    const value = this.graph.nodes.find(({ node }) => node === writer)?.value ?? 0;
    const most = [...moved].find(([, share]) => share * value > MOST * value ** 2);
    return most ? most[0] : null;
  }

  private patternWithoutPosition({ reader, side, at, to }: Edit): Float64Array {
    const { trace } = this.about;
    const { headWidth, scale } = trace.model;
    const head = reader as string;
    const query = rowOf(trace.head(head).queries, to as number, headWidth);
    const keys = trace.head(head).keys.subarray(0, ((to as number) + 1) * headWidth);
    const scores = transposed(query, keys, headWidth);
    if (side === "k") {
      (scores[at as number] as number) -= dot(query, 0, trace.model.positionPart("K", head), (at as number) * headWidth, headWidth);
      return softmax(scores.map((score) => score * scale));
    }
    const part = transposed(rowOf(trace.model.positionPart("Q", head), at as number, headWidth), keys, headWidth);
    return softmax(scores.map((score, from) => (score - (part[from] as number)) * scale));
  }

  private withPattern(reader: string, to: number, pattern: Float64Array): Edit {
    const { trace } = this.about;
    const { headWidth } = trace.model;
    const z = trace.head(reader).z.slice();
    z.set(product(pattern, trace.head(reader).values.subarray(0, (to + 1) * headWidth), to + 1, headWidth), to * headWidth);
    return { writer: reader, at: null, reader: null, side: null, to: null, z };
  }
}

/** The part of the leading head in words: its share, its attention and the reasons for it. */
export function circuitSentence(lead: Lead | null, graph: Graph, coverage: number): Span[] {
  const words = WORDS.circuit;
  if (!lead) return fill(words.no_head);
  const token = (at: number): Span => span(quoted(graph.tokens[at] as string), "token", { position: at });
  let [attends, because]: [Span[], Span[]] = [[], []];
  if (lead.source !== null && !lead.note) {
    const kind = lead.kind === null ? "" : words[lead.kind];
    attends = fill(words.attends, { token: token(lead.source), weight: percent(lead.weight), position: String(lead.source), kind });
    because = lead.reasons.length > 0 ? fill(words.because, { reasons: writeReasons(lead.reasons, token, true) }) : fill(words.no_reason);
  }
  const total = `${signed(graph.total)} logits`;
  const isNeeded = lead.probability < graph.probability || graph.total <= 0;
  return fill(words.adds, {
    head: headSpan(lead.head),
    share: signed(lead.share),
    total,
    keeps: isNeeded ? [] : fill(words.keeps, { before: percent(graph.probability), after: percent(lead.probability) }),
    attends,
    because,
    coverage: coverage < COMPARABLE ? fill(words.coverage, { share: percent(Math.max(0, coverage)), total }) : [],
  });
}

/** As Python quotes a text whose white space and control characters are visible already. */
function quoted(text: string): string {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  return `${mark}${text.replaceAll("\\", "\\\\").replaceAll(mark, `\\${mark}`)}${mark}`;
}

/** Reasons in words, as a list; `token` gives the token at a position. */
export function writeReasons(reasons: readonly Reason[], token: (at: number) => Slot, cuts: boolean): Span[] {
  const words = WORDS.reasons;
  const clauses = reasons.map((reason): Span[] => {
    const [, writer, at, side] = /^(.*)@(\d+)→.*\.([qk])$/.exec(reason.edge) as unknown as [string, string, string, string];
    const read = side === "k" ? "key" : "query";
    const cut = cuts ? fill(words.cut, { effect: signed(reason.effect) }) : [];
    if (parseHead(writer)) {
      const name = headSpan(writer);
      if (reason.wrote === null) return fill(words.wrote_something, { writer: name, read, cut });
      const where = reason.wrote === Number(at) - 1 ? fill(words.previous) : fill(words.at_position, { position: String(reason.wrote) });
      return fill(words.wrote, { writer: name, token: token(reason.wrote), where, read, cut });
    }
    if (writer === "embed") return fill(words.token, { read, token: token(Number(at)), cut });
    return fill(words.position, { read, position: at, cut });
  });
  return join([join(clauses.slice(0, -1), ", "), ...clauses.slice(-1)].filter((each) => each.length > 0), " and ");
}

