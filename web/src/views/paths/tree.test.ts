import { describe, expect, it } from "vitest";
import type { PathValue, Why } from "../../generated/answers";
import { csvRows, rowsOf } from "./tree";

const path = (heads: string[], value: number): PathValue => ({
  heads,
  source: "embed",
  text: heads.join(" "),
  formula: "",
  latex: "",
  value,
  order: heads.length,
  from_positions: [],
  from_values: [],
  via: [],
});

const why = {
  total: 6.5,
  remainder: 0.003,
  by_order: [
    { order: 0, value: 1, paths: "1" },
    { order: 1, value: 5, paths: "3" },
    { order: 2, value: 0.25, paths: "2" },
  ],
  paths: [path(["L1H1"], 4), path([], 1), path(["L0H0"], 0.5), path(["L0H0", "L1H1"], 0.75), path(["L0H1", "L1H1"], -0.5)],
} as unknown as Why;

describe("the tree of a prediction", () => {
  it("has the orders, what is left out last, and the total", () => {
    const rows = rowsOf(why, new Set());
    expect(rows.map((row) => row.label)).toEqual(["direct", "one head", "two heads", "left out", "logit"]);
    expect(rows.map((row) => row.start)).toEqual([0, 1, 6, 6.25, 0]);
  });

  it("adds up on every level, with a row for what is not listed", () => {
    const rows = rowsOf(why, new Set(["1", "2", "2.L1H1"]));
    const of = (depth: number, from: string, to: string) => {
      const labels = rows.map((row) => row.label);
      return rows.slice(labels.indexOf(from) + 1, labels.indexOf(to)).filter((row) => row.depth === depth);
    };
    const one = of(1, "one head", "two heads");
    expect(one.map((row) => row.label)).toEqual(["L1H1 ← embed", "L0H0 ← embed", "paths not listed"]);
    expect(one.reduce((total, row) => total + row.value, 0)).toBeCloseTo(5);
    const two = of(2, "two heads", "left out");
    expect(two.map((row) => row.label)).toEqual(["L1H1 ← L0H0 ← embed", "L1H1 ← L0H1 ← embed"]);
    expect(two.map((row) => row.start)).toEqual([6, 6.75]);
  });

  it("never shows the remainder, a relative error, as logits", () => {
    const leftOut = rowsOf(why, new Set()).find((row) => row.kind === "left out");
    expect(leftOut?.value).toBeCloseTo(0.25);
    const saved = csvRows(why);
    expect(saved.flat()).not.toContain(why.remainder);
    expect(saved.at(-2)).toEqual(["", "(left out)", 0.25]);
    expect(saved.at(-1)).toEqual(["", "(logit)", 6.5]);
  });
});
