import { number } from "./format";

/** Numbers of one table with the same decimals, so that their points stand below each other. */
export function fixed(value: number | null | undefined, decimals = 2): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  // A number far out of range must not widen the table.
  if (Math.abs(value) >= 10_000) return number(value, 2);
  const text = value.toFixed(decimals);
  // A number that rounds to zero has no sign left to show.
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** A p-value for a narrow column: two decimals, or that it is below what they can say. */
export function smallP(p: number | null | undefined): string {
  if (p === null || p === undefined || Number.isNaN(p)) return "–";
  return p < 0.005 ? "< 0.01" : p.toFixed(2);
}
