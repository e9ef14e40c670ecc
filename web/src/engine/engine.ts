/**
 * Answers that the page computes itself, for small attention-only models: the same questions and records as
 * `pathsum.explorer.answers`, tested against them.
 */
import type {
  Answers,
  AttentionAnswer,
  AttentionParams,
  Matrix,
  ModelInfo,
  PageWeights,
  Params,
  PredictionParams,
  QuestionName,
  ScoreParts,
  TextParams,
  TextRun,
  Vocabulary,
  WithoutAnswer,
  WithoutParams,
} from "../generated/answers";
import { layerOf } from "../lib/names";
import { Refused } from "../lib/source/source";
import { add, argmax, dot, largest, logSumExp, product, rowOf, softmax, sum, transposed } from "../lib/algebra";
import { circuit } from "./circuit";
import { lens, lensParts } from "./lens";
import { pathSum } from "./paths";
import { PageModel, parseEdit, Trace } from "./run";
import { visible } from "./sentence";
import { story, storyPosition } from "./story";
import { Tokenizer } from "./tokenizer";

/** Predictions listed at each position, and after something was switched off. */
const TOP_PREDICTIONS = 10;
const TOP = 8;
/** Runs that are kept: those of the texts tried last. */
const RUNS = 16;

export const matrix = (shape: number[], data: Iterable<number>): Matrix => ({ shape, data: Float32Array.from(data) });

/** A prediction: a run, a position, a token and its comparison. */
export interface Prediction {
  trace: Trace;
  position: number;
  token: number;
  versus: number | "mean" | null;
}

/** The number that is explained: a logit, minus what it is compared with. */
export function targetOf({ position, token, versus }: Prediction, trace: Trace): number {
  const logits = trace.logitsAt(position);
  const less = versus === null ? 0 : versus === "mean" ? sum(logits) / logits.length : (logits[versus] as number);
  return (logits[token] as number) - less;
}

/** Whether the page computes the answer to a question, if it has the model's weights. */
export const isComputed = (name: QuestionName): boolean =>
  ["run", "attention", "scores", "without", "paths", "why", "story", "lens", "lens_parts"].includes(name);

export class Engine {
  readonly model: PageModel;
  readonly name: string;
  private readonly tokenizer: Tokenizer | null;
  private readonly runs = new Map<string, Trace>();

  constructor(
    private readonly weights: PageWeights,
    readonly info: ModelInfo,
    private readonly vocabulary: Vocabulary,
  ) {
    this.model = new PageModel(weights);
    this.name = weights.name;
    this.tokenizer = weights.tokenizer === null ? null : new Tokenizer(weights.tokenizer);
  }

  private readonly compute: { [N in QuestionName]?: (params: Params[N]) => Answers[N] } = {
    run: (params) => this.run(params),
    attention: (params) => this.attention(params),
    scores: (params) => this.scores(params),
    without: (params) => this.without(params),
    paths: (params) => pathSum(this.predictionOf(params), this),
    lens: (params) => lens(this.trace(params), params.readout ?? "direct", this.positionOf(this.trace(params), params.start ?? 0)),
    lens_parts: (params) => {
      const trace = this.trace(params);
      const position = this.positionOf(trace, params.position);
      if (!(params.layer >= 0 && params.layer <= this.model.layers)) throw new Refused(`There is no stream ${params.layer}: streams are 0 to ${this.model.layers}.`);
      return lensParts(trace, params.layer, position, params.token === undefined ? argmax(trace.logitsAt(position)) : this.tokenId(params.token));
    },
    why: (params) => circuit(this.predictionOf(params), this).graph,
    story: (params) => {
      const found = storyPosition(this.trace(params), params.position ?? null);
      return story(this.predictionOf({ ...params, position: found.position }), found.first, this);
    },
  };

  answer<N extends QuestionName>(name: N, params: Params[N]): Answers[N] {
    return (this.compute[name] as (params: Params[N]) => Answers[N])(params);
  }

  /** A token as a piece of text; bytes that are no text as U+FFFD and the bytes. */
  piece(token: number): string {
    return this.vocabulary.tokens[token] as string;
  }

  /** A token as tables show it. */
  shown(token: number): string {
    return visible(this.piece(token), token);
  }

  /** The tokens of the text that a question is about, before truncation. */
  private ids(params: TextParams): number[] {
    const { text, ids, example } = params;
    if ([text, ids, example].filter((one) => one !== undefined).length !== 1) {
      throw new Refused("Give the text in exactly one way, as text, ids or example.");
    }
    let found = this.info.examples[example ?? 0]?.ids ?? [];
    if (ids !== undefined) found = ids.split(",").filter((one) => one.trim() !== "").map((one) => this.tokenId(Number(one)));
    if (text !== undefined) {
      if (!this.tokenizer) throw new Refused("This model has no tokenizer, so it cannot read text; give token ids.", "TokenError");
      found = [...(this.weights.start_token === null ? [] : [this.weights.start_token]), ...this.tokenizer.encode(text)];
    }
    if (found.length === 0) throw new Refused("The text is empty, and this model has no start token; type at least one token.", "TokenError");
    return found;
  }

