/** How tokens are shown. Raw pieces come from the tokenizer and are never trusted as markup. */

export interface Shown {
  text: string;
  /** Does a line end after this token? */
  breaks: boolean;
  /** No characters of its own: shown as ⟨its bytes⟩, or as ⟨id⟩ if they are unknown. */
  bare: boolean;
}

const MARKS: Record<string, string> = { "\n": "⏎", "\t": "⇥", "\r": "␍" };

/** Characters that draw nothing or reorder the line: shown by their code instead. */
const HIDDEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/gu;

const code = (letter: string): string =>
  `⟨${(letter.codePointAt(0) as number).toString(16).toUpperCase().padStart(2, "0")}⟩`;

/** The bytes of a token that is no whole character, as the server writes them: "\ufffdE2 80". */
const BYTES = /^\ufffd([0-9A-F]{2}(?: [0-9A-F]{2})*)$/;

/** Is a piece text, as opposed to bytes that are none? */
export const isText = (piece: string): boolean => !piece.startsWith("\ufffd");

/** Token `id` with raw piece `piece`; `visible` marks spaces (· ⏎ ⇥). */
export function shown(piece: string | null | undefined, id: number, visible: boolean): Shown {
  const bytes = BYTES.exec(piece ?? "");
  if (bytes) return { text: `⟨${bytes[1]}⟩`, breaks: false, bare: true };
  if (piece === null || piece === undefined || piece === "" || /^\ufffd+$/.test(piece)) {
    return { text: `⟨${id}⟩`, breaks: false, bare: true };
  }
  const breaks = piece.includes("\n");
  let text = piece.replace(/[\n\t\r]/g, (mark) => MARKS[mark] as string).replace(HIDDEN, code);
  if (visible) text = text.replace(/ /g, "·");
  return { text, breaks, bare: false };
}

/** One token in running words, always with its spaces marked: what tables and labels use. */
export function label(piece: string | null | undefined, id: number): string {
  return shown(piece, id, true).text;
}

/** The tokens of a text as axes and labels show them. */
export const labelsOf = ({ ids, pieces }: { ids: readonly number[]; pieces: readonly string[] }): string[] =>
  ids.map((id, i) => label(pieces[i], id));

/** At most `most` characters, the cut marked. */
export function short(text: string, most: number): string {
  const letters = [...text];
  return letters.length <= most ? text : `${letters.slice(0, most - 1).join("")}…`;
}

/**
 * The token a reader means by what they typed: an id (`#123`), an exact piece, the piece with a leading space,
 * or the same with · ⏎ ⇥ typed out. Undefined if there is none.
 */
export function findToken(typed: string, tokens: readonly string[]): number | undefined {
  const byId = /^#(\d+)$/.exec(typed);
  if (byId) {
    const id = Number(byId[1]);
    return id < tokens.length ? id : undefined;
  }
  const plain = typed.replaceAll("·", " ").replaceAll("⏎", "\n").replaceAll("⇥", "\t");
  for (const candidate of [plain, ` ${plain}`, plain.trim()]) {
    const at = candidate === "" ? -1 : tokens.indexOf(candidate);
    if (at >= 0) return at;
  }
  return undefined;
}

/** Ids whose piece begins with, else contains, what was typed; the shortest first. */
export function searchTokens(typed: string, tokens: readonly string[], most = 12): number[] {
  const wanted = typed.replaceAll("·", " ").replaceAll("⏎", "\n").toLowerCase();
  if (wanted === "") return [];
  const found: { id: number; rank: number }[] = [];
  tokens.forEach((token, id) => {
    const piece = token.toLowerCase();
    const at = piece.trimStart().startsWith(wanted.trimStart()) ? 0 : piece.indexOf(wanted);
    if (at < 0) return;
    found.push({ id, rank: (at === 0 ? 0 : 1000) + piece.length });
  });
  found.sort((a, b) => a.rank - b.rank || a.id - b.id);
  return found.slice(0, most).map((item) => item.id);
}

/** A word longer than this may break within. */
const LONGEST_WORD = 18;

/** After which tokens a line may break: where a word ends, or has become long. */
export function breakable(pieces: readonly string[]): boolean[] {
  let length = 0;
  return pieces.map((piece, i) => {
    const next = pieces[i + 1] ?? "";
    const isWithin = /[\p{L}\p{N}]$/u.test(piece) && /^[\p{L}\p{N}]/u.test(next);
    length = /^\s/.test(piece) ? piece.length : length + piece.length;
    if (isWithin && length < LONGEST_WORD) return false;
    length = 0;
    return true;
  });
}
