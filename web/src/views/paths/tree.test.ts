import { describe, expect, it } from "vitest";
import type { PathExplanation } from "../../generated/answers";
import { csvRows, rowsOf, sourceTotals } from "./tree";

const path = (name: string, value: number) => ({ path: name, value, stderr: null });
const numbers = (...values: number[]) => ({ shape: [values.length], data: Float32Array.from(values) });

const why = {
  counts: [1, 3, 2],
  toward: {
    total: 6.5,
    remainder: 0.003,
    by_order: { names: [0, 1, 2], values: numbers(1, 5, 0.25) },
    by_source: { rows: ["embed", "pos"], columns: [0, 1], values: numbers(1, 2, 0.5, 3) },
  },
  top: {
    paths: [
      path("embed→L1H1", 4),
      path("embed", 1),
      path("embed→L0H0", 0.5),
      path("embed→L0H0→L1H1", 0.75),
      path("embed→L0H1→L1H1", -0.5),
    ],
  },
  routes: [],
} as unknown as PathExplanation;

describe("the tree of a prediction", () => {
  it("has the orders, the omitted rest last, and the total", () => {
    const rows = rowsOf(why, new Set());
    expect(rows.map((row) => row.label)).toEqual(["direct", "one head", "two heads", "omitted", "logit"]);
    expect(rows.map((row) => row.start)).toEqual([0, 1, 6, 6.25, 0]);
  });

  it("adds up on every level, with a row for what is not listed", () => {
    const rows = rowsOf(why, new Set(["1", "2", "2.L1H1"]));
    const of = (depth: number, from: string, to: string) => {
      const labels = rows.map((row) => row.label);
      return rows.slice(labels.indexOf(from) + 1, labels.indexOf(to)).filter((row) => row.depth === depth);
    };
    const one = of(1, "one head", "two heads");
    expect(one.map((row) => row.label)).toEqual(["embed→L1H1", "embed→L0H0", "paths not listed"]);
    expect(one.reduce((total, row) => total + row.value, 0)).toBeCloseTo(5);
    const two = of(2, "two heads", "omitted");
    expect(two.map((row) => row.label)).toEqual(["embed→L0H0→L1H1", "embed→L0H1→L1H1"]);
    expect(two.map((row) => row.start)).toEqual([6, 6.75]);
  });

  it("never shows the remainder, a relative error, as logits", () => {
    const omitted = rowsOf(why, new Set()).find((row) => row.kind === "omitted");
    expect(omitted?.value).toBeCloseTo(0.25);
    const saved = csvRows(why);
    expect(saved.flat()).not.toContain(why.toward.remainder);
    expect(saved.at(-2)).toEqual(["", "(omitted)", 0.25]);
    expect(saved.at(-1)).toEqual(["", "(logit)", 6.5]);
  });

  it("shows orders near zero as one, which opens", () => {
    const values = [9, 3, -2, 0.01, 0.02, -0.01];
    const by_order = { names: values.map((_, order) => String(order)), values: { data: values } };
    const deep = { ...why, counts: [1, 4, 4, 5, 5, 1e21], toward: { ...why.toward, by_order, total: 10.02 } } as unknown as PathExplanation;
    const orders = (...open: string[]) => rowsOf(deep, new Set(open)).filter((row) => row.kind === "order");
    expect(orders().map((row) => row.label)).toEqual(["direct", "one head", "two heads", "3 to 5 heads"]);
    expect(orders().at(-1)).toMatchObject({ value: expect.closeTo(0.02), count: "near zero, 1.0 × 10²¹ paths", opens: true, open: false });
    expect(orders("~").map((row) => row.label).slice(4)).toEqual(["three heads", "four heads", "five heads"]);
    expect(orders("4").at(3)?.open).toBe(true);
    const ends = (...open: string[]) => rowsOf(deep, new Set(open)).find((row) => row.kind === "omitted")?.start;
    expect(ends("~")).toBeCloseTo(ends() ?? NaN);
    expect(rowsOf(why, new Set()).map((row) => row.key)).not.toContain("~");
  });

  it("adds up the sources of a position", () => {
    expect([...sourceTotals(why)]).toEqual([1.5, 5]);
  });

  it("folds heads that add next to nothing into one row, which opens", () => {
    const many = {
      ...why,
      counts: [1, 4, 2],
      top: { paths: [path("embed→L1H1", 5), path("embed→L0H0", 0.01), path("embed→L0H1", -0.02), path("embed→L1H0", 0.01)] },
    } as unknown as PathExplanation;
    const labels = (...open: string[]) => rowsOf(many, new Set(open)).filter((row) => row.depth > 0).map((row) => row.label);
    expect(labels("1")).toEqual(["embed→L1H1", "near zero"]);
    expect(labels("1", "1.~")).toEqual(["embed→L1H1", "near zero", "embed→L0H1", "embed→L0H0", "embed→L1H0"]);
    const folded = rowsOf(many, new Set(["1"])).find((row) => row.label === "near zero");
    expect(folded?.value).toBeCloseTo(0);
    expect(folded?.start).toBeCloseTo(6);
  });

  it("calls the total what it is", () => {
    expect(rowsOf(why, new Set(), "logit difference").at(-1)?.label).toBe("logit difference");
    expect(csvRows(why, "logit difference").at(-1)?.[1]).toBe("(logit difference)");
  });
});
