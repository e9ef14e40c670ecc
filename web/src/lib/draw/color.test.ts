import { describe, expect, it } from "vitest";
import { colorOf, contrast, diverging, inkOn, palette, type Rgb, sequential, table } from "./color";

const hex = (text: string): Rgb => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)) as unknown as Rgb;

describe("colors", () => {
  it("are paper at zero, in both modes and on both scales", () => {
    for (const mode of ["light", "dark"] as const) {
      expect(sequential(0, mode)).toEqual(palette(mode).paper);
      expect(diverging(0, mode)).toEqual(palette(mode).paper);
      const middle = table("diverging", mode)[128] as number;
      const [r, g, b] = palette(mode).paper;
      expect([middle & 255, (middle >> 8) & 255, (middle >> 16) & 255]).toEqual([r, g, b]);
    }
  });
  it("move away from paper steadily", () => {
    for (const mode of ["light", "dark"] as const) {
      for (const ramp of [sequential, diverging, (x: number, m: "light" | "dark") => diverging(-x, m)]) {
        const contrasts = [0, 0.25, 0.5, 0.75, 1].map((x) => contrast(ramp(x, mode), palette(mode).paper));
        expect([...contrasts].sort((a, b) => a - b)).toEqual(contrasts);
      }
    }
  });
  it("let letters be read on every shade (WCAG AA)", () => {
    for (const mode of ["light", "dark"] as const) {
      for (let x = -1; x <= 1; x += 0.02) {
        for (const ground of [diverging(x, mode), sequential(Math.abs(x), mode)]) {
          expect(contrast(ground, hex(inkOn(ground)))).toBeGreaterThan(4.5);
        }
      }
    }
  });
  it("treat a missing value and an empty scale as nothing", () => {
    expect(colorOf(NaN, 1, "sequential", "light")).toEqual(palette("light").paper);
    expect(colorOf(5, 0, "diverging", "light")).toEqual(palette("light").paper);
  });
});
