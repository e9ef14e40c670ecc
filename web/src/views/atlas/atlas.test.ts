import { describe, expect, it } from "vitest";
import { chipText, parseFilters, passes, printFilters, withCondition } from "./filters";
import type { Condition } from "./filters";
import {
  type AtlasScore,
  BY_HEAD,
  headsByKind,
  type HeadRow,
  kindMark,
  layersWithout,
  ordered,
  parseOrder,
  pressed,
  printOrder,
  scoreGroups,
  shortTitle,
} from "./table";
import { scoreScale } from "./presets";

function row(index: number, kind: string, layer: number, copying: number): HeadRow {
  const head = `L${layer}H${index}`;
  return { index, head, layer, kind, values: new Map([["copying", copying]]) };
}

const rows = [
  row(0, "unknown", 0, 0.1),
  row(1, "previous token", 0, Number.NaN),
  row(2, "induction", 1, 0.9),
  row(3, "induction", 1, -0.3),
];
const heads = (found: readonly HeadRow[]) => found.map((each) => each.index);

describe("filters", () => {
  it("come back from the URL as they were", () => {
    const text = "copying:0.5..1;kind:induction;layer:1;first:..0.2";
    expect(printFilters(parseFilters(text, ["copying", "first"]))).toBe(text);
  });

  it("drop what is not understood, so that a stale link opens", () => {
    expect(parseFilters("gone:0..1;copying:x..y;;kind:;copying:1", ["copying"])).toEqual([]);
    expect(parseFilters(undefined, [])).toEqual([]);
    expect(printFilters([])).toBeUndefined();
  });

  it("widen within one sort and narrow across sorts", () => {
    const kinds = parseFilters("kind:induction;kind:unknown", []);
    expect(heads(rows.filter((each) => passes(each, kinds)))).toEqual([0, 2, 3]);
    const both = parseFilters("kind:induction;copying:0..", ["copying"]);
    expect(heads(rows.filter((each) => passes(each, both)))).toEqual([2]);
  });

  it("leave out heads without a number", () => {
    const any = parseFilters("copying:-1..1", ["copying"]);
    expect(heads(rows.filter((each) => passes(each, any)))).toEqual([0, 2, 3]);
  });

  it("keep one range a score", () => {
    const one: Condition = { type: "between", score: "copying", low: 0, high: null };
    const other: Condition = { type: "between", score: "copying", low: 0.5, high: null };
    expect(withCondition(withCondition([], one), other)).toEqual([other]);
  });

  it("say what they are", () => {
    const titles = new Map([["copying", "copying (data)"]]);
    const [range, kind] = parseFilters("copying:0.5..;kind:mixed", ["copying"]);
    expect(chipText(range!, titles)).toBe("copying (data) ≥ 0.5");
    expect(chipText(kind!, titles)).toBe("kind: mixed");
  });
});

describe("order", () => {
  it("by head has layers as the grid has them", () => {
    expect(heads(ordered(rows, BY_HEAD))).toEqual([2, 3, 0, 1]);
  });

  it("puts heads without a number last, both ways", () => {
    expect(heads(ordered(rows, parseOrder("-copying")))).toEqual([2, 0, 3, 1]);
    expect(heads(ordered(rows, parseOrder("copying")))).toEqual([3, 0, 2, 1]);
  });

  it("goes largest, smallest, by head as a column is pressed", () => {
    const first = pressed(BY_HEAD, "copying");
    expect(printOrder(first)).toBe("-copying");
    expect(printOrder(pressed(first, "copying"))).toBe("copying");
    expect(printOrder(pressed(pressed(first, "copying"), "copying"))).toBeUndefined();
  });
});

describe("the color of a score", () => {
  const readings = (...values: number[]) => values.map((value) => ({ value, stderr: 0, chance: 0, p: 1, draws: null }));
  it("has two sides where the score can be negative, and its ceiling at the end", () => {
    expect(scoreScale({ ceiling: null, readings: readings(0.2, 0.9) })).toEqual({ extent: 1, scale: "sequential" });
    expect(scoreScale({ ceiling: 4, readings: readings(-0.5, 0.9) })).toEqual({ extent: 4, scale: "diverging" });
  });
});

describe("columns", () => {
  const score = (name: string, evidence: string) => ({ name, evidence }) as AtlasScore;

  it("stand in groups by what they were measured on, whatever the order of scores", () => {
    const scores = [score("copying", "data"), score("word_piece_weights", "weights"), score("copying_text", "data")];
    const groups = scoreGroups(scores).map((group) => [group.title, ...group.scores.map((each) => each.name)]);
    expect(groups).toEqual([
      ["on random tokens", "copying"],
      ["on text", "copying_text"],
      ["from weights", "word_piece_weights"],
    ]);
    expect(scoreGroups(scores.slice(0, 1))).toHaveLength(1);
  });

  it("have titles without what the group says", () => {
    expect(shortTitle("copying (weights)")).toBe("copying");
  });

  it("that a whole layer lacks are known", () => {
    expect(layersWithout(rows, ["copying"])).toEqual([]);
    expect(layersWithout([rows[1]!, rows[2]!], ["copying"])).toEqual([0]);
  });
});

describe("kinds in a grid without room for words", () => {
  const KINDS = ["induction", "previous token", "duplicate token", "word piece", "current token", "local window", "copying", "deleting", "positional", "first token"];

  it("have two letters each, no two the same", () => {
    expect([kindMark("induction"), kindMark("previous token"), kindMark("mixed")]).toEqual(["in", "pt", ""]);
    expect(new Set(KINDS.map(kindMark)).size).toBe(KINDS.length);
  });

  it("are listed with their heads, those without a kind last", () => {
    const found = headsByKind({ heads: ["L0H0", "L0H1", "L1H0", "L1H1"], kinds: ["unknown", "mixed", "positional", "copying"] });
    expect(found.map(([kind]) => kind)).toEqual(["copying", "positional", "mixed", "unknown"]);
  });
});
