import { largest } from "../../lib/algebra";
import type { AttentionAnswer } from "../../generated/answers";
import { type Cells, sparseToDense } from "../../lib/draw/matrix";
import type { Matrix } from "../../lib/source/wire";

export type Weighting = "attention" | "information" | "effect";
/** Which end of the arrow the focused token is: it attends (destination), or is attended to (source). */
export type Side = "dest" | "src";

/**
 * Where heads look on one text, dense or in sparse rows, with the numbers that shading needs.
 *
 * `head` is an index, or −1 for all heads together: their mean (attention, information) or their sum (effect,
 * where single effects add up).
 */
export class Patterns {
  readonly n: number;
  readonly heads: readonly string[];
  readonly weighting: Weighting;
  private all: Float32Array | null = null;
  private readonly extents = new Map<number, number>();

  constructor(
    readonly answer: AttentionAnswer,
    /** A single head, always dense, where the whole answer is sparse. */
    private readonly alone: AttentionAnswer | null = null,
  ) {
    this.n = answer.tokens;
    this.heads = answer.heads;
    this.weighting = answer.weighting;
  }

  get isSparse(): boolean {
    return this.answer.dense === null;
  }

  get isSigned(): boolean {
    return this.weighting === "effect";
  }

  /** [dest, src] of one head, or of all, every cell of it. */
  values(head: number): Float32Array {
    const known = this.dense(head);
    if (known) return known;
    const { k, places, entries } = this.sparse(head);
    return sparseToDense(places, entries, this.n, k);
  }

  /** What a matrix draws. */
  cells(head: number, hideFirst: boolean): Cells {
    const { n } = this;
    const values = this.dense(head);
    if (!values) return { rows: n, columns: n, ...this.sparse(head), withoutFirst: hideFirst };
    return { rows: n, columns: n, values: hideFirst ? this.withoutFirst(values) : values };
  }

  private withoutFirst(values: Float32Array): Float32Array {
    const out = values.slice();
    for (let i = 0; i < this.n; i++) out[i * this.n] = 0;
    return out;
  }

  /** [dest, src] where it is there or cheap to keep; null where a head has sparse rows only. */
  private dense(head: number): Float32Array | null {
    const { n } = this;
    if (head < 0) return (this.all ??= this.together());
    if (this.alone?.dense && this.alone.heads[0] === this.heads[head]) return this.alone.dense.data as Float32Array;
    const { dense } = this.answer;
    return dense ? (dense.data.subarray(head * n * n, (head + 1) * n * n) as Float32Array) : null;
  }

  private sparse(head: number): { k: number; places: ArrayLike<number>; entries: ArrayLike<number> } {
    const [columns, values] = [this.answer.columns as Matrix, this.answer.values as Matrix];
    const k = columns.shape[2] as number;
    const [from, to] = [head * this.n * k, (head + 1) * this.n * k];
    return { k, places: columns.data.subarray(from, to), entries: values.data.subarray(from, to) };
  }

  /** The cells of a head that are there: `k` in each row, with the source and the value of each. */
  private kept(head: number): { k: number; source: (at: number) => number; values: ArrayLike<number> } {
    const { n } = this;
    const dense = this.dense(head);
    if (dense) return { k: n, source: (at) => at % n, values: dense };
    const { k, places, entries } = this.sparse(head);
    return { k, source: (at) => places[at] as number, values: entries };
  }

  /** What one destination attends to. */
  private row(head: number, dest: number): Float32Array {
    const out = new Float32Array(this.n);
    const { k, source, values } = this.kept(head);
    for (let at = dest * k; at < (dest + 1) * k; at++) if (values[at]) out[source(at)] = values[at] as number;
    return out;
  }

  /** What attends to one source. */
  private column(head: number, src: number): Float32Array {
    return Float32Array.from({ length: this.n }, (_, dest) => this.at(head, dest, src));
  }

  private together(): Float32Array {
    const { n } = this;
    const out = new Float32Array(n * n);
    const weight = this.isSigned ? 1 : 1 / this.heads.length;
    this.heads.forEach((_, head) => {
      const { k, source, values } = this.kept(head);
      for (let at = 0; at < n * k; at++) (out[Math.floor(at / k) * n + source(at)] as number) += weight * (values[at] as number);
    });
    return out;
  }

  /** The end of the scale: 1 for the attention of a head, else the largest size of a value. */
  extent(head: number, hideFirst: boolean): number {
    return this.weighting === "attention" && head >= 0 ? 1 : this.largest(head, hideFirst);
  }

