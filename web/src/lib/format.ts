/** Numbers for reading: a true minus, few digits, a unit where there is one. */

const MINUS = "−";

const minus = (text: string): string => text.replace(/^-/, MINUS);

/** About `digits` significant digits without noise: 0.12, 3.4, 127, 1.2e−7. */
export function number(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) {
    const [mantissa, exponent] = value.toExponential(Math.max(0, digits - 2)).split("e");
    return minus(`${mantissa}e${(exponent as string).replace("+", "").replace("-", MINUS)}`);
  }
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return minus(value.toFixed(Math.min(decimals, 6)));
}

/** From this on, digits are not counted any more. */
const LARGE = 1e12;

/** A large count: 1.1 × 10³⁰. */
function powerOfTen(value: number): string {
  const [mantissa, exponent] = value.toExponential(1).split("e+");
  return `${mantissa} × 10${[...(exponent as string)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]).join("")}`;
}

/** A sentence whose numbers read as those of the page: 1e-07 is 1e−7, and thirty digits are 1.1 × 10³⁰. */
export function readableExponents(text: string): string {
  return text.replace(/(\d)e-0*(\d+)/g, `$1e${MINUS}$2`).replace(/\d{1,3}(?:,\d{3}){4,}/g, (digits) => powerOfTen(Number(digits.replaceAll(",", ""))));
}

/** With its sign: +0.4, −2.1, for effects. */
export function signed(value: number | null | undefined, decimals = 2): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const text = value.toFixed(decimals);
  if (Number(text) === 0) return (0).toFixed(decimals);
  return value > 0 ? `+${text}` : minus(text);
}

/** A share: 71%, 0.4%, < 0.01%. */
export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  const value = 100 * share;
  if (value !== 0 && Math.abs(value) < 0.01) return value > 0 ? "< 0.01%" : `> ${MINUS}0.01%`;
  // What is not all must not look like all.
  if (value > 99 && value < 100) return value < 99.95 ? `${value.toFixed(1)}%` : "> 99.9%";
  const decimals = value === 0 || Math.abs(value) >= 10 ? 0 : Math.abs(value) >= 1 ? 1 : 2;
  return minus(`${value.toFixed(decimals)}%`);
}

/** 12,345: with thousands separators, the same in every locale; 1.1 × 10³⁰ where digits say nothing. */
export function count(value: number): string {
  if (Math.abs(value) >= LARGE) return minus(powerOfTen(value));
  return minus(String(Math.round(value)).replace(/\B(?=(\d{3})+(?!\d))/g, ","));
}

/** A number on an axis: just enough decimals to distinguish its ticks. */
export function tickLabel(value: number, ticks: readonly number[]): string {
  if (value === 0) return "0";
  const most = Math.max(...ticks.map(Math.abs));
  const isEnough = (decimals: number): boolean =>
    ticks.every((tick) => Math.abs(Number(tick.toFixed(decimals)) - tick) <= 1e-9 * most);
  const decimals = [0, 1, 2, 3, 4, 5].find(isEnough);
  if (decimals === undefined || Math.abs(value) >= 1e6) return number(value, 2);
  return decimals === 0 ? count(value) : minus(value.toFixed(decimals));
}

/** Numbers of one table with the same decimals, so that their points stand below each other. */
export function fixed(value: number | null | undefined, decimals = 2): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  // A number far out of range must not widen the table.
  if (Math.abs(value) >= 10_000) return number(value, 2);
  const text = value.toFixed(decimals);
  // A number that rounds to zero has no sign left to show.
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** A title's first letter large; names such as L0H3 stay as they are. */
export function sentenceCase(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Text in lines of at most so many letters, broken between words; a longer word has a line of its own. */
export function wrapped(text: string, letters: number): string[] {
  return text.split(" ").reduce<string[]>((lines, word) => {
    const last = lines[lines.length - 1];
    if (last === undefined || last.length + 1 + word.length > letters) return [...lines, word];
    return [...lines.slice(0, -1), `${last} ${word}`];
  }, []);
}

/** A count with its noun: "1 token", "3 tokens". */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** A p-value, never printed as zero. */
export function pValue(p: number | null | undefined): string {
  if (p === null || p === undefined || Number.isNaN(p)) return "p –";
  return p < 0.001 ? "p < 0.001" : `p ${p.toFixed(3)}`;
}

/** A p that was counted over so many random draws: below what they can show, the bound. */
export function countedP(p: number | null | undefined, draws: number | null | undefined): string {
  if (p === null || p === undefined || Number.isNaN(p)) return "–";
  const least = draws ? 1 / draws : 0.001;
  return p < least ? `< ${plain(least)}` : plain(p);
}

/** Two significant digits without zeros at the end: 0.005, 0.12, 1. */
const plain = (value: number): string => String(Number(value.toPrecision(2)));

/** A p-value for a narrow column: two decimals, or that it is below what they can say. */
export function smallP(p: number | null | undefined): string {
  if (p === null || p === undefined || Number.isNaN(p)) return "–";
  return p < 0.005 ? "< 0.01" : p.toFixed(2);
}

/** The meaning of an edge's p-value, where it is printed. */
export const P_MEANING =
  "p only tests whether the heads share more directions than random heads. Ablate the edge to see whether it is used.";
