/** Where on the axis of a strip a rule says what. */
import type { ClaimRule, SeedValue } from "../../generated/answers";
import { type Axis, linearAxis, logAxis } from "../../lib/draw/plot";
import { tickLabel } from "../../lib/format";

interface Zone {
  readonly verdict: SeedValue["verdict"];
  readonly low: number;
  readonly high: number;
}

/** The zones of a rule between two ends, those of no width left out. */
export function zonesOf(rule: ClaimRule, low: number, high: number): Zone[] {
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

/** 0.001 as it is, smaller ones by their exponent. */
function powerOfTen(value: number): string {
  const exponent = Math.round(Math.log10(value));
  return exponent < -3 ? `1e−${-exponent}` : String(10 ** exponent);
}

/** Thresholds this far apart need a logarithmic axis: on a linear one the smaller is at 0. */
const FAR_APART = 50;

export interface StripAxis extends Axis {
  label(tick: number): string;
}

/** The axis of a strip; a logarithmic one ends a decade below what is on it, and 0 stands at that end. */
export function stripAxis(rule: ClaimRule, values: readonly number[], from: number, to: number): StripAxis {
  const all = [...values, rule.holds, rule.partly];
  if (!(rule.holds > 0 && rule.partly > 0 && rule.partly / rule.holds >= FAR_APART)) {
    const axis = linearAxis(all, from, to);
    return { ...axis, label: (tick) => tickLabel(tick, axis.ticks) };
  }
  const positive = all.filter((value) => value > 0);
  const [least, most] = [Math.min(...positive), Math.max(...positive)];
  const axis = logAxis([10 ** (Math.floor(Math.log10(least)) - 1), 10 ** (Math.ceil(Math.log10(most)) + 1)], from, to);
  const hasZero = values.some((value) => value <= 0);
  return {
    ...axis,
    at: (value) => axis.at(Math.max(value, axis.low)),
    label: (tick) => (hasZero && tick <= axis.low * 1.001 ? "0" : powerOfTen(tick)),
  };
}
