import type { Answers, Params, QuestionName, TextParams } from "../../generated/answers";
import { decode } from "./wire";

/** Parameters of a question: flat, without those that have the server's default. */
export type PlainParams = Record<string, string | number | boolean | undefined>;

/**
 * The canonical name of a question: equal questions have equal keys.
 *
 * Python makes the same string with `json.dumps(params, sort_keys=True, separators=(",", ":"),
 * ensure_ascii=False)`, so that a report can be written there and read here.
 */
export function questionKey(name: string, params: PlainParams = {}): string {
  const present = Object.entries(params).filter(([, value]) => value !== undefined);
  // Python sorts by code point, `<` by UTF-16 unit; parameter names are ASCII, where both agree.
  present.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  return `${name}:${JSON.stringify(Object.fromEntries(present))}`;
}

/** The questions that explain one prediction. */
export type Explaining = "why" | "paths";

/** How far a computation is: steps done, steps in all (0: not known), and what is being done. */
export interface Progress {
  done: number;
  total: number;
  what: string;
}

type SourceKind = "live" | "report" | "notebook";

/** Where answers come from; the page is the same for all three. */
export interface Source {
  readonly kind: SourceKind;
  /**
   * With a signal, the question is withdrawn when it aborts, unless others wait for the same answer.
   * `onprogress` hears how far a slow answer is.
   */
  ask<N extends QuestionName>(
    name: N,
    params: Params[N],
    signal?: AbortSignal,
    onprogress?: (progress: Progress) => void,
  ): Promise<Answers[N]>;
  /** Can this be answered? Live: always. Report: if it was recorded. */
  has<N extends QuestionName>(name: N, params: Params[N]): boolean;
  /** The views that have something to show; null for all. */
  readonly views: readonly string[] | null;
  /** The positions of a text whose predictions are explained; null for all. */
  explained(name: Explaining, text: TextParams): ReadonlySet<number> | null;
  /** How many questions are waiting for an answer. */
  readonly pending: number;
  /** Calls back with `false` when the server stops responding and `true` when it is back. */
  onReach(listener: (reachable: boolean) => void): () => void;
}

/** A question that the server rejected, with its reason. */
export class Refused extends Error {
  constructor(
    message: string,
    readonly errorKind: string = "InputError",
  ) {
    super(message);
    this.name = "Refused";
  }
}

/** A question whose answer the report does not hold. */
export class NotRecorded extends Error {
  constructor(message: string) {
    super(message);
    this.name = "NotRecorded";
  }
}

/** The server does not respond. */
export class Unreachable extends Error {
  constructor(message = "Lost connection to the server.") {
    super(message);
    this.name = "Unreachable";
  }
}

interface Entry {
  promise: Promise<unknown>;
  bytes: number;
  /** Those who wait for it; Infinity once one of them cannot withdraw. */
  waiting: number;
  stop: AbortController;
  listeners: Set<(progress: Progress) => void>;
}

/** Cached answers, in bytes: a few long texts, or hundreds of short ones. */
const CACHE_BYTES = 192 * 1024 * 1024;

/** Sends each question once and caches recent answers; errors are not cached. */
export abstract class CachedSource implements Source {
  abstract readonly kind: SourceKind;
  private readonly entries = new Map<string, Entry>();
  private readonly listeners = new Set<(reachable: boolean) => void>();
  private reachable = true;
  pending = 0;

  protected abstract fetchWire(
    name: QuestionName,
    params: PlainParams,
    key: string,
    signal: AbortSignal,
    report: (progress: Progress) => void,
  ): Promise<ArrayBuffer | Uint8Array>;

  /** An answer and the bytes that it takes. */
  protected async fetchAnswer(...question: Parameters<typeof this.fetchWire>): Promise<{ answer: unknown; bytes: number }> {
    const wire = await this.fetchWire(...question);
    return { answer: decode(wire), bytes: wire.byteLength };
  }

  has<N extends QuestionName>(_name: N, _params: Params[N]): boolean {
    return true;
  }

  get views(): readonly string[] | null {
    return null;
  }

  explained(_name: Explaining, _text: TextParams): ReadonlySet<number> | null {
    return null;
  }

  onReach(listener: (reachable: boolean) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  protected setReachable(reachable: boolean): void {
    if (reachable === this.reachable) return;
    this.reachable = reachable;
    for (const listener of this.listeners) listener(reachable);
  }

  ask<N extends QuestionName>(
    name: N,
    params: Params[N],
    signal?: AbortSignal,
    onprogress?: (progress: Progress) => void,
  ): Promise<Answers[N]> {
    const key = questionKey(name, params as PlainParams);
    const known = this.entries.get(key);
    if (known) {
      this.entries.delete(key);
      this.entries.set(key, known); // most recently used last
      this.wait(key, known, signal, onprogress);
      return known.promise as Promise<Answers[N]>;
    }
    const entry: Entry = {
      promise: Promise.resolve(),
      bytes: 0,
      waiting: 0,
      stop: new AbortController(),
      listeners: new Set(),
    };
    this.wait(key, entry, signal, onprogress);
    this.pending++;
    const report = (progress: Progress): void => {
      for (const listener of entry.listeners) listener(progress);
    };
    entry.promise = this.fetchAnswer(name, params as PlainParams, key, entry.stop.signal, report).then(
      ({ answer, bytes }) => {
        this.pending--;
        entry.bytes = bytes;
        this.shrink(key);
        return answer;
      },
      (error: unknown) => {
        this.pending--;
        if (this.entries.get(key) === entry) this.entries.delete(key);
        throw error;
      },
    );
    this.entries.set(key, entry);
    return entry.promise as Promise<Answers[N]>;
  }

  private wait(
    key: string,
    entry: Entry,
    signal: AbortSignal | undefined,
    onprogress: ((progress: Progress) => void) | undefined,
  ): void {
    entry.waiting = signal ? entry.waiting + 1 : Infinity;
    if (onprogress) entry.listeners.add(onprogress);
    signal?.addEventListener("abort", () => {
      if (onprogress) entry.listeners.delete(onprogress);
      if (--entry.waiting > 0 || entry.bytes > 0) return;
      if (this.entries.get(key) === entry) this.entries.delete(key);
      entry.stop.abort();
    });
  }

  private shrink(keep: string): void {
    let total = 0;
    for (const entry of this.entries.values()) total += entry.bytes;
    for (const [key, entry] of this.entries) {
      if (total <= CACHE_BYTES) return;
      if (key === keep || entry.bytes === 0) continue;
      this.entries.delete(key);
      total -= entry.bytes;
    }
  }
}
