import type { PathValue, Why } from "../../generated/answers";
import { orderName } from "./orders";

/**
 * A prediction as a tree: orders, in each the heads its paths end in, in each the single paths. Every level adds
 * up to the one above it; what single paths leave out has a row of its own.
 */
export interface Row {
  /** Names the row in the URL: "1", "1.L1H4". Single paths have none. */
  key: string;
  kind: "order" | "head" | "path" | "unlisted" | "left out" | "total";
  label: string;
  value: number;
  /** Where its bar begins: the sum of all before it on its level. */
  start: number;
  depth: number;
  opens: boolean;
  open: boolean;
  path: PathValue | null;
  /** How many paths it stands for, in words; nothing for a single one. */
  count: string;
}

/** The head a path ends in, or the source of a path through none. */
export const lastOf = (path: PathValue): string => path.heads[path.heads.length - 1] ?? path.source;

/** "L1H4 ← L0H3 ← embed": from the prediction back to the source. */
export const pathLabel = (path: PathValue): string => [...path.heads].reverse().concat(path.source).join(" ← ");

/** All rows that are visible with these keys open, in order; "left out" is the last before the total. */
export function rowsOf(why: Why, open: ReadonlySet<string>): Row[] {
  const rows: Row[] = [];
  let start = 0;
  for (const order of why.by_order) {
    const key = String(order.order);
    const listed = why.paths.filter((path) => path.order === order.order);
    rows.push({
      key,
      kind: "order",
      label: orderName(order.order),
      value: order.value,
      start,
      depth: 0,
      opens: listed.length > 0,
      open: open.has(key),
      path: null,
      count: order.paths === "1" ? "" : `${order.paths} paths`,
    });
    if (open.has(key)) rows.push(...headRows(listed, order.value, start, key, open));
    start += order.value;
  }
  rows.push(plain("left out", "left out", leftOut(why), start));
  rows.push(plain("total", "logit", why.total, 0));
  return rows;
}

/**
 * What the orders leave out of the total, in logits. (`remainder` compares the total with the model's own logit, as
 * a relative error without a sign; it belongs in the status line.)
 */
const leftOut = (why: Why): number => why.total - why.by_order.reduce((total, order) => total + order.value, 0);

/** The rows of the CSV file: order, path, logit. */
export function csvRows(why: Why): (string | number)[][] {
  return [
    ...why.by_order.map((order) => [order.order, "(all of this order)", order.value]),
    ...why.paths.map((path) => [path.order, path.text, path.value]),
    ["", "(left out)", leftOut(why)],
    ["", "(logit)", why.total],
  ];
}

function plain(kind: Row["kind"], label: string, value: number, start: number): Row {
  return { key: "", kind, label, value, start, depth: 0, opens: false, open: false, path: null, count: "" };
}

function headRows(listed: PathValue[], whole: number, from: number, parent: string, open: ReadonlySet<string>): Row[] {
  const groups = new Map<string, PathValue[]>();
  for (const path of listed) groups.set(lastOf(path), [...(groups.get(lastOf(path)) ?? []), path]);
  const sums = [...groups].map(([name, paths]) => ({ name, paths, value: sum(paths) }));
  sums.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const rows: Row[] = [];
  let start = from;
  for (const group of sums) {
    const key = `${parent}.${group.name}`;
    const single = group.paths.length === 1 ? (group.paths[0] as PathValue) : null;
    rows.push({
      key,
      kind: single ? "path" : "head",
      label: single ? pathLabel(single) : `${group.name} ← …`,
      value: group.value,
      start,
      depth: 1,
      opens: single === null,
      open: open.has(key),
      path: single,
      count: single ? "" : `${group.paths.length} paths`,
    });
    if (single === null && open.has(key)) rows.push(...pathRows(group.paths, start));
    start += group.value;
  }
  const rest = whole - sum(listed);
  if (Math.abs(rest) > 1e-6 * Math.max(1, Math.abs(whole))) rows.push(unlisted(rest, start));
  return rows;
}

function pathRows(paths: PathValue[], from: number): Row[] {
  let start = from;
  return paths.map((path) => {
    const row: Row = {
      key: "",
      kind: "path",
      label: pathLabel(path),
      value: path.value,
      start,
      depth: 2,
      opens: false,
      open: false,
      path,
      count: "",
    };
    start += path.value;
    return row;
  });
}

const unlisted = (value: number, start: number): Row => ({
  ...plain("unlisted", "paths not listed", value, start),
  depth: 1,
});

const sum = (paths: readonly PathValue[]): number => paths.reduce((total, path) => total + path.value, 0);
