import { createContext, untrack } from "svelte";
import type { AttentionParams, ModelInfo, Story, StoryParams, TextParams, TextRun } from "../../generated/answers";
import type { Answer } from "../../lib/source/answer.svelte";
import { HEAD_STYLES, type Scale } from "../../lib/draw/color";
import type { Contrast } from "../../lib/draw/matrix";
import type { Explorer } from "../../lib/page/explorer.svelte";
import { openingPosition } from "../../lib/prediction.svelte";
import { ALL_HEADS } from "../../lib/names";
import { labelsOf } from "../../lib/tokens";
import { comparison, isSameText, mostTelling } from "../../lib/text";
import { Focus } from "./focus.svelte";
import type { Arc } from "../../lib/ui/Arcs.svelte";
import { type HeadOnText, knownHeads, manyArcs, manyAt } from "./many";
import { Patterns, type Side, type Weighting } from "./patterns";

export const WEIGHTINGS: readonly { value: Weighting; label: string; about: string; unit: string }[] = [
  {
    value: "attention",
    label: "attention",
    about: "The share of the destination's attention on the source.",
    unit: "attention",
  },
  {
    value: "information",
    label: "information",
    about: "Attention times the norm of the moved value, relative to the largest in this text.",
    unit: "of the largest",
  },
  {
    value: "effect",
    label: "logit effect",
    about: "The contribution to the actual next token's logit, minus the vocabulary mean; signed.",
    unit: "logits",
  },
];

/** Heads × tokens up to which a text's story is asked for without being wanted. */
const STORY_COST = 20_000;

/** What a cold reader should see first: that place, and the head that looks hardest at what followed before. */
function mostInteresting(run: TextRun, patterns: Patterns): { token: number; head: string | null } {
  const { token, source } = mostTelling(run);
  const head = source === null || token >= patterns.n ? null : (patterns.headsAt(token, source)[0]?.head ?? null);
  return { token, head };
}

/** What is on the page: a run and its patterns, of one and the same text. */
export interface Shown {
  run: TextRun;
  about: TextParams;
  /** Null until they are there for the first time, or where they are refused. */
  patterns: Patterns | null;
}

export const [useScene, provideScene] = createContext<TextScene>();

/** What the Text view is about: a text, its run and patterns, and what is focused. Made once a view. */
export class TextScene {
  readonly run: Answer<"run">;
  readonly attention: Answer<"attention">;
  private readonly alone: Answer<"attention">;
  /** The prediction after the locked token, or the most telling one of the text, in numbers. */
  readonly story: Answer<"story">;
  readonly focus: Focus;

  readonly info: ModelInfo;

  constructor(readonly explorer: Explorer) {
    const { answerOf, info, source, url } = explorer;
    this.info = info;
    this.run = answerOf("run", () => explorer.text);
    this.attention = answerOf("attention", () => this.asked);
    this.focus = new Focus(
      url,
      () => info.heads,
      () => this.shown?.run.ids.length ?? Infinity,
    );
    // A locked head is requested alone only if the whole answer is sparse.
    this.alone = answerOf("attention", () => {
      const head = this.focus.lockedHead;
      const isSparse = this.attention.value !== null && this.attention.value.dense === null;
      return head !== null && isSparse ? { ...this.asked, head } : null;
    });
    const story = (): StoryParams | null => {
      if (!info.exact || !this.isShort) return null;
      const { text } = explorer;
      const position = this.focus.lockedToken;
      // A report tells one story per text.
      return [{ ...text, ...(position === null ? {} : { position }), ...comparison(url, info) }, text].find((about) => source.has("story", about)) ?? null;
    };
    this.story = answerOf("story", story, 1);
    this.greet();
    provideScene(this);
  }

  /** The patterns to ask for. */
  private get asked(): AttentionParams {
    const { weighting } = this;
    return weighting === "attention" ? this.explorer.text : { ...this.explorer.text, weighting };
  }

  /** Whether the story is worth waiting for: it costs about heads × tokens. */
  private get isShort(): boolean {
    const tokens = this.run.value?.ids.length ?? Infinity;
    return !this.run.loading && tokens * this.info.heads.length <= STORY_COST;
  }

