import { expect, it } from "vitest";
import type { PhaseChange } from "../../generated/answers";
import { changeText } from "./curves";

it("says that levels are the fit's, and gives the interval", () => {
  const change = {
    ...{ curve: "prefix matching", head: "L1H0", step: 1500.4, low: 1400, high: 1620, begin: 1000, end: 2100 },
    ...{ before: 0.02, after: 0.743, about: "a logistic in log(step)" },
  } as PhaseChange;
  expect(changeText(change)).toBe(
    "Prefix matching of L1H0: the fitted curve goes from 0.0200 to 0.743, its middle at step 1,500 (95% interval " +
      "1,400 to 1,620), most of it between steps 1,000 and 2,100; a logistic in log(step). Measured values scatter around it.",
  );
});
