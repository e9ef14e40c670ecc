import { expect, it } from "vitest";
import type { WithoutAnswer } from "../../generated/answers";
import { partRows } from "./parts";

const data = (...values: number[]) => ({ shape: [values.length], data: Float32Array.from(values) });

it("folds what is next to nothing in both runs, and still adds up", () => {
  const answer = {
    parts: ["embed", "L0H0", "L0H1", "L0H2", "L1H0"],
    parts_before: data(1, 0.01, -0.01, 0.02, 5),
    parts_after: data(1, 0.01, -0.02, 2, 0),
  } as unknown as WithoutAnswer;
  const rows = partRows(answer);
  expect(rows.map((row) => row.name)).toEqual(["L1H0", "L0H2", "embed", "2 others, each small"]);
  const sum = (pick: "before" | "after") => rows.reduce((total, row) => total + row[pick], 0);
  expect(sum("before")).toBeCloseTo(6.02);
  expect(sum("after")).toBeCloseTo(2.99);
});
