import type { PathExplanation, Routes } from "../../generated/answers";
import { count } from "../../lib/format";
import { type Path, parsePath } from "../../lib/names";

/** A path that is listed on its own, with what it adds to the logit. */
export interface ListedPath extends Path {
  /** As `pathsum.base` prints it: "embed→L0H7→L1H4". */
  readonly name: string;
  readonly value: number;
  /** Where its value came from; null for paths too weak to be drawn. */
  readonly routes: Routes | null;
}

interface OrderTotal {
  readonly order: number;
  readonly value: number;
  readonly count: number;
}

export function listedPaths(why: PathExplanation): ListedPath[] {
  return why.top.paths.map(({ path, value }, at) => ({
    ...(parsePath(path) ?? { source: path, heads: [] }),
    name: path,
    value,
    routes: why.routes[at] ?? null,
  }));
}

export function orderTotals(why: PathExplanation): OrderTotal[] {
  const { names, values } = why.toward.by_order;
  return names.map((order, at) => ({
    order: Number(order),
    value: values.data[at] ?? 0,
    count: why.counts[at] ?? 0,
  }));
}

/** What came from the token at each position, all sources together. */
export function sourceTotals(why: PathExplanation): Float32Array {
  const { rows, columns, values } = why.toward.by_source;
  const totals = new Float32Array(columns.length);
  rows.forEach((_, row) => columns.forEach((_, at) => (totals[at]! += values.data[row * columns.length + at] ?? 0)));
  return totals;
}

/** Orders at the end that add less than this share of the largest are shown as one, if they are several. */
const NEAR_ZERO = 0.01;
const FEWEST_FOLDED = 3;
/** Names the row of these orders in the URL. */
export const FOLDED = "~";

/** The orders that are shown one by one, and those at the end that are near zero. */
export function foldOrders(orders: readonly OrderTotal[]): { large: readonly OrderTotal[]; small: readonly OrderTotal[] } {
  const least = nearZero(orders);
  const end = orders.findLastIndex((order) => Math.abs(order.value) >= least) + 1;
  const split = orders.length - end < FEWEST_FOLDED ? orders.length : end;
  return { large: orders.slice(0, split), small: orders.slice(split) };
}

const nearZero = (orders: readonly OrderTotal[]): number => NEAR_ZERO * Math.max(...orders.map((each) => Math.abs(each.value)));

/** Several orders as one, called “7 to 30 heads”. */
export function foldedOrder(small: readonly OrderTotal[]): { label: string; value: number; count: number } {
  const add = (of: (order: OrderTotal) => number): number => small.reduce((total, order) => total + of(order), 0);
  const [first, last] = [small[0]?.order, small.at(-1)?.order];
  return { label: `${first} to ${last} heads`, value: add((order) => order.value), count: add((order) => order.count) };
}

/** What paths through this many heads are called. */
export function orderName(order: number): string {
  if (order === 0) return "direct";
  if (order === 1) return "one head";
  return `${["", "", "two", "three", "four", "five", "six"][order] ?? order} heads`;
}

/**
 * A prediction as a tree: orders, then the heads that their paths end in, then single paths. Every level adds up to
 * the one above it; paths that are not listed share a row.
 */
export interface Row {
  /** Names the row in the URL: "1", "1.L1H4". Single paths have none. */
  key: string;
  kind: "order" | "head" | "path" | "unlisted" | "omitted" | "total";
  label: string;
  value: number;
  /** Where its bar begins: the sum of all before it on its level. */
  start: number;
  depth: number;
  opens: boolean;
  open: boolean;
  path: ListedPath | null;
  /** How many paths it stands for, in words; empty for a single one. */
  count: string;
}

/** The head that a path ends in, or the source of a direct path. */
const lastOf = (path: Path): string => path.heads[path.heads.length - 1] ?? path.source;

/** A row that neither opens nor is a single path, but for what `more` says. */
const row = (kind: Row["kind"], label: string, value: number, start: number, more: Partial<Row> = {}): Row => ({
  ...{ key: "", kind, label, value, start, depth: 0, opens: false, open: false, path: null, count: "" },
  ...more,
});

