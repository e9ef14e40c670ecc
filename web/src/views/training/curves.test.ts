import { expect, it } from "vitest";
import type { PhaseChange } from "../../generated/answers";
import { changeText, raceText } from "./curves";

it("says that levels are the fit's, and gives the interval", () => {
  const change = {
    ...{ curve: "prefix matching", head: "L1H0", step: 1500.4, low: 1400, high: 1620, begin: 1000, end: 2100 },
    ...{ before: 0.02, after: 0.743, about: "a logistic in log(step)" },
  } as PhaseChange;
  expect(changeText(change)).toBe(
    "Prefix matching of L1H0 rises from 0.020 to 0.74, most of it between steps 1,000 and 2,100. " +
      "Midpoint: step 1,500 (95% interval 1,400 to 1,620), fitted as a logistic in log(step).",
  );
});

it("tells the race of the heads at the step where most compete", () => {
  const rows = [
    [0.03, 0.03, 0.03],
    [0.2, 0.14, 0.12],
    [0.56, 0.27, 0.16],
    [0.79, 0.01, 0.02],
  ];
  const race = { steps: [0, 320, 441, 15000], heads: ["L1H0", "L1H1", "L1H2"] };
  const scores = { shape: [4, 3], data: Float64Array.from(rows.flat()) };
  expect(raceText({ ...race, prefix_matching: scores as never })).toBe(
    "At step 441, 3 heads compete: L1H0 56%, L1H1 27%, L1H2 16%. L1H0 wins, with 79% at the end; no other keeps more than 2.0%.",
  );
  expect(raceText({ ...race, prefix_matching: { shape: [4, 3], data: new Float64Array(12) } as never })).toBe("");
});
