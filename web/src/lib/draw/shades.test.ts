import { describe, expect, it } from "vitest";
import { colorOf, css } from "./color";
import { SHADES, shadeOf, shades } from "./shades";

describe("shades of tokens", () => {
  it("is nothing for zero and for what is not a number", () => {
    expect(shadeOf(0, 1)).toBe(0);
    expect(shadeOf(1e-9, 1)).toBe(0);
    expect(Object.is(shadeOf(-1e-9, 1), 0)).toBe(true);
    expect(shadeOf(1, 0)).toBe(0);
    expect(shadeOf(NaN, 1)).toBe(0);
  });
  it("has the scale's own colors, ends included", () => {
    for (const value of [-2, -1, -0.5, 0.25, 1]) {
      const clamped = Math.max(-1, value);
      expect(shades("diverging", "light")[shadeOf(value, 1) + SHADES]?.ground).toBe(css(colorOf(clamped, 1, "diverging", "light")));
    }
  });
});