/** All rows that are visible with these keys open, in order; "omitted" is the last before the total. */
export function rowsOf(why: PathExplanation, open: ReadonlySet<string>, total = "logit"): Row[] {
  const rows: Row[] = [];
  let start = 0;
  const paths = listedPaths(why);
  const orders = orderTotals(why);
  const least = nearZero(orders);
  const addOrder = (order: OrderTotal, depth: number): void => {
    const key = String(order.order);
    const listed = paths.filter((path) => path.heads.length === order.order);
    const counted = order.count === 1 ? "" : `${count(order.count)} paths`;
    rows.push(row("order", orderName(order.order), order.value, start, { key, depth, opens: listed.length > 0, open: open.has(key), count: counted }));
    if (open.has(key)) rows.push(...headRows(listed, order, start, key, open, least));
    start += order.value;
  };
  const { large, small } = foldOrders(orders);
  for (const order of large) addOrder(order, 0);
  if (small.length > 0) {
    const folded = foldedOrder(small);
    // A link may open one of them.
    const isOpen = open.has(FOLDED) || small.some((order) => open.has(String(order.order)));
    const counted = `near zero, ${count(folded.count)} paths`;
    rows.push(row("order", folded.label, folded.value, start, { key: FOLDED, opens: true, open: isOpen, count: counted }));
    if (isOpen) for (const order of small) addOrder(order, 1);
    else start += folded.value;
  }
  rows.push(row("omitted", "omitted", omitted(why), start));
  rows.push(row("total", total, why.toward.total, 0));
  return rows;
}

/**
 * The total minus all orders, in logits. (`remainder` compares the total with the model's own logit, as
 * a relative error without a sign; it belongs in the status line.)
 */
const omitted = (why: PathExplanation): number =>
  why.toward.total - orderTotals(why).reduce((total, order) => total + order.value, 0);

/** The rows of the CSV file: order, path, what it adds. */
export function csvRows(why: PathExplanation, total = "logit"): (string | number)[][] {
  return [
    ...orderTotals(why).map((order) => [order.order, "(all of this order)", order.value]),
    ...listedPaths(why).map((path) => [path.heads.length, path.name, path.value]),
    ["", "(omitted)", omitted(why)],
    ["", `(${total})`, why.toward.total],
  ];
}

function headRows(listed: ListedPath[], order: OrderTotal, from: number, parent: string, open: ReadonlySet<string>, least: number): Row[] {
  const groups = new Map<string, ListedPath[]>();
  for (const path of listed) groups.set(lastOf(path), [...(groups.get(lastOf(path)) ?? []), path]);
  const sums = [...groups].map(([name, paths]) => ({ name, paths, value: sum(paths) }));
  sums.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const large = sums.filter((group) => Math.abs(group.value) >= least);
  const small = sums.slice(large.length);
  const folds = small.length > 1;
  const { rows, end } = groupRows(folds ? large : sums, from, parent, open, 1);
  let start = end;
  if (folds) {
    const key = `${parent}.~`;
    const paths = small.flatMap((group) => group.paths);
    rows.push(row("head", "near zero", sum(paths), start, { key, depth: 1, opens: true, open: open.has(key), count: `${paths.length} paths` }));
    if (open.has(key)) rows.push(...groupRows(small, start, parent, open, 2).rows);
    start += sum(paths);
  }
  if (listed.length < order.count) rows.push(row("unlisted", "paths not listed", order.value - sum(listed), start, { depth: 1 }));
  return rows;
}

interface Group {
  name: string;
  paths: ListedPath[];
  value: number;
}

/** A row for each head that paths end in, and its single paths if it is open. */
function groupRows(groups: readonly Group[], from: number, parent: string, open: ReadonlySet<string>, depth: number): { rows: Row[]; end: number } {
  const rows: Row[] = [];
  let start = from;
  for (const { name, paths, value } of groups) {
    const key = `${parent}.${name}`;
    const [path] = paths;
    if (path && paths.length === 1) rows.push(row("path", path.name, value, start, { key, depth, path }));
    else rows.push(row("head", `…→${name}`, value, start, { key, depth, opens: true, open: open.has(key), count: `${paths.length} paths` }));
    let at = start;
    for (const each of paths.length > 1 && open.has(key) ? paths : []) {
      rows.push(row("path", each.name, each.value, at, { depth: 2, path: each }));
      at += each.value;
    }
    start += value;
  }
  return { rows, end: start };
}

const sum = (paths: readonly ListedPath[]): number => paths.reduce((total, path) => total + path.value, 0);
