import { changed, formatHash, KEYS, parseHash, type Place, type StateValues, type UrlKey, type UrlValue, valueOf } from "./state";

interface SetOptions {
  push?: boolean;
}

/**
 * The state of the page, read from and written to its place.
 *
 * `set(…, {push: true})` makes an entry of the history, so that the back button undoes it; without it the
 * present entry is rewritten. In a notebook there is no URL to own: the same class keeps its own history.
 */
export class UrlState {
  view = $state("");
  /** A view that the link names but that does not exist. */
  unknownView = $state<string | null>(null);
  private values = $state.raw<ReadonlyMap<UrlKey, string>>(new Map());
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
    const isKnown = this.views.includes(view);
    this.view = isKnown ? view : (this.views[0] as string);
    this.unknownView = isKnown || view === "" ? null : view;
    this.values = values;
  }

  /** The value of a key, or its default. */
  get<K extends UrlKey>(key: K): UrlValue<K> {
    return valueOf(this.values, key);
  }

  /** What the URL says, even if it is no value of the key. */
  written(key: UrlKey): string | undefined {
    return this.values.get(key);
  }

  /** Keys whose text is no value: they have their defaults. */
  readonly meaningless = $derived([...this.values].flatMap(([key, text]) => (KEYS[key].parse(text) === undefined ? [key] : [])));

  /** Whether the URL says one of these. */
  has(...keys: readonly UrlKey[]): boolean {
    return keys.some((key) => this.values.has(key));
  }

  /** Changes some values (null or undefined removes one), keeping the others. */
  set(changes: StateValues, options: SetOptions = {}): void {
    this.go(this.view, changes, options);
  }

  /** To another view, with the state kept and some of it changed: an entry of the history of its own. */
  go(view: string, changes: StateValues = {}, options: SetOptions = { push: true }): void {
    const hash = this.link(view, changes);
    if (hash === formatHash(this.view, this.values) && this.unknownView === null) return;
    this.place.write(hash, options.push ?? false);
    this.read();
  }

  /** Follows a whole link such as a claim's `#/text?example=0&head=L1H4`. */
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
    return formatHash(view, changed(this.values, changes));
  }

  close(): void {
    this.stop();
  }
}
