/**
 * What the page shows is in the URL's hash, `#/text?example=0&head=L1H4&position=17`. `KEYS` lists every key: who reads
 * it, its type and default, and what it is about. A value equal to the default is left out of the URL.
 */
interface Key<T> {
  /** The views that read it; "all" for every view. */
  readonly views: string;
  /**
   * What the value is about: "model" is cleared with another model, "tokens" with another tokenizer, "text" with
   * another text. Empty for what is about the page.
   */
  readonly about: string;
  readonly initial: T;
  /** Undefined for text that is no value: links may be stale or mistyped. */
  parse(text: string): T | undefined;
}

const text = (views: string, about = ""): Key<string | undefined> => ({ views, about, initial: undefined, parse: (value) => value });
const whole = (value: string): number | undefined => (/^\d{1,9}$/.test(value) ? Number(value) : undefined);
const number = (views: string, about = ""): Key<number | undefined> => ({ views, about, initial: undefined, parse: whole });
const truth = (value: string): boolean | undefined => (value === "1" ? true : value === "0" ? false : undefined);
const flag = (views: string, initial = false): Key<boolean> => ({ views, about: "", initial, parse: truth });
const list = (views: string, about = "", initial: readonly string[] = []): Key<readonly string[]> => ({
  views,
  about,
  initial,
  parse: (value) => value.split(",").filter((part) => part !== ""),
});
/** One of a few, the first by default. */
const choice = <T extends string>(views: string, ...options: [T, ...T[]]): Key<T> => ({
  views,
  about: "",
  initial: options[0],
  parse: (value) => options.find((option) => option === value),
});

export const KEYS = {
  model: text("all"),
  step: number("all", "model"),
  /** The text: an example by its number, typed, or given as token ids. */
  example: number("all", "model text"),
  text: text("all", "model text"),
  tokens: text("all", "model text"),
  spaces: flag("all"),
  head: text("text head training", "model"),
  position: number("story text why paths lens swap program", "tokens text"),
  /** The token that is explained, if it is not the next one; what its logit is compared with. */
  token: number("story why paths", "tokens text"),
  versus: {
    views: "story text why paths",
    about: "tokens text",
    initial: undefined as number | "none" | undefined,
    parse: (value: string) => (value === "none" ? ("none" as const) : whole(value)),
  },
  contrast: choice("text why head", "linear", "sqrt", "row"),
  line_breaks: { ...flag("story text why paths"), initial: undefined as boolean | undefined },

  /** A cell of the pattern: destination and source, "9.4". */
  cell: { ...text("text", "model text"), parse: (value: string) => (/^\d+\.\d+$/.test(value) ? value : undefined) },
  weighting: choice("text", "attention", "information", "effect"),
  side: choice("text", "dest", "src"),
  hide_first: flag("text"),
  lines: flag("text"),
  losses: flag("text"),
  story: flag("text", true),
  find: number("text", "tokens"),
  /** Heads that are drawn on the text together. */
  heads: list("text", "model"),

  /** Views that are unfolded below the story, and the read of its head that is lit. */
  layers: list("story"),
  read: choice("story", "all", "query", "key", "value"),

  off: list("story why", "model"),
  selected: text("why", "model text"),
  expanded: list("why", "model text"),
  /** Nodes that are pinned, and groups of nodes under a name (`namedFrom`). */
  kept: list("why", "model text"),
  named: list("why", "model text"),
  /** The MLP node whose neurons are listed, and the neuron whose page is open. */
  inside: text("why", "model text"),
  neuron: text("why", "model"),
  /** The head whose patterns before and after are shown. */
  pattern: text("why", "model"),

  path: text("paths", "model"),
  open: list("paths", "", ["1"]),

  /** The stream that is read: before this layer, or the last; and what colors mean. */
  layer: number("lens", "model"),
  readout: choice("lens", "direct", "held"),
  shade: choice("lens", "prediction", "shown"),

  edge: text("composition", "model"),
  node: text("composition", "model"),
  pinned: list("composition", "model"),
  groups: text("composition", "model"),
  threshold: {
    ...number("composition"),
    parse: (value: string) => (Number.isFinite(Number.parseFloat(value)) ? Number.parseFloat(value) : undefined),
  },
  sides: text("composition"),

  score: text("atlas"),
  filter: text("atlas"),
  sort: text("atlas"),
  x: text("atlas"),
  y: text("atlas"),
  size: text("atlas"),
  color: text("atlas"),

  /** A score that a link points out, once. */
  highlight: text("head"),
  lookup: number("head", "tokens"),
  places: choice("head", "attention", "effect", "deciles"),
  context: choice("head", "prose", "all"),

  claim: text("paper"),

  /** The most numbers that the program may have. */
  budget: { ...number("program"), initial: 400 as number, parse: (value: string) => whole(value) },

  other: text("compare", "model"),
  other_step: number("compare", "model"),
  pair: text("compare", "model"),
  similarity: choice("compare", "both", "qk", "ov"),
  other_text: text("swap", "model text"),
  patch: choice("swap", "broken", "restored"),
} as const;

