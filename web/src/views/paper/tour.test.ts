import { describe, expect, it } from "vitest";
import type { ClaimRule, Outline } from "../../generated/answers";
import { zonesOf } from "./strip";
import { placeOf, sectionsOf, tally } from "./tour";

const rule: ClaimRule = { quantity: "", unit: "", sense: "at least", holds: 0.5, partly: 0.25, lowest: null, highest: null };

function claim(id: string, section: string): Outline {
  const empty = { title: id, text: "", rule_text: "", paper_value: "", note: "", model: "" };
  const seeds = { seeds: [], mean: null, verdict: null, note: "" };
  return { id, section, rule, seeds, paper_number: null, step: null, ...empty };
}

const claims = [
  claim("bigrams", "zero layers"),
  claim("copying", "one layer"),
  claim("bugs", "one layer"),
  claim("phase", "two layers"),
];

describe("tour", () => {
  it("keeps the paper's order and numbers claims through", () => {
    const sections = sectionsOf(claims);
    expect(sections.map((section) => section.title)).toEqual(["zero layers", "one layer", "two layers"]);
    expect(sections[1]!.claims.map((each) => each.index)).toEqual([1, 2]);
  });

  it("opens at the first claim when the link is stale", () => {
    expect(placeOf(claims, "bugs")).toBe(2);
    expect(placeOf(claims, "gone")).toBe(0);
    expect(placeOf(claims, undefined)).toBe(0);
  });

  it("counts all four verdicts, and not what is still to be measured", () => {
    expect(tally(["holds", "holds", "does not hold", "partly", null, undefined])).toBe("2 hold, 1 partly, 1 does not");
    expect(tally(["holds", "not applicable", "not applicable"])).toBe("1 holds, 2 do not apply");
    expect(tally([])).toBe("0 hold");
  });
});

describe("strip", () => {
  it("has the rule's zones, in its sense", () => {
    expect(zonesOf(rule, 0, 1)).toEqual([
      { verdict: "holds", low: 0.5, high: 1 },
      { verdict: "partly", low: 0.25, high: 0.5 },
      { verdict: "does not hold", low: 0, high: 0.25 },
    ]);
    expect(zonesOf({ ...rule, sense: "at most", holds: 0.1, partly: 0.25 }, 0, 0.2)).toEqual([
      { verdict: "holds", low: 0, high: 0.1 },
      { verdict: "partly", low: 0.1, high: 0.2 },
    ]);
  });
});
