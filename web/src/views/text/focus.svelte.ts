import type { UrlState } from "../../lib/page/state.svelte";
import { ALL_HEADS } from "../../lib/names";
import { tokenAt } from "../../lib/text";

/**
 * Two independent locks, a head and a token. Hover focuses softly and stays until something else is hovered;
 * a click makes it hard (in the URL, an entry of the history), a second click frees it, Esc frees all. While
 * one is hard, hovering others does not change it.
 */
export class Focus {
  private softHead = $state<string | null>(null);
  private softToken = $state<number | null>(null);
  private softCell = $state<{ dest: number; src: number } | null>(null);

  constructor(
    private readonly url: UrlState,
    private readonly heads: () => readonly string[],
    private readonly length: () => number,
  ) {}

  /** The locked head; a stale link's unknown head counts as none. */
  get lockedHead(): string | null {
    const head = this.url.get("head");
    return head !== undefined && this.heads().includes(head) ? head : null;
  }

  get lockedToken(): number | null {
    const token = this.url.get("position");
    return token !== undefined && token < this.length() ? token : null;
  }

  get lockedCell(): { dest: number; src: number } | null {
    const [dest, src] = (this.url.get("cell") ?? "").split(".").map(Number);
    return dest !== undefined && src !== undefined && dest < this.length() && src <= dest ? { dest, src } : null;
  }

  get head(): string | null {
    return this.lockedHead ?? (this.softHead !== null && this.heads().includes(this.softHead) ? this.softHead : null);
  }

  get token(): number | null {
    return this.lockedToken ?? (this.softToken !== null && this.softToken < this.length() ? this.softToken : null);
  }

  get cell(): { dest: number; src: number } | null {
    const soft = this.softCell;
    return soft !== null && soft.dest < this.length() ? soft : this.lockedCell;
  }

  hoverHead(head: string | null): void {
    this.softHead = head;
  }

  /** A token takes over from a cell that was only pointed at. */
  hoverToken(token: number | null): void {
    this.softToken = token;
    this.softCell = null;
  }

  hoverCell(cell: { dest: number; src: number } | null): void {
    this.softCell = cell;
  }

  clickHead(head: string): void {
    this.softHead = head;
    this.url.set({ head: this.lockedHead === head ? null : head }, { push: true });
  }

  /** Locks a token, or frees it; a kept cell of another destination is closed, so that the token is what is shown. */
  clickToken(token: number): void {
    this.hoverToken(token);
    const cell = this.lockedCell;
    const closed = cell !== null && cell.dest !== token ? { cell: null } : {};
    this.url.set({ ...tokenAt(this.lockedToken === token ? null : token), ...closed }, { push: true });
  }

  clickCell(cell: { dest: number; src: number }): void {
    const locked = this.lockedCell;
    const same = locked !== null && locked.dest === cell.dest && locked.src === cell.src;
    this.url.set({ cell: same ? null : `${cell.dest}.${cell.src}` }, { push: true });
  }

  /** Moves the token by keys: a lock moves with it, a soft focus stays soft. */
  moveToken(to: number): void {
    const at = Math.min(Math.max(to, 0), this.length() - 1);
    this.softToken = at;
    if (this.lockedToken !== null) this.url.set(tokenAt(at));
  }

  moveHead(head: string): void {
    this.softHead = head;
    if (this.lockedHead !== null) this.url.set({ head: head });
  }

  /** Frees everything. */
  free(): void {
    this.softHead = null;
    this.softToken = null;
    this.softCell = null;
    this.url.set({ head: ALL_HEADS, position: null, cell: null }, { push: true });
  }

  /** Shows all heads together again, the token kept. */
  freeHead(): void {
    this.softHead = null;
    this.url.set({ head: ALL_HEADS }, { push: true });
  }
}