export type UrlKey = keyof typeof KEYS;
export type UrlValue<K extends UrlKey> = (typeof KEYS)[K]["initial"];
/** Changes of the state; null and undefined remove a key. */
export type StateValues = { readonly [K in UrlKey]?: UrlValue<K> | null | undefined };

const isKey = (key: string): key is UrlKey => key in KEYS;

export const allKeys = Object.keys(KEYS) as readonly UrlKey[];

/** Changes that clear every key that is about this. */
export const cleared = (about: "model" | "tokens" | "text"): StateValues =>
  Object.fromEntries(allKeys.filter((key) => KEYS[key].about.split(" ").includes(about)).map((key) => [key, null]));

function print(value: unknown): string {
  if (typeof value === "boolean") return value ? "1" : "0";
  return Array.isArray(value) ? value.join(",") : String(value);
}

/** The values of a hash with some of them changed. */
export function changed(values: ReadonlyMap<UrlKey, string>, changes: StateValues): Map<UrlKey, string> {
  const next = new Map(values);
  for (const [key, value] of Object.entries(changes)) {
    if (!isKey(key)) continue;
    if (value === null || value === undefined || print(value) === print(KEYS[key].initial)) next.delete(key);
    else next.set(key, print(value));
  }
  return next;
}

export function valueOf<K extends UrlKey>(values: ReadonlyMap<UrlKey, string>, key: K): UrlValue<K> {
  const given = values.get(key);
  const parsed = given === undefined ? undefined : KEYS[key].parse(given);
  return (parsed ?? KEYS[key].initial) as UrlValue<K>;
}

export function parseHash(hash: string): { view: string; values: Map<UrlKey, string> } {
  const [view = "", query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const values = new Map<UrlKey, string>();
  for (const [key, value] of new URLSearchParams(query)) if (isKey(key)) values.set(key, value);
  return { view, values };
}

export function formatHash(view: string, values: ReadonlyMap<UrlKey, string>): string {
  const parts = [...values].map(([key, value]) => `${key}=${readable(value)}`);
  return `#/${view}${parts.length ? `?${parts.join("&")}` : ""}`;
}

/** Encoded for a hash, but with the marks that may stay readable left alone. */
const readable = (value: string): string => encodeURIComponent(value).replace(/%2C/g, ",").replace(/%3A/g, ":");

/** Where the hash is kept. */
export interface Place {
  read(): string;
  write(hash: string, push: boolean): void;
  listen(changed: () => void): () => void;
  /** A link that shows the same elsewhere; null where the page has no address of its own. */
  address(): string | null;
}

/** The page's own address. */
export const windowPlace: Place = {
  read: () => location.hash,
  address: () => location.href,
  write: (hash, push) => (push ? history.pushState(null, "", hash) : history.replaceState(null, "", hash)),
  listen: (changed) => {
    addEventListener("popstate", changed);
    addEventListener("hashchange", changed);
    return () => {
      removeEventListener("popstate", changed);
      removeEventListener("hashchange", changed);
    };
  },
};

/** A place without a URL: notebooks and tests. */
export function memoryPlace(start = ""): Place & { back(): void } {
  const entries = [start];
  let changed: () => void = () => undefined;
  return {
    read: () => entries[entries.length - 1] as string,
    address: () => null,
    write: (hash, push) => {
      if (push) entries.push(hash);
      else entries[entries.length - 1] = hash;
    },
    listen: (callback) => {
      changed = callback;
      return () => undefined;
    },
    back: () => {
      if (entries.length > 1) entries.pop();
      changed();
    },
  };
}

/** A click on a link of this page: `go` leads there, but with a modifier the link opens elsewhere, as links do. */
export function onLink(event: MouseEvent, go: () => void): void {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  go();
}
