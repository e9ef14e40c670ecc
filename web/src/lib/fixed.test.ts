import { describe, expect, it } from "vitest";
import { fixed, smallP } from "./fixed";

describe("numbers of a table", () => {
  it("keep their decimals and a true minus, and zero has no sign", () => {
    expect([0.698, -0.39, -1e-9, 3e-8].map((value) => fixed(value))).toEqual([
      "0.70",
      "−0.39",
      "0.00",
      "0.00",
    ]);
    expect(fixed(-165727.88)).toBe("−165728");
    expect(fixed(Number.NaN)).toBe("–");
    expect(fixed(null)).toBe("–");
  });

  it("never print p as zero", () => {
    expect([0.5, 0.01, 0.004, 0].map(smallP)).toEqual(["0.50", "0.01", "< 0.01", "< 0.01"]);
    expect(smallP(Number.NaN)).toBe("–");
  });
});
