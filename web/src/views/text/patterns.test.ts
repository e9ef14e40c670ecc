import { describe, expect, it } from "vitest";
import type { AttentionAnswer } from "../../generated/answers";
import { pixels, wholeWindow } from "../../lib/draw/matrix";
import { Patterns, strongest } from "./patterns";
import { thumbnail } from "./thumbnail";

const base = { heads: ["L0H0", "L0H1"], tokens: 3, kept: 1, extent: 1 };
const A = [1, 0, 0, 0.75, 0.25, 0, 0.5, 0.5, 0];
const B = [1, 0, 0, 0.25, 0.75, 0, 0, 0, 1];
const sums = { activity: { shape: [2, 3], data: Float32Array.of(0, 0.25, 0.5, 0, 0.75, 1) }, source_activity: { shape: [2, 3], data: Float32Array.of(2.25, 0.75, 0, 1.25, 0.75, 1) } };
const dense = { ...base, ...sums, weighting: "attention", dense: { shape: [2, 3, 3], data: Float32Array.from([...A, ...B]) }, columns: null, values: null } as unknown as AttentionAnswer;
const sparse = {
  ...base,
  ...sums,
  weighting: "attention",
  dense: null,
  columns: { shape: [2, 3, 2], data: Uint16Array.of(0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 2, 0) },
  values: { shape: [2, 3, 2], data: Float32Array.of(1, 0, 0.75, 0.25, 0.5, 0.5, 1, 0, 0.75, 0.25, 1, 0) },
} as unknown as AttentionAnswer;

for (const [name, answer] of [["dense", dense], ["sparse", sparse]] as const) {
  describe(`patterns from ${name} rows`, () => {
    const patterns = new Patterns(answer);
    it("gives a head's matrix, its rows and its columns", () => {
      expect([...patterns.values(1)]).toEqual(B);
      expect([...patterns.along(0, 2, "dest", false)]).toEqual([0.5, 0.5, 0]);
      expect([...patterns.along(0, 1, "src", false)]).toEqual([0, 0.25, 0.5]);
      expect(patterns.at(1, 1, 1)).toBe(0.75);
    });
    it("is the mean over all heads for attention, the sum for effects", () => {
      expect([...patterns.values(-1)]).toEqual(A.map((a, i) => (a + (B[i] as number)) / 2));
      const effects = new Patterns({ ...answer, weighting: "effect" } as AttentionAnswer);
      expect([...effects.values(-1)]).toEqual(A.map((a, i) => a + (B[i] as number)));
    });
    it("hides the first position, and knows its share", () => {
      expect([...patterns.along(0, 2, "dest", true)]).toEqual([0, 0.5, 0]);
      expect([...patterns.along(0, 0, "src", true)]).toEqual([0, 0, 0]);
      const cells = patterns.cells(0, true);
      const most = { width: 9, height: 9 };
      const hidden = new Patterns(dense).cells(0, true) as unknown as { values: Float32Array };
      expect(hidden.values[3]).toBe(0);
      expect(pixels(cells, wholeWindow(cells), 1, "sequential", "light", most)).toEqual(
        pixels({ rows: 3, columns: 3, ...hidden }, wholeWindow(cells), 1, "sequential", "light", most),
      );
      expect(patterns.firstShare(0, 1)).toBeCloseTo(0.75);
      expect(patterns.firstShare(1, null)).toBeCloseTo(1.25 / 3);
    });
    it("ranks a cell in its row", () => {
      expect(patterns.cell(0, 1, 0)).toEqual({ value: 0.75, rank: 1, of: 2 });
      expect(patterns.cell(0, 1, 1).rank).toBe(2);
      expect(patterns.headsAt(1, 1)).toEqual([{ head: "L0H1", value: 0.75 }, { head: "L0H0", value: 0.25 }]);
    });
    it("says which heads care about a token", () => {
      expect([...patterns.care(2, "dest")]).toEqual([0.5, 1]);
      expect([...patterns.care(0, "src")].map((x) => Number(x.toFixed(3)))).toEqual([1, 0.556]);
    });
    it("makes the same thumbnail", () => {
      expect([...thumbnail(patterns, 0, "light", 2).data]).toEqual([...thumbnail(new Patterns(dense), 0, "light", 2).data]);
    });
  });
}

describe("a head asked for alone", () => {
  it("takes the place of its sparse rows", () => {
    const alone = { ...dense, heads: ["L0H1"], dense: { shape: [1, 3, 3], data: Float32Array.from(A) } } as unknown as AttentionAnswer;
    const patterns = new Patterns(sparse, alone);
    expect([...patterns.values(1)]).toEqual(A);
    expect([...patterns.values(0)]).toEqual(A);
  });
});

describe("the strongest", () => {
  it("is sorted by size, zeros left out", () => {
    expect(strongest([0.1, -3, 0, 2, 0.5], 3)).toEqual([1, 3, 4]);
    expect(strongest([0, 0], 3)).toEqual([]);
  });
});
