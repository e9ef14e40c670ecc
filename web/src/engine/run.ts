/**
 * The forward pass of a small attention-only model, with things switched off: the page's counterpart of
 * `pathsum.model.forward`, tested against it.
 *
 *     stream = W_E[tokens]
 *     for each layer: A = softmax((x + p) W_Q W_Kᵀ (x + p)ᵀ), z = A x W_V, stream += Σ z W_O
 *     logits = stream W_U
 */
import type { Matrix, PageWeights } from "../generated/answers";
import { layerOf, parseHead, type Side } from "../lib/names";
import { Refused } from "../lib/source/source";
import { add, dot, product, rowOf, softmax } from "../lib/algebra";

/**
 * Something that is off: a head or the embedding (`reader` is null), or what a reader sees of it. Null positions
 * stand for all. A head whose `z` is given writes that instead of nothing.
 */
export interface Edit {
  writer: string;
  at: number | null;
  reader: string | null;
  side: Side | null;
  to: number | null;
  z?: Float64Array;
}

/** Weights by layer and head. */
export class PageModel {
  readonly layers: number;
  readonly heads: number;
  readonly width: number;
  readonly headWidth: number;
  readonly vocabulary: number;
  readonly startToken: number | null;
  readonly labels: string[];
  readonly scale: number;
  readonly W_E: Float64Array;
  readonly W_U: Float64Array;
  private readonly W_pos: Float64Array | null;
  private readonly stacked: Record<"Q" | "K" | "V" | "O", Float64Array>;
  private readonly context: number;
  private readonly means: Float64Array;
  private readonly positions = new Map<string, Float64Array>();

  constructor(weights: PageWeights) {
    const doubles = (matrix: Matrix): Float64Array => Float64Array.from(matrix.data);
    const [layers, heads, width, headWidth] = weights.W_Q.shape as [number, number, number, number];
    [this.layers, this.heads, this.width, this.headWidth] = [layers, heads, width, headWidth];
    this.vocabulary = weights.W_E.shape[0] as number;
    this.startToken = weights.start_token;
    this.labels = Array.from({ length: layers * heads }, (_, i) => `L${Math.floor(i / heads)}H${i % heads}`);
    this.scale = weights.score_scale;
    this.W_E = doubles(weights.W_E);
    this.W_U = doubles(weights.W_U);
    this.W_pos = weights.W_pos && doubles(weights.W_pos);
    this.context = weights.W_pos?.shape[1] ?? 0;
    this.stacked = { Q: doubles(weights.W_Q), K: doubles(weights.W_K), V: doubles(weights.W_V), O: doubles(weights.W_O) };
    this.means = product(this.W_U, new Float64Array(this.vocabulary).fill(1 / this.vocabulary), this.vocabulary, 1);
  }

  /** The heads of a layer. */
  headsOf(layer: number): string[] {
    return this.labels.slice(layer * this.heads, (layer + 1) * this.heads);
  }

  /** One head's matrix: [width, headWidth], for O [headWidth, width]. */
  matrix(which: "Q" | "K" | "V" | "O", head: string): Float64Array {
    return rowOf(this.stacked[which], this.labels.indexOf(head), this.width * this.headWidth);
  }

  get hasPositions(): boolean {
    return this.W_pos !== null;
  }

  /** What positions add to a head's queries or keys: [context, headWidth]. */
  positionPart(side: "Q" | "K", head: string): Float64Array {
    const known = this.positions.get(side + head);
    if (known) return known;
    const rows = rowOf(this.W_pos as Float64Array, layerOf(head), this.context * this.width);
    const found = product(rows, this.matrix(side, head), this.width, this.headWidth);
    this.positions.set(side + head, found);
    return found;
  }

  /** The gradient at the stream of a token's logit, minus the mean logit, another token's, or nothing. */
  direction(token: number, versus: number | "mean" | null): Float64Array {
    const out = new Float64Array(this.width);
    for (let i = 0; i < this.width; i++) {
      const at = i * this.vocabulary;
      const less = versus === "mean" ? this.means[i] : versus === null ? 0 : this.W_U[at + versus];
      out[i] = (this.W_U[at + token] as number) - (less as number);
    }
    return out;
  }
}

