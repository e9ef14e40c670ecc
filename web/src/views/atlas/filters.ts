/**
 * Filters of the atlas. They live in the URL as one text, conditions joined by ";":
 *
 *     copying:0.5..1;kind:induction;layer:1
 *
 * A condition whose score is unknown is dropped when it is read: a link made for another model
 * still opens.
 */
import type { HeadRow } from "./table";

export interface Between {
  readonly type: "between";
  readonly score: string;
  readonly low: number | null;
  readonly high: number | null;
}

interface OneOf {
  readonly type: "kind" | "layer";
  readonly value: string;
}

export type Condition = Between | OneOf;

export function parseFilters(text: string | undefined, scores: readonly string[]): Condition[] {
  if (!text) return [];
  return text.split(";").flatMap((part) => parseCondition(part, scores));
}

function parseCondition(part: string, scores: readonly string[]): Condition[] {
  const colon = part.indexOf(":");
  if (colon < 1) return [];
  const [name, value] = [part.slice(0, colon), part.slice(colon + 1)];
  if (name === "kind" || name === "layer") return value ? [{ type: name, value }] : [];
  if (!scores.includes(name)) return [];
  const ends = value.split("..");
  if (ends.length !== 2) return [];
  const [low, high] = ends.map(parseEnd) as [number | null, number | null];
  return low === null && high === null ? [] : [{ type: "between", score: name, low, high }];
}

function parseEnd(text: string): number | null {
  const value = Number.parseFloat(text);
  return Number.isFinite(value) ? value : null;
}

export function printFilters(conditions: readonly Condition[]): string | undefined {
  if (conditions.length === 0) return undefined;
  return conditions
    .map((each) =>
      each.type === "between"
        ? `${each.score}:${printEnd(each.low)}..${printEnd(each.high)}`
        : `${each.type}:${each.value}`,
    )
    .join(";");
}

function printEnd(value: number | null): string {
  return value === null ? "" : String(Number(value.toPrecision(4)));
}

/** Conditions of one sort widen (kind A or kind B); different sorts narrow (kind and layer). */
export function passes(row: HeadRow, conditions: readonly Condition[]): boolean {
  const allowed = (type: "kind" | "layer", own: string) => {
    const values = conditions.flatMap((each) => (each.type === type ? [each.value] : []));
    return values.length === 0 || values.includes(own);
  };
  return (
    allowed("kind", row.kind) &&
    allowed("layer", String(row.layer)) &&
    conditions.every((each) => each.type !== "between" || isBetween(row, each))
  );
}

function isBetween(row: HeadRow, condition: Between): boolean {
  const value = row.values.get(condition.score) ?? Number.NaN;
  if (Number.isNaN(value)) return false;
  return (
    (condition.low === null || value >= condition.low) && (condition.high === null || value <= condition.high)
  );
}

/** With a condition added; a score has one range, which the last one replaces. */
export function withCondition(conditions: readonly Condition[], added: Condition): readonly Condition[] {
  const kept = conditions.filter((each) =>
    added.type === "between"
      ? !(each.type === "between" && each.score === added.score)
      : !(each.type === added.type && (each as OneOf).value === added.value),
  );
  return [...kept, added];
}

/** A chip's text: "copying ≥ 0.5", "0.2 ≤ copying ≤ 0.8", "layer 1", "induction". */
export function chipText(condition: Condition, titles: ReadonlyMap<string, string>): string {
  if (condition.type !== "between") {
    return condition.type === "kind" ? `kind: ${condition.value}` : `layer ${condition.value}`;
  }
  const title = titles.get(condition.score) ?? condition.score;
  const { low, high } = condition;
  if (low === null) return `${title} ≤ ${printEnd(high)}`;
  if (high === null) return `${title} ≥ ${printEnd(low)}`;
  return `${printEnd(low)} ≤ ${title} ≤ ${printEnd(high)}`;
}
