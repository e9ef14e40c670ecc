/** The atlas as a table: one head per row, one score per column. Sorting and filtering work on its rows. */
import type { AtlasAnswer, Matrix, ScoreInfo } from "../../generated/answers";
import { layerOf } from "../../lib/names";

/** One head's value of one score, with the mean of its null distribution; NaN where there is none. */
interface Reading {
  readonly value: number;
  readonly stderr: number;
  readonly chance: number;
  readonly p: number;
  /** Random heads that p was counted over. */
  readonly draws: number | null;
}

/** A score with its value for every head. */
export interface AtlasScore extends ScoreInfo {
  /** What it means, what it was measured on, and what it is compared with. */
  readonly explanation: string;
  readonly readings: readonly Reading[];
}

export interface AtlasTable {
  readonly heads: readonly string[];
  readonly kinds: readonly string[];
  readonly scores: readonly AtlasScore[];
  readonly eigenvalues: Matrix;
  /** The most heads of each kind that are expected among as many random ones. */
  readonly byChance: Readonly<Record<string, number>>;
  /** Whether nulls, kinds and all scores are there: the first scores arrive before them. */
  readonly complete: boolean;
}

export interface HeadRow {
  readonly index: number;
  readonly head: string;
  readonly layer: number;
  readonly kind: string;
  readonly values: ReadonlyMap<string, number>;
}

export function atlasTable({ atlas, eigenvalues, by_chance }: AtlasAnswer, complete = true): AtlasTable {
  return {
    heads: atlas.heads.map((entry) => entry.head),
    kinds: atlas.heads.map((entry) => entry.kind),
    scores: atlas.infos.filter((info) => !(info.name in atlas.absent)).map((info) => score(atlas, info)),
    eigenvalues,
    byChance: by_chance,
    complete,
  };
}

function score(atlas: AtlasAnswer["atlas"], info: ScoreInfo): AtlasScore {
  const found = atlas.heads.map((entry) => entry.scores[info.name]);
  const through = [...new Set(found.map((each) => each?.through ?? ""))].filter((head) => head !== "");
  const explanation = [
    info.about,
    through.length ? `Read through ${through.join(", ")}.` : "",
    info.evidence === "data" ? `Measured on ${info.probe}.` : "From weights alone.",
    `Null: ${info.null}.`,
    `${info.citation}.`,
  ];
  return {
    ...info,
    explanation: explanation.filter((sentence) => sentence !== "").join(" "),
    readings: found.map((each) => ({
      value: each?.value ?? Number.NaN,
      stderr: each?.stderr ?? Number.NaN,
      chance: each?.null ?? Number.NaN,
      p: each?.p ?? Number.NaN,
      draws: each?.draws ?? null,
    })),
  };
}

export function rowsOf(table: AtlasTable): HeadRow[] {
  return table.heads.map((head, index) => ({
    index,
    head,
    layer: layerOf(head),
    kind: table.kinds[index] ?? "unknown",
    values: new Map(table.scores.map((each) => [each.name, each.readings[index]?.value ?? Number.NaN])),
  }));
}

/** Whether a head of this kind has a name: its data and weights agree. */
export const isNamed = (kind: string): boolean => kind !== "mixed" && kind !== "unknown";

/** A kind in two letters: "in" for induction, "pt" for previous token; nothing for heads without a kind. */
export function kindMark(kind: string): string {
  if (!isNamed(kind)) return "";
  const [first = "", second] = kind.split(/[ -]/);
  return second ? first.charAt(0) + second.charAt(0) : first.slice(0, 2);
}

/** The heads of each kind; those without a name come last. */
export function headsByKind({ heads, kinds }: Pick<AtlasTable, "heads" | "kinds">): [string, string[]][] {
  const found = new Map<string, string[]>();
  kinds.forEach((kind, at) => found.set(kind, [...(found.get(kind) ?? []), heads[at]!]));
  const last = (kind: string) => ["mixed", "unknown"].indexOf(kind);
  return [...found].sort(([a], [b]) => last(a) - last(b) || a.localeCompare(b));
}

export function scoreNamed(table: AtlasTable, name: string): AtlasScore | undefined {
  return table.scores.find((each) => each.name === name);
}

/** Scores that belong together, by what they were measured on. */
interface ScoreGroup {
  readonly title: string;
  readonly scores: readonly AtlasScore[];
}

const GROUPS = [
  { title: "on random tokens", holds: (each: ScoreInfo) => each.evidence === "data" && !each.name.endsWith("_text") },
  { title: "on text", holds: (each: ScoreInfo) => each.evidence === "data" && each.name.endsWith("_text") },
  { title: "from weights", holds: (each: ScoreInfo) => each.evidence === "weights" },
] as const;

/** The columns of the table in groups; groups that this atlas has no score of are left out. */
export function scoreGroups(scores: readonly AtlasScore[]): ScoreGroup[] {
  return GROUPS.map(({ title, holds }) => ({ title, scores: scores.filter(holds) })).filter(
    (group) => group.scores.length > 0,
  );
}

/** A score's title below the title of its group, which says the rest. */
export function shortTitle(title: string): string {
  return title.replace(/ \((data|text|weights)\)$/, "");
}

/** Layers whose heads all lack one of these scores: a scatter cannot draw them. */
export function layersWithout(rows: readonly HeadRow[], scores: readonly string[]): number[] {
  const isDrawn = (row: HeadRow) => scores.every((name) => Number.isFinite(row.values.get(name) ?? Number.NaN));
  const drawn = new Set(rows.filter(isDrawn).map((row) => row.layer));
  return [...new Set(rows.map((row) => row.layer))].filter((layer) => !drawn.has(layer)).sort((a, b) => a - b);
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

/**
 * By head, rows are where the grid has them: the last layer on top, heads from left to right. Heads without a
 * number come last, whichever way the rest is ordered.
 */
export function ordered(rows: readonly HeadRow[], order: Order): HeadRow[] {
  const sign = order.descending ? -1 : 1;
  const byIndex = (a: HeadRow, b: HeadRow) => b.layer - a.layer || a.index - b.index;
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