/** What a name switches off, or the reason why nothing has it. */
export function parseEdit(name: string, model: PageModel, length: number): Edit {
  const found = /^([^@→>\s-]+)(?:@(\d+))?(?:\s*(?:→|->|>)\s*([^@.]+)(?:@(\d+))?(?:\.([qkv]))?)?$/.exec(name);
  const place = (text: string | undefined): number | null => (text === undefined ? null : Number(text));
  if (!found) throw new Refused(`'${name}' is not a head or an edge; write L0H3, L0H3→L1H0.k or L0H3@4→L1H0@9.k`, "PathError");
  const edit: Edit = {
    writer: found[1] as string,
    at: place(found[2]),
    reader: found[3] ?? null,
    side: (found[5] ?? null) as Side | null,
    to: place(found[4]),
  };
  const isHead = (label: string | null): boolean => label !== null && model.labels.includes(label);
  const isWriter = edit.writer === "embed" || isHead(edit.writer);
  const isUpward = (parseHead(edit.writer)?.layer ?? -1) < (parseHead(edit.reader ?? "")?.layer ?? model.layers);
  const isReader = edit.reader === null || (edit.side === null ? edit.reader === "logits" : isHead(edit.reader) && isUpward);
  if (!isWriter || !isReader) throw new Refused(`${name} does not exist in this model`, "PathError");
  if (edit.reader === null && edit.at !== null && edit.writer === "embed") {
    throw new Refused(`'${name}' is not a head; at single positions only heads have a switch`, "PathError");
  }
  for (const position of [edit.at, edit.to]) {
    if (position !== null && position >= length) {
      throw new Refused(`${name} is out of range: the text has positions 0 to ${length - 1}`);
    }
  }
  return edit;
}

/** What a head reads and writes: [position, headWidth], and its pattern [destination, source]. */
interface HeadRun {
  queries: Float64Array;
  keys: Float64Array;
  values: Float64Array;
  pattern: Float64Array;
  z: Float64Array;
}

/** A run: what every head reads and writes. Of a run `until` a position, later rows are not computed. */
export class Trace {
  readonly length: number;
  /** Before each layer and after the last: [position, width]. */
  readonly streams: Float64Array[] = [];
  private readonly heads = new Map<string, HeadRun>();
  private readonly outputs = new Map<string, Float64Array>();
  private readonly logits = new Map<number, Float64Array>();

  /** With `base`, the unedited run of the same text, only what differs from it is computed. */
  constructor(
    readonly model: PageModel,
    readonly ids: readonly number[],
    readonly edits: readonly Edit[] = [],
    private readonly base: Trace | null = null,
    private readonly until: number | null = null,
  ) {
    this.length = ids.length;
    this.streams.push(this.embedded());
    for (let layer = 0; layer < model.layers; layer++) this.compute(layer);
  }

  private embedded(): Float64Array {
    const { width, W_E } = this.model;
    const isOff = this.edits.some((edit) => edit.writer === "embed" && edit.reader === null);
    if (this.base && !isOff) return this.base.streams[0] as Float64Array;
    const out = new Float64Array(this.length * width);
    if (!isOff) this.ids.forEach((id, place) => add(out, rowOf(W_E, id, width), 1, place * width));
    return out;
  }

  private compute(layer: number): void {
    const { model, base } = this;
    const { width, headWidth } = model;
    const stream = this.streams[layer] as Float64Array;
    const old = base?.streams[layer];
    const rows = Array.from({ length: this.until === null ? this.length : this.until + 1 }, (_, row) => row);
    const changed = rows.filter((row) => !old || rowOf(stream, row, width).some((value, i) => value !== old[row * width + i]));
    const next = (base?.streams[layer + 1] ?? stream).slice();
    if (old) for (const row of changed) for (let i = row * width; i < (row + 1) * width; i++) (next[i] as number) += (stream[i] as number) - (old[i] as number);
    for (const head of model.headsOf(layer)) {
      const isSame = base && changed.length === 0 && !this.edits.some(({ writer, reader }) => (reader ?? writer) === head);
      const found = isSame ? base.head(head) : this.attend(head, rows, changed);
      this.heads.set(head, found);
      if (isSame) continue;
      const z = found.z.slice();
      if (base) add(z, base.head(head).z, -1);
      add(next, product(z, model.matrix("O", head), headWidth, width));
    }
    this.streams.push(next);
  }

