/** Where on the axis of a strip a rule says what. */
import type { Rule, SeedValue } from "../../generated/answers";

interface Zone {
  readonly verdict: SeedValue["verdict"];
  readonly low: number;
  readonly high: number;
}

/** The zones of a rule between two ends, those of no width left out. */
export function zonesOf(rule: Rule, low: number, high: number): Zone[] {
  const within = (value: number) => Math.min(high, Math.max(low, value));
  const up = rule.sense === "at least";
  const [holds, partly] = [within(rule.holds), within(rule.partly)];
  const zones: Zone[] = [
    { verdict: "holds", low: up ? holds : low, high: up ? high : holds },
    { verdict: "partly", low: Math.min(holds, partly), high: Math.max(holds, partly) },
    { verdict: "does not hold", low: up ? low : partly, high: up ? partly : high },
  ];
  return zones.filter((zone) => zone.high > zone.low);
}