  /**
   * Each text opens at its most telling token and head, focused softly, and unless a link says what to see, with
   * the cell that explains them; the first hover takes over.
   */
  private greet(): void {
    let greeted: TextRun | null = null;
    const { url } = this.explorer;
    let cold = !url.has("example", "text", "tokens", "head", "position", "cell");
    let set: number | null = null;
    $effect(() => {
      const run = this.shown?.run;
      const patterns = this.patterns;
      if (!run || !patterns || greeted === run || this.run.loading || this.attention.loading) return;
      const first = greeted === null;
      greeted = run;
      if (!first) cold = true;
      // The link says that nothing is locked: the first text opens so.
      if (first && url.get("head") === ALL_HEADS) return;
      const found = mostInteresting(run, patterns);
      this.focus.hoverToken(found.token);
      this.focus.hoverHead(found.head);
      set = found.token;
    });
    // The story takes a moment longer, and has the last word if nothing was pointed at meanwhile.
    $effect(() => {
      const story = this.told;
      if (!story || set === null || !greeted) return;
      const token = set;
      set = null;
      untrack(() => {
        // Only a story without a position says where the text opens.
        const { params } = this.story;
        if (params && params.position === undefined) this.explorer.story = { about: params, position: story.position };
        const locked = this.focus.lockedToken;
        if (this.focus.token !== (locked ?? token) || this.focus.cell) return;
        this.focus.hoverToken(story.position);
        this.focus.hoverHead(story.head);
        if (cold && story.head !== null && story.head === this.focus.head && story.source !== null) {
          this.focus.hoverCell({ dest: story.position, src: story.source });
        }
      });
    });
  }

  /** The story of the text that is shown, once it is there. */
  get told(): Story | null {
    return this.shown && isSameText(this.shown.about, this.story.params) ? this.story.value : null;
  }

  /** The position that the text opens at. */
  get opening(): number | null {
    return this.shown ? openingPosition(this.explorer, this.shown.about, this.shown.run) : null;
  }

  /** Whether a story is on its way, the first of this view. */
  get isTelling(): boolean {
    return this.story.loading && this.story.value === null;
  }

  get weighting(): Weighting {
    return this.explorer.url.get("weighting");
  }

  get weightingTitle(): (typeof WEIGHTINGS)[number] {
    return WEIGHTINGS.find((item) => item.value === this.weighting) as (typeof WEIGHTINGS)[number];
  }

  get side(): Side {
    return this.explorer.url.get("side");
  }

  get hideFirst(): boolean {
    return this.explorer.url.get("hide_first");
  }

  /** Whether arrows show what the focused head does at the focused token. */
  get lines(): boolean {
    return this.explorer.url.get("lines");
  }

  /** Whether lines of the text end where it says so, as they do unless it was chosen otherwise. */
  get breaks(): boolean {
    return this.explorer.url.get("line_breaks") ?? this.shown?.run.pieces.some((piece) => piece.includes("\n")) ?? false;
  }

  /** How attention becomes color. */
  get contrast(): Contrast {
    return this.explorer.url.get("contrast");
  }

  /** Heads that are drawn on the text together, each with its own line. */
  readonly many = $derived.by((): readonly string[] => knownHeads(this.explorer.url.get("heads"), this.info.heads));

  /** What each of them does at the focused token. */
  readonly manyHere = $derived.by((): readonly HeadOnText[] => {
    const { patterns, many } = this;
    const token = this.focus.token;
    if (!patterns || many.length === 0) return [];
    if (token === null || token >= patterns.n) return many.map((head, at) => ({ head, style: HEAD_STYLES[at]!, found: [] }));
    return manyAt(patterns, many, token, this.side, this.hideFirst);
  });

  /** Arrows over the text: of these heads, or of the focused one. */
  readonly arcs = $derived.by((): Arc[] => {
    const { patterns, side } = this;
    const token = this.focus.token;
    if (!patterns || token === null || token >= patterns.n) return [];
    const one = this.lines && this.many.length === 0 ? manyAt(patterns, [this.focus.head ?? ""], token, side, this.hideFirst) : [];
    return manyArcs([...this.manyHere, ...one], token, side, this.explorer.theme.mode);
  });

