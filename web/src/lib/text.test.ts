import { describe, expect, it } from "vitest";
import { isSameText } from "./text";

describe("the same text", () => {
  it("is told by what says it, not by what is asked about it", () => {
    const effect = { example: 1, weighting: "effect" };
    expect(isSameText({ example: 1 }, effect)).toBe(true);
    expect(isSameText({ example: 1 }, { example: 2 })).toBe(false);
    expect(isSameText({ text: "a" }, { text: "a", step: 4 })).toBe(false);
    expect(isSameText({ ids: "1,2", model: "m" }, { ids: "1,2", model: "m" })).toBe(true);
    expect(isSameText(null, { example: 1 })).toBe(false);
  });
});
