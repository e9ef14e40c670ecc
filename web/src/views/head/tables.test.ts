import { describe, expect, test } from "vitest";

import type { HeadAblation, HeadEntry, HeadPage, TopContexts, SkipTrigrams } from "../../generated/answers";
import { csv } from "../../lib/page/export";
import type { Matrix } from "../../lib/source/wire";
import { ablationTable, eigenvalueTable, offsetTable, placeTable, scoreTable, tokenTable, trigramTable } from "./tables";

const words = (id: number): string => `t${id}`;
const matrix = (...values: number[]): Matrix => ({ shape: [values.length], data: Float32Array.from(values) }) as Matrix;
const token = (id: number) => ({ id, text: words(id) });
const estimate = (value: number) => ({ value, stderr: 0.1, low: value - 1, high: value + 1, null: null, p: null, draws: null });

const page = {
  head: "L0H1",
  copying: { eigenvalues: matrix(1, 2, 3, 4) },
  null_eigenvalues: matrix(5, 6),
  offsets: { score: matrix(0.5, 0.25), sd: matrix(0.125, 0), attention: matrix(1, 0.5) },
  ov_rows: [{ token: token(1), others: [{ token: token(2), value: 0.5 }] }],
  qk_rows: [{ token: token(3), others: [{ token: token(4), value: -1 }] }],
} as unknown as HeadPage;

describe("tables of the head page", () => {
  test("every eigenvalue is a row, chance's after the head's", () => {
    expect(eigenvalueTable(page).rows).toEqual([
      ["L0H1", 1, 2],
      ["L0H1", 3, 4],
      ["random heads", 5, 6],
    ]);
  });

  test("distances have score, spread and attention", () => {
    expect(offsetTable(page)?.rows).toEqual([
      [0, 0.5, 0.125, 1],
      [1, 0.25, 0, 0.5],
    ]);
    expect(offsetTable({ ...page, offsets: null })).toBeNull();
  });

  test("tokens of both circuits", () => {
    expect(tokenTable(page, words).rows).toEqual([
      ["OV", 1, "t1", 2, "t2", 0.5],
      ["QK", 3, "t3", 4, "t4", -1],
    ]);
  });

  test("scores with what chance gives", () => {
    const entry = { scores: { copying: { value: 1, stderr: null, null: 0, p: 0.5 } } } as unknown as HeadEntry;
    expect(scoreTable(entry).rows).toEqual([["copying", 1, null, 0, 0.5]]);
  });

  test("places say which tokens they are", () => {
    const place = { sequence: 2, source: 0, destination: 1, ids: [7, 8], weight: 0.5, effect: null, times: 3 };
    const answer = { by_attention: [place], by_effect: [], deciles: [] } as unknown as TopContexts;
    expect(placeTable(answer, words).rows).toEqual([["by attention", 2, 0, "t7", 1, "t8", 0.5, null, 3]]);
  });

  test("skip-trigrams, then their bugs", () => {
    const common = { source: token(1), destination: token(2), out: token(3), attention: 1, effect: 2, score: 3, pattern: "other" };
    const answer = {
      triples: [{ ...common, bug: null, fires: 4, evidence: { lift: 5 } }],
      bugs: [common],
    } as unknown as SkipTrigrams;
    expect(trigramTable(answer).rows).toEqual([
      ["t1", "t2", "t3", 1, 2, 3, "other", 4, 5, false],
      ["t1", "t2", "t3", 1, 2, 3, "other", null, null, true],
    ]);
  });

  test("costs and shares have their intervals; a share that cannot be measured is empty", () => {
    const answer = {
      tests: [
        {
          on: "text",
          ablations: [{ knockout: "zero", after: "recomputed", cost: estimate(2) }],
          replacements: [{ description: "copying", share: null }],
        },
      ],
    } as unknown as HeadAblation;
    const table = ablationTable(answer);
    expect(table.rows).toEqual([
      ["text", "cost in nats", "zero, recomputed", 2, 1, 3],
      ["text", "share recovered", "copying", undefined, undefined, undefined],
    ]);
    expect(csv(table.header, table.rows)).toContain("copying,,,");
  });

  test("every row has as many cells as the header", () => {
    const tables = [eigenvalueTable(page), offsetTable(page)!, tokenTable(page, words)];
    for (const { header, rows } of tables) for (const row of rows) expect(row).toHaveLength(header.length);
  });
});
