/** The rules of a program in the order in which they are listed. */
import type { RuleLine } from "../../generated/answers";

/** The most numbers that a program may have, as they are offered. */
export const BUDGETS = [100, 400, 2000, 10000] as const;

interface Listed {
  readonly rule: RuleLine;
  /** What it adds to the logit of the chosen prediction; null if it does not act there. */
  readonly term: number | null;
}

/** Rules that fire first, by what they add; then the others, by their gain. */
export function listed(rules: readonly RuleLine[], terms: readonly { rule: string; value: number }[]): readonly Listed[] {
  const added = new Map(terms.map(({ rule, value }) => [rule, value]));
  const all = rules.map((rule) => ({ rule, term: added.get(rule.text) ?? null }));
  const firing = all.filter(({ term }) => term !== null).sort((a, b) => Math.abs(b.term ?? 0) - Math.abs(a.term ?? 0));
  return [...firing, ...all.filter(({ term }) => term === null)];
}

/** A rule's text in parts: tokens, which Python prints between backticks, and words, whose numbers have a true minus. */
export function partsOf(text: string): readonly { text: string; isToken: boolean }[] {
  return text.split(/`(.+?)`(?=[ ,:)]|$)/).map((part, i) => ({ text: i % 2 === 1 ? part : part.replace(/(^|\s)-(?=\d)/g, "$1−"), isToken: i % 2 === 1 }));
}
