/**
 * What is looked at, in the URL's hash: `#/text?e=0&h=L1H4&t=17`.
 *
 * `set(…, {push: true})` makes an entry of the history, so that the back button undoes it; without it the
 * present entry is rewritten. In a notebook there is no URL to own: the same class keeps its own history.
 */
export type StateValues = Record<string, string | number | null | undefined>;

interface SetOptions {
  push?: boolean;
}

export interface Place {
  read(): string;
  write(hash: string, push: boolean): void;
  listen(changed: () => void): () => void;
  /** A link that shows the same elsewhere; null where the page has no address of its own. */
  address(): string | null;
}

/** Keys of older links: the head is `h` and the token `t` in every view. */
const ALIASES: Readonly<Record<string, string>> = { hd: "h", pos: "t" };

export function parseHash(hash: string): { view: string; values: Map<string, string> } {
  const text = hash.replace(/^#?\/?/, "");
  const cut = text.indexOf("?");
  const view = cut < 0 ? text : text.slice(0, cut);
  const values = new Map<string, string>();
  if (cut >= 0) {
    const given = [...new URLSearchParams(text.slice(cut + 1))];
    // Where a link has both, the older key was the one that its view obeyed.
    const replaced = new Set(given.map(([key]) => ALIASES[key]));
    for (const [key, value] of given) if (!replaced.has(key)) values.set(ALIASES[key] ?? key, value);
  }
  return { view, values };
}

export function formatHash(view: string, values: ReadonlyMap<string, string>): string {
  const parts = [...values].map(([key, value]) => `${key}=${readable(value)}`);
  return `#/${view}${parts.length ? `?${parts.join("&")}` : ""}`;
}

/** Encoded for a hash, but with the marks that may stay readable left alone. */
const readable = (value: string): string =>
  encodeURIComponent(value).replace(/%2C/g, ",").replace(/%3A/g, ":");

/** The page's own address. */
export const windowPlace: Place = {
  read: () => location.hash,
  address: () => location.href,
  write: (hash, push) => {
    if (push) history.pushState(null, "", hash);
    else history.replaceState(null, "", hash);
  },
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

export class UrlState {
  view = $state("text");
  private values = $state.raw<ReadonlyMap<string, string>>(new Map());
  private readonly stop: () => void;

  constructor(
    private readonly place: Place,
    private readonly views: readonly string[],
  ) {
    this.read();
    this.stop = place.listen(() => this.read());
  }

  private read(): void {
    const { view, values } = parseHash(this.place.read());
    this.view = this.views.includes(view) ? view : (this.views[0] as string);
    this.values = values;
  }

  get(key: string): string | undefined {
    return this.values.get(key);
  }

  /** A whole number of at least 0, or undefined: links may be stale or mistyped. */
  number(key: string): number | undefined {
    const text = this.values.get(key);
    return text !== undefined && /^\d{1,9}$/.test(text) ? Number(text) : undefined;
  }

  /** Changes some values (null or undefined removes one), keeping the others. */
  set(changes: StateValues, options: SetOptions = {}): void {
    this.go(this.view, changes, options);
  }

  /** To another view, with the state kept and some of it changed: an entry of the history of its own. */
  go(view: string, changes: StateValues = {}, options: SetOptions = { push: true }): void {
    const hash = this.link(view, changes);
    if (hash === formatHash(this.view, this.values)) return;
    this.place.write(hash, options.push ?? false);
    this.read();
  }

  /** Follows a whole link such as a claim's `#/text?e=0&h=L1H4`. */
  follow(hash: string, options: SetOptions = { push: true }): void {
    const { view, values } = parseHash(hash);
    this.place.write(formatHash(view, values), options.push ?? false);
    this.read();
  }

  /** A link to what is shown; null where the page has no address of its own. */
  get address(): string | null {
    return this.place.address();
  }

  /** The address that `go(view, changes)` would lead to, for real links. */
  link(view: string, changes: StateValues = {}): string {
    const next = new Map(this.values);
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === undefined) next.delete(key);
      else next.set(key, String(value));
    }
    return formatHash(view, next);
  }

  close(): void {
    this.stop();
  }
}
