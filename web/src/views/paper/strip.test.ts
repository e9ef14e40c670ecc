import { expect, test } from "vitest";
import type { ClaimRule } from "../../generated/answers";
import { stripAxis, zonesOf } from "./strip";

const rule = (holds: number, partly: number): ClaimRule => ({
  quantity: "the error",
  unit: "",
  sense: "at most",
  holds,
  partly,
  lowest: 0,
  highest: null,
});

test("thresholds far apart are on a logarithmic axis, and 0 is at its end", () => {
  const axis = stripAxis(rule(1e-5, 1e-3), [0, 4e-7], 0, 700);
  expect(axis.at(1e-3) - axis.at(1e-4)).toBeCloseTo(axis.at(1e-4) - axis.at(1e-5));
  expect(axis.at(0)).toBe(0);
  expect(axis.at(-1e-7)).toBe(0);
  expect(axis.at(4e-7)).toBeGreaterThan(0);
  expect(axis.ticks.map(axis.label)).toContain("1e−5");
  expect(axis.label(axis.ticks[0] ?? 1)).toBe("0");
  for (const zone of zonesOf(rule(1e-5, 1e-3), axis.low, axis.high)) expect(axis.at(zone.high) - axis.at(zone.low)).toBeGreaterThan(80);
});

test("others are on a linear one", () => {
  const axis = stripAxis(rule(0.05, 0.15), [0.02], 0, 700);
  expect(axis.at(0.15) - axis.at(0.1)).toBeCloseTo(axis.at(0.1) - axis.at(0.05));
});