  /** A token by id, or by its text if that is one token. */
  private tokenId(name: string | number): number {
    const plain = String(name).replaceAll("·", " ").replaceAll("⏎", "\n");
    const pieces = typeof name === "number" ? [name] : (this.tokenizer?.encode(plain) ?? []);
    const id = pieces.length === 1 ? (pieces[0] as number) : Number(name);
    if (!(Number.isInteger(id) && id >= 0 && id < this.model.vocabulary)) throw new Refused(`'${name}' is not one token of this model.`, "TokenError");
    return id;
  }

  private trace(params: TextParams): Trace {
    const ids = this.ids(params).slice(0, this.info.n_ctx);
    const key = ids.join(",");
    const known = this.runs.get(key) ?? new Trace(this.model, ids);
    this.runs.delete(key);
    this.runs.set(key, known); // most recently used last
    for (const oldest of this.runs.keys()) {
      if (this.runs.size <= RUNS) break;
      this.runs.delete(oldest);
    }
    return known;
  }

  private positionOf(trace: Trace, position: number): number {
    if (position >= 0 && position < trace.length) return position;
    throw new Refused(`There is no position ${position}: the text has positions 0 to ${trace.length - 1}.`);
  }

  predictionOf(params: PredictionParams): Prediction {
    const trace = this.trace(params);
    const position = this.positionOf(trace, params.position);
    const versus = params.versus ?? "mean";
    return {
      trace,
      position,
      token: params.token === undefined ? targetToken(trace, position) : this.tokenId(params.token),
      versus: versus === "mean" ? "mean" : versus === "none" ? null : this.tokenId(versus),
    };
  }

  private run(params: TextParams): TextRun {
    const given = this.ids(params).length;
    const trace = this.trace(params);
    const { ids, length } = trace;
    const k = Math.min(TOP_PREDICTIONS, this.model.vocabulary);
    const losses = lossesOf(trace);
    const rows = ids.map((_, place) => {
      const logits = trace.logitsAt(place);
      const total = logSumExp(logits);
      const top = largest(logits, k);
      const values = top.map((id) => logits[id] as number);
      return { top, values, shares: values.map((logit) => Math.exp(logit - total)), rank: place + 1 < length ? rankOf(logits, ids[place + 1] as number) : 0 };
    });
    const probabilities = losses.map((loss) => Math.exp(-loss));
    const [[highlight, source]] = rankByInterest(ids, probabilities) as [[number, number | null]];
    // The parts of the top logit of that prediction, added up, against the model's own.
    const predicted: Prediction = { trace, position: highlight, token: rows[highlight]?.top[0] as number, versus: null };
    const error = sum(directParts(predicted, trace)) - targetOf(predicted, trace);
    return {
      format: "pathsum-page-run",
      version: 1,
      ids: [...ids],
      pieces: ids.map((id) => this.piece(id)),
      given,
      truncated: given > length,
      n_ctx: this.info.n_ctx,
      top_ids: { shape: [length, k], data: Int32Array.from(rows.flatMap(({ top }) => top)) },
      top_probs: matrix([length, k], rows.flatMap(({ shares }) => shares)),
      top_logits: matrix([length, k], rows.flatMap(({ values }) => values)),
      next_rank: { shape: [length], data: Int32Array.from(rows, ({ rank }) => rank) },
      next_prob: matrix([length], probabilities),
      loss: matrix([length], losses),
      remainder: Math.abs(error / targetOf(predicted, trace)),
      highlight,
      highlight_source: source,
    };
  }

