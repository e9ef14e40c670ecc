import type { TextParams, TextRun, PredictionParams } from "../generated/answers";
import type { Answer } from "./source/answer.svelte";
import type { Explorer } from "./page/explorer.svelte";
import { signed } from "./format";
import type { Explaining } from "./source/source";
import { comparison, isSameText, mostTelling, predictionAt } from "./text";
import { labelsOf } from "./tokens";

/** What the logit of a token is compared with: the mean of all logits, nothing, or another token's logit. */
export type Versus = "mean" | "none" | "token";

/**
 * One prediction of the text, from the URL: after which token (`position`), of which token (`token`), versus what (`versus`).
 * Views that explain it share this. Made once a view, while it is set up.
 */
export class Prediction {
  readonly runs: Answer<"run">;
  /** Another token was chosen to compare with, but not yet which one. */
  comparing = $state(false);

  constructor(private readonly explorer: Explorer) {
    this.runs = explorer.answerOf("run", () => explorer.text);
    for (const key of ["token", "versus"] as const) explorer.checks(key, "token", (id) => !(Number(id) >= explorer.info.d_vocab));
    // A link must lead here without the story too.
    $effect(() => {
      const { run, position, explorer } = this;
      if (run && position !== null && explorer.url.get("position") === undefined && position !== mostTelling(run).token && explorer.story) {
        explorer.url.set({ position: position });
      }
    });
  }

  get run(): TextRun | null {
    return this.runs.value;
  }

  /** Tokens with their spaces marked, for axes and labels. */
  readonly labels = $derived(this.run ? labelsOf(this.run) : []);

  readonly position = $derived.by((): number | null => (this.run ? positionShown(this.explorer, this.run) : null));

  /** The positions whose predictions can be explained here; null for all. */
  explained(name: Explaining): ReadonlySet<number> | null {
    return this.explorer.source.explained(name, this.explorer.text);
  }

  /** The token that was chosen; null for the next one. */
  get token(): number | null {
    return this.known(this.explorer.url.get("token"));
  }

  /** What the URL says that it is compared with. */
  private get asked(): ReturnType<typeof comparison> {
    return comparison(this.explorer.url, this.explorer.info);
  }

  /** The token to compare with, if it is one. */
  get other(): number | null {
    return typeof this.asked.versus === "number" ? this.asked.versus : null;
  }

  get versus(): Versus {
    if (this.other !== null || this.comparing) return "token";
    return this.asked.versus === "none" ? "none" : "mean";
  }

  /** The parameters of a question about this prediction; null while the text is still loading. */
  readonly params = $derived.by((): PredictionParams | null => {
    const { runs, position, token } = this;
    if (position === null || !this.explorer.info.exact || runs.loading || !runs.params) return null;
    return {
      ...runs.params,
      position,
      ...(token === null ? {} : { token }),
      ...this.asked,
    };
  });

  /** What is explained, in words; a difference of logits is always called one. */
  quantity(token: number): string {
    const name = `“${this.explorer.token(token)}”`;
    if (this.other !== null) return `logit difference, ${name} minus “${this.explorer.token(this.other)}”`;
    return this.versus === "none" ? `logit of ${name}` : `logit of ${name} above the mean of all tokens`;
  }

  /** The same for an axis. */
  get axis(): string {
    if (this.other !== null) return "logit difference";
    return this.versus === "none" ? "logit" : "logit above the mean of all tokens";
  }

  /** To the prediction after another token. */
  move(to: number, push = false): void {
    const { run } = this;
    if (run) this.explorer.url.set(predictionAt(Math.min(Math.max(to, 0), run.ids.length - 1)), { push });
  }

  private known(id: number | undefined): number | null {
    return id !== undefined && id < this.explorer.info.d_vocab ? id : null;
  }
}

/** The position that a text opens at: that of its story, which takes longer to find, else the most telling one. */
export function openingPosition({ story }: Pick<Explorer, "story">, about: TextParams, run: TextRun): number {
  return story && isSameText(story.about, about) && story.position < run.ids.length ? story.position : mostTelling(run).token;
}

/** The position that is explained: the one of the URL, else the most telling one that can be. */
export function positionShown({ source, url, story, text }: Explorer, run: TextRun): number {
  const asked = url.get("position");
  if (asked !== undefined && asked < run.ids.length) return asked;
  const token = openingPosition({ story }, text, run);
  const explained = source.explained("why", text);
  return !explained || explained.size === 0 || explained.has(token) ? token : ([...explained][0] as number);
}

/**
 * The prediction by source token, through heads and MLPs with gates held. Asks nothing for a model without MLPs, whose
 * paths and graph already begin at tokens.
 */
export function sourcesOf(prediction: Prediction, { answerOf, source, info }: Explorer): Answer<"sources"> {
  return answerOf("sources", () => {
    const about = prediction.params;
    return info.mlp !== "none" && about !== null && source.has("sources", about) ? about : null;
  });
}

/** A first token with this multiple of all others is beyond the scale, as an attention sink often is. */
const SINK = 3;
const largest = (values: ArrayLike<number>): number => Array.from(values).reduce((most, value) => Math.max(most, Math.abs(value)), 1e-9);

/** One number per token of a text, and the end of their scale: the largest magnitude, but for that of a sink. */
export function shadingOf(totals: ArrayLike<number>, length: number): { values: Float32Array; extent: number } {
  const values = new Float32Array(length);
  values.set(Array.from(totals).slice(0, length));
  const others = largest(values.slice(1));
  return { values, extent: isSink(totals) ? others : largest(values) };
}

const isSink = (totals: ArrayLike<number>): boolean => totals.length > 2 && Math.abs(totals[0]!) > SINK * largest(Array.from(totals).slice(1));

/** What the shading of a model with MLPs means, with the numbers that add up; empty while they are not known. */
export function sourcesNote({ value, error }: Answer<"sources">): string {
  if (error) return `No shading: ${error.message}`;
  if (!value) return "";
  const { total, tokens, rest } = value;
  const all = Array.from(tokens.data).reduce((sum, value) => sum + value, 0);
  const others = Math.abs(rest) < 5e-3 ? "" : `, positions and biases ${signed(rest)}`;
  const sink = isSink(tokens.data) ? ` The first token adds ${signed(tokens.data[0])}, which is beyond the scale.` : "";
  return `Shading: the contribution of each token through heads and MLPs, with attention and gates frozen. Tokens add up to ${signed(all)} of ${signed(total)}${others}.${sink}`;
}
