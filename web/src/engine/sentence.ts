/** Sentences as spans, filled from the templates of `generated/words.ts`: `pathsum.base.sentence`. */
import type { Span } from "../generated/answers";

export type Slot = string | Span | Span[];

export const span = (text: string, kind: Span["kind"] = "text", about: Partial<Span> = {}): Span => ({
  text,
  kind,
  head: null,
  position: null,
  source: null,
  ...about,
});

export const headSpan = (head: string): Span => span(head, "head", { head });

/** Pieces as one sentence; neighboring plain texts become one span. */
export function concat(...pieces: Slot[]): Span[] {
  const found: Span[] = [];
  for (const piece of pieces.flat()) {
    const one = typeof piece === "string" ? span(piece) : piece;
    const last = found.at(-1);
    if (last?.kind === "text" && one.kind === "text") found[found.length - 1] = span(last.text + one.text);
    else if (one.text) found.push(one);
  }
  return found;
}

/** A template whose `{name}` slots are replaced. */
export function fill(template: string, slots: Record<string, Slot> = {}): Span[] {
  // Every second part is the name of a slot.
  return concat(...template.split(/\{(\w+)\}/).map((part, number) => (number % 2 === 0 ? part : (slots[part] as Slot))));
}

export const join = (pieces: Slot[], separator: string): Span[] =>
  concat(...pieces.flatMap((piece, number) => (number === 0 ? [piece] : [separator, piece])));

const MARKS: Record<string, string> = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍" };
const hex = (letter: string): string => (letter.codePointAt(0) as number).toString(16).padStart(2, "0");

/** The text of a piece; a piece that is bytes is decoded, with U+FFFD for what is no text. */
function decoded(piece: string, id: number): string {
  if (piece === "") return `<${id}>`;
  if (!piece.startsWith("\ufffd")) return piece;
  const bytes = Uint8Array.from(piece.slice(1).split(" "), (byte) => parseInt(byte, 16));
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

const shown = (text: string, code: (letter: string) => string): string =>
  Array.from(text, (letter) => MARKS[letter] ?? (/[\p{C}\p{Z}]/u.test(letter) ? code(letter) : letter)).join("");

/** A token in tables, as Python's `visible`. */
export const visible = (piece: string, id: number): string => shown(decoded(piece, id), (letter) => `\\x${hex(letter)}`);

/** A token in running text, as Python's `token_label`. */
export function tokenLabel(piece: string, id: number): string {
  if (piece === "" || piece.startsWith("\ufffd")) return `⟨${piece.slice(1) || id}⟩`;
  return shown(piece, (letter) => `⟨${hex(letter).toUpperCase()}⟩`).replace(/^·(?=.)/s, "");
}