  private attend(head: string, rows: readonly number[], changed: readonly number[]): HeadRun {
    const { headWidth, layers } = this.model;
    const mine = this.edits.filter((edit) => edit.reader === head);
    const start = (key: keyof HeadRun, width: number): Float64Array => this.base?.head(head)[key].slice() ?? new Float64Array(this.length * width);
    const read = (side: Side, key: "queries" | "keys" | "values"): Float64Array =>
      this.read(head, side, mine.filter((edit) => edit.to === null && edit.side === side), start(key, headWidth), changed);
    const [query, key, value] = [read("q", "queries"), read("k", "keys"), read("v", "values")];
    const [pattern, z] = [start("pattern", this.length), start("z", headWidth)];
    const isAffected = !this.base || mine.some((edit) => edit.to === null);
    for (const to of rows) {
      // Of the top layer of a run until a position, only that row is needed.
      if (this.until !== null && layerOf(head) === layers - 1 && to !== this.until) continue;
      const apart = mine.filter((edit) => edit.to === to);
      if (!isAffected && apart.length === 0 && !(to >= (changed[0] ?? Infinity))) continue;
      // A destination that reads something else than the others has its own query, keys or values.
      const own = (side: Side, shared: Float64Array): Float64Array =>
        apart.some((edit) => edit.side === side)
          ? this.read(head, side, mine.filter((edit) => edit.side === side && (edit.to === null || edit.to === to)), shared.slice(), [])
          : shared;
      const [queries, keys, values] = [own("q", query), own("k", key), own("v", value)];
      const scores = new Float64Array(to + 1);
      for (let from = 0; from <= to; from++) {
        scores[from] = this.model.scale * dot(queries, to * headWidth, keys, from * headWidth, headWidth);
      }
      // Attention that is zero in single precision, in which the library computes, is zero here too.
      const weights = softmax(scores).map(Math.fround);
      pattern.set(weights, to * this.length);
      z.set(product(weights, values, to + 1, headWidth), to * headWidth);
    }
    for (const { writer, reader, at, z: given } of this.edits) {
      if (writer !== head || reader !== null) continue;
      if (given) z.set(given);
      else if (at === null) z.fill(0);
      else z.fill(0, at * headWidth, (at + 1) * headWidth);
    }
    return { queries: query, keys: key, values: value, pattern, z };
  }

  /** A head's queries, keys or values without what is cut: `out`, recomputed where the stream or the cut changes it. */
  private read(head: string, side: Side, cut: readonly Edit[], out: Float64Array, changed: readonly number[]): Float64Array {
    const { model } = this;
    const matrix = side === "q" ? "Q" : side === "k" ? "K" : "V";
    const places = cut.some((edit) => edit.at === null) ? this.ids.map((_, place) => place) : cut.map((edit) => edit.at as number);
    const stream = this.without(this.streams[layerOf(head)] as Float64Array, cut);
    for (const row of new Set([...changed, ...places])) {
      const found = product(rowOf(stream, row, model.width), model.matrix(matrix, head), model.width, model.headWidth);
      if (matrix !== "V" && model.hasPositions) add(found, rowOf(model.positionPart(matrix, head), row, model.headWidth));
      out.set(found, row * model.headWidth);
    }
    return out;
  }

  /** A stream without what some writers wrote, each once however often it is cut. */
  private without(stream: Float64Array, cut: readonly Edit[]): Float64Array {
    if (cut.length === 0) return stream;
    const { width } = this.model;
    const out = stream.slice();
    for (const writer of new Set(cut.map((edit) => edit.writer))) {
      const own = cut.filter((edit) => edit.writer === writer);
      const written = this.written(writer);
      if (own.some((edit) => edit.at === null)) add(out, written, -1);
      else for (const at of new Set(own.map((edit) => edit.at as number))) add(out, rowOf(written, at, width), -1, at * width);
    }
    return out;
  }

  /** What a head or the embedding writes into the stream: [position, width]. */
  written(writer: string): Float64Array {
    if (writer === "embed") return this.streams[0] as Float64Array;
    const known = this.outputs.get(writer);
    if (known) return known;
    const found = product(this.head(writer).z, this.model.matrix("O", writer), this.model.headWidth, this.model.width);
    this.outputs.set(writer, found);
    return found;
  }

  logitsAt(position: number): Float64Array {
    const known = this.logits.get(position);
    if (known) return known;
    const { width, vocabulary, W_U } = this.model;
    const cut = this.edits.filter(({ reader, at, to }) => reader === "logits" && (at ?? position) === position && (to ?? position) === position);
    const read = rowOf(this.streams.at(-1) as Float64Array, position, width).slice();
    for (const writer of new Set(cut.map((edit) => edit.writer))) add(read, rowOf(this.written(writer), position, width), -1);
    const found = product(read, W_U, width, vocabulary);
    this.logits.set(position, found);
    return found;
  }

  head(label: string): HeadRun {
    return this.heads.get(label) as HeadRun;
  }

  pattern(head: string): Float64Array {
    return this.head(head).pattern;
  }

  /** How much of its attention a head gives a source. */
  weight(head: string, to: number, from: number): number {
    return this.pattern(head)[to * this.length + from] as number;
  }
}
