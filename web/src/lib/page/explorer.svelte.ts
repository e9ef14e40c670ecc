import { getContext, setContext, tick } from "svelte";
import type { ModelInfo, TextParams, Vocabulary } from "../../generated/answers";
import { Keyboard } from "./keyboard.svelte";
import type { Source } from "../source/source";
import type { UrlState } from "./state.svelte";
import type { Theme } from "./theme.svelte";
import { modelParams } from "../text";
import { label } from "../tokens";
import { TriedTexts } from "./tried.svelte";

/** How long printing waits for answers. */
const PATIENCE_MS = 60_000;

/** What the status line says; a view fills in its own parts. */
export interface Status {
  tokens?: string;
  remainder?: number | null;
  weighting?: string;
}

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
  info = $state.raw<ModelInfo>() as ModelInfo;
  /** The text whose story was told last, and the position that it is about: other views open there. */
  story = $state.raw<{ about: TextParams; position: number } | null>(null);
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

  /** Whether the model that is shown can be run: a report may hold answers only. */
  get canRun(): boolean {
    return this.source.has("run", { ...modelParams(this.url, this.info), ids: "0" });
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

const KEY = Symbol("explorer");

export function provideExplorer(explorer: Explorer): Explorer {
  return setContext(KEY, explorer);
}

export function useExplorer(): Explorer {
  return getContext<Explorer>(KEY);
}