  private attention(params: AttentionParams): AttentionAnswer {
    const trace = this.trace(params);
    const { length } = trace;
    const weighting = params.weighting ?? "attention";
    const heads = params.head === undefined ? this.model.labels : [this.known(params.head)];
    const dense = heads.map((head) => this.weighted(trace, head, weighting));
    let extent = 0;
    for (const cells of dense) for (const cell of cells) extent = Math.max(extent, Math.abs(cell));
    // Moved information has no natural unit, so the largest is set to 1.
    const unit = weighting === "information" && extent > 0 ? 1 / extent : 1;
    const activity = new Float32Array(heads.length * length);
    const bySource = new Float32Array(heads.length * length);
    dense.forEach((cells, head) => {
      for (let to = 0; to < length; to++) {
        const row = cells.subarray(to * length, (to + 1) * length);
        const size = sum(row.map(Math.abs));
        activity[head * length + to] = weighting === "attention" ? 1 - (row[0] as number) : size * unit;
        row.forEach((cell, from) => {
          const at = head * length + from;
          const known = bySource[at] as number;
          bySource[at] = weighting === "attention" ? Math.max(known, cell) : known + Math.abs(cell) * unit;
        });
      }
    });
    const cells = new Float32Array(heads.length * length * length);
    dense.forEach((own, head) => cells.set(own.map((cell) => cell * unit), head * length * length));
    return {
      format: "pathsum-page-attention",
      version: 1,
      weighting,
      heads,
      tokens: length,
      dense: { shape: [heads.length, length, length], data: cells },
      columns: null,
      values: null,
      kept: 1,
      extent: extent * unit,
      activity: { shape: [heads.length, length], data: activity },
      source_activity: { shape: [heads.length, length], data: bySource },
    };
  }

  private known(head: string): string {
    if (!this.model.labels.includes(head)) throw new Refused(`There is no head '${head}' in this model.`, "HeadError");
    return head;
  }

  /** A pattern, times the size of what is moved or its effect on the logit of the next token. */
  private weighted(trace: Trace, label: string, weighting: "attention" | "information" | "effect"): Float64Array {
    const pattern = trace.pattern(label);
    if (weighting === "attention") return pattern;
    const { width, headWidth } = this.model;
    const out = new Float64Array(pattern.length);
    const moved = product(trace.head(label).values, this.model.matrix("O", label), headWidth, width);
    for (let to = 0; to < trace.length; to++) {
      const direction = weighting === "effect" ? this.model.direction(targetToken(trace, to), "mean") : null;
      for (let from = 0; from <= to; from++) {
        const cell = to * trace.length + from;
        const size = direction ? dot(moved, from * width, direction, 0, width) : Math.sqrt(dot(moved, from * width, moved, from * width, width));
        out[cell] = (pattern[cell] as number) * size;
      }
    }
    return out;
  }

  private scores(params: Params["scores"]): ScoreParts {
    const trace = this.trace(params);
    const { model } = this;
    const label = this.known(params.head);
    const layer = layerOf(label);
    const [embed, ...below] = writersBelow(layer, model);
    const names = [embed as string, ...(model.hasPositions ? [`pos@${layer}`] : []), ...below];
    const side = (which: "Q" | "K", factor: number): Matrix => {
      const data = new Float32Array(names.length * trace.length * model.headWidth);
      names.forEach((name, number) => {
        const part = name.startsWith("pos")
          ? model.positionPart(which, label).subarray(0, trace.length * model.headWidth)
          : product(trace.written(name), model.matrix(which, label), model.width, model.headWidth);
        data.set(part.map((value) => value * factor), number * trace.length * model.headWidth);
      });
      return { shape: [names.length, trace.length, model.headWidth], data };
    };
    const [query, key] = [side("Q", model.scale), side("K", 1)];
    const whole = (parts: Matrix): Float64Array => {
      const out = new Float64Array(trace.length * model.headWidth);
      names.forEach((_, number) => add(out, Float64Array.from(parts.data.subarray(number * out.length, (number + 1) * out.length))));
      return out;
    };
    const scores = transposed(trace.head(label).queries, trace.head(label).keys, model.headWidth);
    const summed = transposed(whole(query), whole(key), model.headWidth);
    let [most, error] = [0, 0];
    scores.forEach((score, cell) => {
      if (cell % trace.length > Math.floor(cell / trace.length)) return;
      most = Math.max(most, Math.abs(model.scale * score));
      error = Math.max(error, Math.abs(model.scale * score - (summed[cell] as number)));
    });
    const remainder = error / (most || 1);
    return { format: "pathsum-page-scores", version: 1, head: label, query_parts: names, key_parts: names, query, key, remainder, total_max: most };
  }