  /** The largest size of a value, without the first source if it is hidden. */
  largest(head: number, hideFirst: boolean): number {
    const key = 2 * (head + 1) + (hideFirst ? 1 : 0);
    const known = this.extents.get(key);
    if (known !== undefined) return known;
    const { k, source, values } = this.kept(head);
    let most = 0;
    for (let at = 0; at < this.n * k; at++) {
      const size = Math.abs(values[at] as number);
      if (size > most && !(hideFirst && source(at) === 0)) most = size;
    }
    this.extents.set(key, most);
    return most;
  }

  /** One token's row (what it attends to) or column (what attends to it). */
  along(head: number, token: number, side: Side, hideFirst: boolean): Float32Array {
    const out = side === "dest" ? this.row(head, token) : this.column(head, token);
    if (hideFirst) {
      if (side === "dest") out[0] = 0;
      else if (token === 0) out.fill(0);
    }
    return out;
  }

  /** How much each head does at a token (or reads from it), 0 to 1: the brightness of its thumbnail. */
  care(token: number, side: Side): Float32Array {
    const { n } = this;
    const source = (side === "dest" ? this.answer.activity : this.answer.source_activity).data;
    const out = new Float32Array(this.heads.length);
    let most = 0;
    for (let h = 0; h < out.length; h++) {
      out[h] = source[h * n + token] as number;
      most = Math.max(most, out[h] as number);
    }
    // Attention away from the first token is a share already; the others are compared among heads.
    const scale = this.weighting === "attention" && side === "dest" ? 1 : most;
    if (scale > 0) for (let h = 0; h < out.length; h++) out[h] = Math.min(1, (out[h] as number) / scale);
    return out;
  }

  /** The sum of each head's row at a token, the largest first. */
  effects(token: number): { head: string; value: number }[] {
    if (token >= this.n) return [];
    return this.heads
      .map((head, h) => ({ head, value: this.row(h, token).reduce((sum, value) => sum + value, 0) }))
      .sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  }

  /** How much each token is read (or, as a source of arrows, does) through one head or all. */
  totals(head: number, side: Side): Float32Array {
    const { n } = this;
    const source = (side === "dest" ? this.answer.source_activity : this.answer.activity).data;
    const out = new Float32Array(n);
    if (head >= 0) {
      out.set(source.subarray(head * n, (head + 1) * n));
      return out;
    }
    for (let h = 0; h < this.heads.length; h++) {
      for (let i = 0; i < n; i++) (out[i] as number) += source[h * n + i] as number;
    }
    return out;
  }

  /** The share of the absolute sum that the first position takes, in a row or in everything. */
  firstShare(head: number, token: number | null): number {
    let [first, all] = [0, 0];
    const from = token ?? 0;
    const to = token === null ? this.n : token + 1;
    for (let i = from; i < to; i++) {
      const row = this.row(head, i);
      for (let j = 0; j <= i; j++) {
        const size = Math.abs(row[j] as number);
        all += size;
        if (j === 0) first += size;
      }
    }
    return all > 0 ? first / all : 0;
  }

  /** Of a cell: its value, and its place among the sources of its row (1 = largest size). */
  cell(head: number, dest: number, src: number): { value: number; rank: number; of: number } {
    const row = this.row(head, dest);
    const value = row[src] as number;
    let rank = 1;
    for (let j = 0; j <= dest; j++) if (Math.abs(row[j] as number) > Math.abs(value)) rank++;
    return { value, rank, of: dest + 1 };
  }

  /** A cell through every head, the largest first. */
  headsAt(dest: number, src: number): { head: string; value: number }[] {
    return this.heads
      .map((head, h) => ({ head, value: this.at(h, dest, src) }))
      .sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  }

  /** One value without making a whole head dense. */
  at(head: number, dest: number, src: number): number {
    const { k, source, values } = this.kept(head);
    // A dense row has its sources in order.
    for (let at = dest * k + (k === this.n ? src : 0); at < (dest + 1) * k; at++) {
      if (source(at) === src && values[at]) return values[at] as number;
    }
    return 0;
  }
}

/** Indices of the `most` values of the largest size, largest first; zeros are left out. */
export function strongest(values: ArrayLike<number>, most: number): number[] {
  const sizes = Float64Array.from(values, Math.abs);
  return largest(sizes, most).filter((i) => (sizes[i] as number) > 0);
}
