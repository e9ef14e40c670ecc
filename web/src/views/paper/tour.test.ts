import { describe, expect, it } from "vitest";
import type { Claim } from "../../generated/answers";
import { parseLink, placeOf, sectionsOf, tally } from "./tour";

function claim(id: string, section: string, holds: Claim["holds"]): Claim {
  const empty = { title: id, text: "", view: "", measured: "", paper_value: "", note: "", model: "" };
  return { id, section, holds, picture: null, interval: null, step: null, ...empty };
}

const claims = [
  claim("bigrams", "zero layers", "holds"),
  claim("copying", "one layer", "holds"),
  claim("bugs", "one layer", "does not hold"),
  claim("phase", "two layers", "not measurable here"),
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

  it("reads the view that a claim points to", () => {
    const link = parseLink("#/text?e=1&h=L1H2&w=attention");
    expect(link?.view).toBe("text");
    expect(link?.values.get("h")).toBe("L1H2");
    expect(parseLink("/atlas")?.view).toBe("atlas");
    expect(parseLink("")).toBeNull();
    expect(parseLink("javascript:alert(1)")).toBeNull();
  });

  it("counts", () => {
    expect(tally(claims)).toBe("2 of 4 claims hold, 1 do not, 1 cannot be measured here.");
  });
});
