import type { Context } from "../../generated/answers";

/** A part of the text around a place: a token, or a gap that is left out. */
type Excerpt = { readonly gap: true } | { readonly gap: false; readonly at: number; readonly id: number };

/** Tokens shown before and after the destination, and around a source that is farther away. */
const BEFORE = 8;
const AFTER = 4;
const AROUND = 2;

/** The text around a place: where the head is, and where it looks. */
export function excerpt({ ids, source, destination }: Pick<Context, "ids" | "source" | "destination">): Excerpt[] {
  const isNear = (at: number) =>
    (at >= destination - BEFORE && at <= destination + AFTER) || Math.abs(at - source) <= AROUND;
  const shown = ids.map((_, at) => at).filter(isNear);
  return shown.flatMap((at, i): Excerpt[] => {
    const token = { gap: false as const, at, id: ids[at] as number };
    const before = i === 0 ? -1 : (shown[i - 1] as number);
    return at > before + 1 ? [{ gap: true }, token] : [token];
  });
}
