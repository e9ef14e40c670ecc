/** The atlas as rows: one head a row, its scores by name. Sorting and filtering work on these. */
import type { AtlasAnswer, AtlasScore } from "../../generated/answers";

export interface HeadRow {
  readonly index: number;
  readonly head: string;
  readonly layer: number;
  readonly kind: string;
  readonly values: ReadonlyMap<string, number>;
}

/** One head's number on one score, with what chance gives. */
export interface Reading {
  readonly value: number;
  readonly stderr: number;
  readonly chance: number;
  readonly p: number;
}

export function rowsOf(atlas: AtlasAnswer): HeadRow[] {
  const kinds = new Map(atlas.kinds.map((entry) => [entry.head, entry.kind]));
  return atlas.heads.map((head, index) => ({
    index,
    head,
    layer: atlas.layers[index] ?? 0,
    kind: kinds.get(head) ?? "unknown",
    values: new Map(atlas.scores.map((score) => [score.name, score.value.data[index] ?? Number.NaN])),
  }));
}

export function scoreNamed(atlas: AtlasAnswer, name: string): AtlasScore | undefined {
  return atlas.scores.find((score) => score.name === name);
}

export function reading(score: AtlasScore, index: number): Reading {
  return {
    value: score.value.data[index] ?? Number.NaN,
    stderr: score.stderr.data[index] ?? Number.NaN,
    chance: score.null.data[index] ?? Number.NaN,
    p: score.p.data[index] ?? Number.NaN,
  };
}

/** How rows are ordered: by a score, by "head" or by "kind". */
export interface Order {
  readonly by: string;
  readonly descending: boolean;
}

export const BY_HEAD: Order = { by: "head", descending: false };

/** "-copying" is the largest copying score first. */
export function parseOrder(text: string | undefined): Order {
  if (!text) return BY_HEAD;
  return text.startsWith("-") ? { by: text.slice(1), descending: true } : { by: text, descending: false };
}

export function printOrder(order: Order): string | undefined {
  if (order.by === "head" && !order.descending) return undefined;
  return (order.descending ? "-" : "") + order.by;
}

/** Heads without a number come last, whichever way the rest is ordered. */
export function ordered(rows: readonly HeadRow[], order: Order): HeadRow[] {
  const sign = order.descending ? -1 : 1;
  const byIndex = (a: HeadRow, b: HeadRow) => a.index - b.index;
  if (order.by === "head") return [...rows].sort((a, b) => sign * byIndex(a, b));
  if (order.by === "kind") {
    return [...rows].sort((a, b) => sign * a.kind.localeCompare(b.kind) || byIndex(a, b));
  }
  const number = (row: HeadRow) => row.values.get(order.by) ?? Number.NaN;
  return [...rows].sort((a, b) => {
    const [left, right] = [number(a), number(b)];
    if (Number.isNaN(left) || Number.isNaN(right)) {
      return Number(Number.isNaN(left)) - Number(Number.isNaN(right)) || byIndex(a, b);
    }
    return sign * (left - right) || byIndex(a, b);
  });
}

/** The next order when a column's title is pressed: largest first, smallest first, by head. */
export function pressed(order: Order, column: string): Order {
  const first = column !== "head" && column !== "kind";
  if (order.by !== column) return { by: column, descending: first };
  if (order.descending === first) return { by: column, descending: !first };
  return BY_HEAD;
}
