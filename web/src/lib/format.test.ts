import { describe, expect, it } from "vitest";
import { count, number, percent, plural, pValue, signed } from "./format";

describe("numbers for reading", () => {
  it("has few digits and a true minus", () => {
    expect([0, 0.1234, 3.4567, 127.4, -0.5, 1.2e-7, 2.5e7, null, NaN, -Infinity].map((x) => number(x))).toEqual([
      "0", "0.123", "3.46", "127", "−0.500", "1.2e−7", "2.5e7", "–", "–", "−∞",
    ]);
  });
  it("signs effects, and zero is no sign", () => {
    expect([1.234, -1.234, 0.001, -0.001].map((x) => signed(x))).toEqual(["+1.23", "−1.23", "0.00", "0.00"]);
  });
  it("prints shares", () => {
    expect([0.714, 0.0312, 0.004, 0.00001, 0, 1, null].map(percent)).toEqual(["71 %", "3.1 %", "0.40 %", "< 0.01 %", "0.00 %", "100 %", "–"]);
  });
  it("counts", () => {
    expect([count(1234567), plural(1, "token"), plural(2000, "token"), pValue(0), pValue(0.04)]).toEqual([
      "1,234,567", "1 token", "2,000 tokens", "p < 0.001", "p 0.040",
    ]);
  });
});
