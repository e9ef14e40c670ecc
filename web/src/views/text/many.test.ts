import { describe, expect, it } from "vitest";
import type { AttentionAnswer } from "../../generated/answers";
import { HEAD_STYLES } from "../../lib/draw/color";
import { knownHeads, manyArcs, manyAt, toggled } from "./many";
import { Patterns } from "./patterns";

const HEADS = ["L0H0", "L0H1", "L1H0", "L1H1", "L1H2"];
const patterns = new Patterns({
  weighting: "attention",
  heads: ["L0H0", "L0H1"],
  tokens: 3,
  dense: { shape: [2, 3, 3], data: Float32Array.from([1, 0, 0, 0.4, 0.6, 0, 0.1, 0.7, 0.2, 1, 0, 0, 0.5, 0.5, 0, 0.95, 0.05, 0]) },
} as unknown as AttentionAnswer);

describe("several heads on one text", () => {
  it("come from the URL: known ones, each once, as many as can be told apart", () => {
    expect(knownHeads(["L0H0", "L9H9", "L0H0", "L1H2"], HEADS)).toEqual(["L0H0", "L1H2"]);
    expect(knownHeads(HEADS, HEADS)).toHaveLength(HEAD_STYLES.length);
    expect(knownHeads([], HEADS)).toEqual([]);
  });

  it("are added and removed; a fifth takes the place of the first", () => {
    expect(toggled([], "L0H0")).toEqual(["L0H0"]);
    expect(toggled(["L0H0", "L0H1"], "L0H0")).toEqual(["L0H1"]);
    expect(toggled(["L0H0"], "L0H0")).toEqual([]);
    expect(toggled(HEADS.slice(0, 4), "L1H2")).toEqual(["L0H1", "L1H0", "L1H1", "L1H2"]);
  });

  it("have a hue, a line style and a name each, no two alike", () => {
    for (const part of ["light", "dark", "dash", "name"] as const) {
      expect(new Set(HEAD_STYLES.map((style) => style[part])).size).toBe(HEAD_STYLES.length);
    }
  });

  it("point from where each looks, the name at its strongest; what is faint is left out", () => {
    const heads = manyAt(patterns, ["L0H0", "L0H1"], 2, "dest", false);
    expect(heads.map(({ found }) => found.map(({ other }) => other))).toEqual([[1, 2], [0]]);
    expect(heads[0]?.found[0]?.text).toBe("70%");
    const arcs = manyArcs(heads, 2, "dest", "light");
    expect(arcs.map(({ from, to, label }) => [from, to, label])).toEqual([[1, 2, "L0H0"], [0, 2, "L0H1"]]);
    expect(arcs[0]?.color).not.toBe(arcs[1]?.color);
    expect(arcs[0]?.dash).not.toBe(arcs[1]?.dash);
    const both = manyAt(patterns, ["L0H1", "L0H0"], 1, "dest", false).map((one) => ({ ...one, found: one.found.filter(({ other }) => other === 0) }));
    expect(manyArcs(both, 1, "dest", "dark").map(({ label }) => label)).toEqual(["L0H1, L0H0", null]);
    const hidden = manyAt(patterns, ["L0H1"], 2, "dest", true);
    expect(hidden[0]?.found.map(({ other }) => other)).toEqual([1]);
  });
});