  private before: Shown | null = null;
  /** Run and patterns come one after the other: until both are there the old text stays, whole. */
  readonly shown = $derived.by((): Shown | null => {
    const { value: run, params: about } = this.run;
    if (!run || !about) return (this.before = null);
    const answer = this.attention.value;
    if (answer && isSameText(about, this.attention.params)) {
      const alone = this.alone.value;
      const patterns = new Patterns(answer, alone && alone.weighting === answer.weighting ? alone : null);
      return (this.before = { run, about, patterns });
    }
    if (this.before && (this.run.loading || this.attention.loading)) return this.before;
    return { run, about, patterns: null };
  });

  get patterns(): Patterns | null {
    return this.shown?.patterns ?? null;
  }

  /** The focused head's index, −1 for all together. */
  readonly head = $derived.by((): number => {
    const head = this.focus.head;
    return head === null || !this.patterns ? -1 : this.patterns.heads.indexOf(head);
  });

  /** What the matrix shows in full precision, [dest, src]; null in a report, which has half precision only. */
  async exact(): Promise<Float32Array | null> {
    const patterns = this.patterns;
    if (!this.explorer.canRun || !patterns) return null;
    const isAlone = this.head >= 0 && patterns.isSparse;
    const head = isAlone ? { head: this.focus.head as string } : {};
    const answer = await this.explorer.source.ask("attention", { ...this.asked, ...head, precision: "full" });
    return new Patterns(answer).values(isAlone ? 0 : this.head);
  }

  readonly headTitle = $derived.by((): string => {
    if (this.head >= 0) return this.focus.head as string;
    return this.weighting === "effect" ? "all heads, sum" : "all heads, mean";
  });

  /** Tokens with their spaces marked, for axes and labels. */
  readonly labels = $derived(this.shown ? labelsOf(this.shown.run) : []);

  /** What shades the text: one number per token, the largest magnitude, and a description. */
  readonly shading = $derived.by((): { values: Float32Array; extent: number; about: string } | null => {
    const patterns = this.patterns;
    if (!patterns) return null;
    const token = this.focus.token;
    const who = this.head >= 0 ? (this.focus.head as string) : "all heads";
    if (token === null || token >= patterns.n) {
      if (this.head < 0) return null;
      const values = patterns.totals(this.head, this.side);
      if (this.hideFirst) values[0] = 0;
      const about = this.side === "dest" ? `how much ${who} reads each token` : `how much ${who} does at each token`;
      return { values, extent: largest(values), about };
    }
    const values = patterns.along(this.head, token, this.side, this.hideFirst);
    const name = `“${this.labels[token] ?? ""}”`;
    const about =
      this.weighting === "effect"
        ? `what ${who} ${this.head >= 0 ? "adds" : "add"} to the next token's logit ${this.side === "dest" ? `after ${name}, by source` : `from ${name}, by destination`}`
        : this.side === "dest"
          ? `what ${name} attends to, through ${who}`
          : `what attends to ${name}, through ${who}`;
    // One scale for one number: that of the matrix, whose row or column this is.
    const extent = this.contrast === "row" ? largest(values) : patterns.extent(this.head, this.hideFirst);
    return { values: this.contrast === "sqrt" ? rooted(values, extent) : values, extent, about };
  });

  get shadingScale(): Scale {
    return this.patterns?.isSigned && this.focus.token !== null ? "diverging" : "sequential";
  }

  /** How much each head cares about the focused token, or null if none is. */
  readonly care = $derived.by((): Float32Array | null => {
    const token = this.focus.token;
    return token === null || !this.patterns || token >= this.patterns.n ? null : this.patterns.care(token, this.side);
  });
}

/** Square roots in the same range, signs kept. */
const rooted = (values: Float32Array, extent: number): Float32Array =>
  values.map((value) => Math.sign(value) * Math.sqrt(Math.abs(value) * extent));

function largest(values: Float32Array): number {
  let most = 0;
  for (const value of values) most = Math.max(most, Math.abs(value));
  return most;
}
