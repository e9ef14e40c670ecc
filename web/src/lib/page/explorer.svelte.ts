import { createContext, tick } from "svelte";
import { SvelteMap } from "svelte/reactivity";
import type { ModelInfo, ModelParams, Params, QuestionName, TextParams, Vocabulary } from "../../generated/answers";
import { type Answer, answerOf } from "../source/answer.svelte";
import type { Source } from "../source/source";
import { Keyboard } from "./keyboard.svelte";
import type { UrlKey } from "./state";
import type { UrlState } from "./state.svelte";
import type { Theme } from "./theme.svelte";
import { modelParams, textParams } from "../text";
import { label, short } from "../tokens";
import { TriedTexts } from "./tried.svelte";

/** How long printing waits for answers. */
const PATIENCE_MS = 60_000;

/** What the status line says; a view fills in its own parts. */
export interface Status {
  tokens?: string;
  remainder?: number | null;
  weighting?: string;
}

/** Keys with `|` between them, what they do, and the function that does it. */
export type Keys = readonly [keys: string, about: string, run: (event: KeyboardEvent) => void];

/** Everything views share. `useExplorer()` gives it to any component. */
export class Explorer {
  readonly keyboard = new Keyboard();
  /** Texts that the reader typed. */
  readonly tried: TriedTexts;
  /** The vocabulary of the model that is shown, once it has arrived (requested at the start). */
  vocabulary = $state.raw<Vocabulary | null>(null);
  status = $state.raw<Status>({});
  reachable = $state(true);
  /** The page is being printed: parts that load when they are seen are loaded. */
  whole = $state(false);
  /** The model that is shown; a view is made anew for another one. */
  info = $state.raw<ModelInfo>() as ModelInfo;
  /** The text whose story was told last, and the position that it is about: other views open there. */
  story = $state.raw<{ about: TextParams; position: number } | null>(null);
  /** What a view does not have of what the link names, in words, by key. */
  readonly unknown = new SvelteMap<UrlKey, string>();
  /** Scrolls the view to its top. */
  toTop: () => void = () => undefined;
  /** Shows how to read the view, and the keys. */
  help: () => void = () => undefined;

  constructor(
    readonly source: Source,
    readonly url: UrlState,
    readonly theme: Theme,
    /** The element that holds the page: keys are heard and overlays placed here. */
    readonly root: HTMLElement,
  ) {
    // A notebook's storage belongs to the notebook.
    this.tried = new TriedTexts(() => (source.kind === "live" ? localStorage : null));
  }

  /** The model and training step that questions are about; nothing where it is the default. */
  get about(): ModelParams {
    return modelParams(this.url, this.info);
  }

  /** The text of the page, as a question names it. */
  get text(): TextParams {
    return textParams(this.url, this.info);
  }

  /** The answer of a question, which follows its parameters; called while a component is set up, as the two below. */
  readonly answerOf = <N extends QuestionName>(name: N, params: () => Params[N] | null, pause = 0): Answer<N> =>
    answerOf(this.source, name, params, pause);

  /** What the status line says while a component is shown. */
  says(status: () => Status): void {
    $effect(() => {
      this.status = status();
      return () => (this.status = {});
    });
  }

  /** The page warns of a link that names what is not there; `isKnown` is null while that is not known. */
  checks(key: UrlKey, noun: string, isKnown: (named: string) => boolean | null, whose?: string): void {
    $effect(() => {
      const named = this.url.written(key);
      if (named === undefined || isKnown(named) !== false) return;
      this.unknown.set(key, `The link names ${noun} “${short(named, 60)}”, which ${whose ?? this.info.name} does not have.`);
      return () => void this.unknown.delete(key);
    });
  }

  /** Adds keys, listed under a heading, while a component is shown. */
  keys(group: string, ...bindings: readonly Keys[]): void {
    $effect(() => this.keyboard.add(...bindings.map(([keys, about, run]) => ({ keys: keys.split("|"), about, group, run }))));
  }

  /** Whether there is a way to a view: a report may lack it. */
  leads(view: string): boolean {
    return this.source.views?.includes(view) ?? true;
  }

  /** Whether the model that is shown can be run: a report may hold answers only. */
  get canRun(): boolean {
    return this.source.has("run", { ...this.about, ids: "0" });
  }

  /** Whether spaces are marked in running text (`·`); tables mark them always. */
  get visibleSpaces(): boolean {
    return this.url.get("spaces");
  }

  /** Prints the view, including what is scrolled out of sight or not loaded yet. */
  async print(): Promise<void> {
    this.whole = true;
    try {
      await tick();
      for (let ms = 0; this.source.pending > 0 && ms < PATIENCE_MS; ms += 50) await new Promise((done) => setTimeout(done, 50));
      await tick();
      window.print();
    } finally {
      this.whole = false;
    }
  }

  /** A token as tables and labels show it, by id. */
  token(id: number): string {
    return label(this.vocabulary?.tokens[id], id);
  }
}

export const [useExplorer, provideExplorer] = createContext<Explorer>();
