/** The tour: claims in the paper's order, grouped by section, and where each one's view is. */
import type { Claim } from "../../generated/answers";

export interface Section {
  readonly title: string;
  readonly claims: readonly { readonly claim: Claim; readonly index: number }[];
}

/** Runs of claims of one section, in the order in which they come. */
export function sectionsOf(claims: readonly Claim[]): Section[] {
  const sections: { title: string; claims: { claim: Claim; index: number }[] }[] = [];
  claims.forEach((claim, index) => {
    const last = sections[sections.length - 1];
    if (last && last.title === claim.section) last.claims.push({ claim, index });
    else sections.push({ title: claim.section, claims: [{ claim, index }] });
  });
  return sections;
}

/** Where a claim is in the tour; an unknown one (a stale link) is the first. */
export function placeOf(claims: readonly Claim[], id: string | undefined): number {
  return Math.max(
    0,
    claims.findIndex((claim) => claim.id === id),
  );
}

export interface Linked {
  readonly view: string;
  readonly values: ReadonlyMap<string, string>;
}

/** What a claim's `view` says: "#/atlas?y=copying" is the view atlas with y = copying. */
export function parseLink(hash: string): Linked | null {
  const found = /^#?\/?([a-z]+)(?:\?(.*))?$/.exec(hash.trim());
  if (!found?.[1]) return null;
  return { view: found[1], values: new Map(new URLSearchParams(found[2] ?? "")) };
}

export const MARKS: Readonly<Record<Claim["holds"], { sign: string; word: string }>> = {
  holds: { sign: "✓", word: "holds here" },
  "does not hold": { sign: "✗", word: "does not hold here" },
  "not measurable here": { sign: "–", word: "not measurable on this model" },
};

/** "7 of 12 claims hold, 2 do not, 3 cannot be measured here." */
export function tally(claims: readonly Claim[]): string {
  const count = (holds: Claim["holds"]) => claims.filter((claim) => claim.holds === holds).length;
  const parts = [`${count("holds")} of ${claims.length} claims hold`];
  if (count("does not hold")) parts.push(`${count("does not hold")} do not`);
  if (count("not measurable here")) parts.push(`${count("not measurable here")} cannot be measured here`);
  return `${parts.join(", ")}.`;
}