  private without(params: WithoutParams): WithoutAnswer {
    const about = this.predictionOf(params);
    const { trace, position, token } = about;
    const off = [...new Set(params.off.split(",").map((part) => part.trim()).filter(Boolean))];
    const cut = new Trace(this.model, trace.ids, off.map((name) => parseEdit(name, this.model, trace.length)), trace);
    const [before, after] = [trace, cut].map((run) => softmax(run.logitsAt(position))) as [Float64Array, Float64Array];
    const top = largest(before.map((value, id) => Math.max(value, after[id] as number)), Math.min(TOP, before.length));
    const heads = this.model.labels;
    const moved = heads.map((head) => {
      const [old, now] = [trace, cut].map((run) => rowOf(run.pattern(head), position, run.length)) as [Float64Array, Float64Array];
      return sum(old.map((weight, from) => Math.abs(weight - (now[from] as number)))) / 2;
    });
    const head = heads.length === 0 ? null : params.head === undefined ? (heads[argmax(moved)] as string) : this.known(params.head);
    const square = [trace.length, trace.length];
    const measured = (run: Trace, probabilities: Float64Array) => ({
      total: targetOf(about, run),
      probability: probabilities[token] as number,
      rank: rankOf(run.logitsAt(position), token),
    });
    const pattern = (run: Trace): Matrix | null => (head === null ? null : matrix(square, run.pattern(head)));
    const [partsBefore, partsAfter] = [trace, cut].map((run) => directParts(about, run)) as [number[], number[]];
    return {
      format: "pathsum-page-without",
      version: 1,
      off,
      position,
      token,
      before: measured(trace, before),
      after: measured(cut, after),
      top_ids: top,
      top_before: matrix([top.length], top.map((id) => before[id] as number)),
      top_after: matrix([top.length], top.map((id) => after[id] as number)),
      parts: ["embed", ...heads, "positions and biases"],
      parts_before: matrix([partsBefore.length], partsBefore),
      parts_after: matrix([partsAfter.length], partsAfter),
      heads,
      moved: matrix([moved.length], moved),
      head,
      pattern_before: pattern(trace),
      pattern_after: pattern(cut),
      loss_before: matrix([trace.length], lossesOf(trace)),
      loss_after: matrix([trace.length], lossesOf(cut)),
    };
  }
}

/** The token to explain by default: the next one, or the predicted one at the end. */
export const targetToken = (trace: Trace, position: number): number =>
  trace.ids[position + 1] ?? argmax(trace.logitsAt(position));

/** What a layer's heads can read: the embedding and the heads below. */
export const writersBelow = (layer: number, model: PageModel): string[] => ["embed", ...model.labels.slice(0, layer * model.heads)];

/** The direct contributions of the embedding and of each head, and of what nothing wrote, which is nothing. */
export function directParts({ position, token, versus }: Prediction, run: Trace): number[] {
  const { model } = run;
  const direction = model.direction(token, versus);
  const parts = writersBelow(model.layers, model).map((writer) => {
    const isCut = run.edits.some((edit) => edit.writer === writer && edit.reader === "logits" && [null, position].includes(edit.at) && [null, position].includes(edit.to));
    return isCut ? 0 : dot(run.written(writer), position * model.width, direction, 0, model.width);
  });
  return [...parts, 0];
}

const rankOf = (logits: Float64Array, token: number): number =>
  1 + logits.reduce((above, logit) => above + Number(logit > (logits[token] as number)), 0);

/** The loss of predicting each next token; NaN at the end, which has none. */
export const lossesOf = (trace: Trace): number[] =>
  trace.ids.map((_, place) => {
    const next = trace.ids[place + 1];
    if (next === undefined) return NaN;
    const logits = trace.logitsAt(place);
    return logSumExp(logits) - (logits[next] as number);
  });

/** A pair that returns counts as learned from this probability on, and this many times what it had at first. */
const LEAST_LEARNED = 0.1;
const LEAST_GROWTH = 1.5;

/** All positions, the most interesting predictions first, each with the position it repeats (`rank_by_interest`). */
export function rankByInterest(ids: readonly number[], probabilities: readonly number[]): [number, number | null][] {
  const before = new Map<string, number[]>();
  const last = ids.length - 1;
  for (let place = 0; place < last; place++) {
    const pair = `${ids[place]} ${ids[place + 1]}`;
    before.set(pair, [...(before.get(pair) ?? []), place]);
  }
  const repeats = new Map<number, [first: number, known: number]>();
  for (const [first, ...rest] of before.values()) {
    rest.forEach((here, number) => repeats.set(here, [first as number, number === 0 ? (first as number) : (rest[number - 1] as number)]));
  }
  const isLearned = (place: number): boolean => {
    const [own, first] = [probabilities[place] as number, probabilities[repeats.get(place)![0]] as number];
    return own >= LEAST_LEARNED && own > LEAST_GROWTH * first;
  };
  const learned = new Set([...repeats.keys()].filter(isLearned));
  const order = (place: number): [number, number, number] => {
    const found = repeats.get(place);
    const own = probabilities[place] as number;
    if (!found || !learned.has(place)) return [2, -own, -place];
    return [Number(found[0] !== found[1]), (probabilities[found[0]] as number) - own, -place];
  };
  const ranked = Array.from({ length: last }, (_, place) => place).sort((a, b) => {
    const [x, y] = [order(a), order(b)];
    return x[0] - y[0] || x[1] - y[1] || x[2] - y[2];
  });
  ranked.splice(Math.max(learned.size, Math.min(1, repeats.size)), 0, last);
  return ranked.map((place) => [place, repeats.get(place)?.[1] ?? null]);
}
