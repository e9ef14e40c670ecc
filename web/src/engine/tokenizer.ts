/** Text to token ids as `tokenizers` splits it: byte-level BPE, or one token per word. */
import { Refused } from "../lib/source/source";

/** The parts of a `tokenizer.json` that are used. */
interface TokenizerFile {
  added_tokens: { id: number; content: string }[];
  model: { type: "BPE" | "WordLevel"; vocab: Record<string, number>; merges?: (string | [string, string])[] };
}

/** How byte-level BPE splits a text before merging; white space is Unicode's, not JavaScript's. */
const PIECES =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

/** Each byte as a letter: printable ones as themselves, the others in order as the letters from 256 on. */
const LETTERS: readonly string[] = (() => {
  const isPrintable = (byte: number): boolean =>
    (byte > 32 && byte < 127) || (byte > 160 && byte < 173) || (byte > 173 && byte < 256);
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrintable(byte) ? byte : next++));
})();

export class Tokenizer {
  private readonly file: TokenizerFile;
  /** The place of each pair in the list of merges, by its two parts joined by a blank, which no letter is. */
  private readonly ranks = new Map<string, number>();
  private readonly added: RegExp | null;
  private readonly known = new Map<string, number[]>();

  constructor(json: string) {
    this.file = JSON.parse(json) as TokenizerFile;
    this.file.model.merges?.forEach((pair, rank) => this.ranks.set(typeof pair === "string" ? pair : pair.join(" "), rank));
    const escaped = this.file.added_tokens.map(({ content }) => content.replaceAll(/[$()*+.?[\\\]^{|}]/g, "\\$&"));
    this.added = escaped.length > 0 ? new RegExp(`(${escaped.join("|")})`, "u") : null;
  }

  encode(text: string): number[] {
    if (/\p{Surrogate}/u.test(text)) throw new Refused("The text has half of a surrogate pair, which is not text; remove it.", "TokenError");
    if (this.file.model.type === "WordLevel") return this.words(text);
    // Every second part is an added token.
    const parts = this.added ? text.split(this.added) : [text];
    return parts.flatMap((part, number) =>
      number % 2 === 1 ? this.idOfAdded(part) : (part.match(PIECES) ?? []).flatMap((piece) => this.pairs(piece)),
    );
  }

  private idOfAdded(content: string): number {
    return this.file.added_tokens.find((one) => one.content === content)?.id as number;
  }

  private words(text: string): number[] {
    const { vocab } = this.file.model;
    return text.split(/\p{White_Space}+/u).filter(Boolean).map((word) => {
      const id = Object.hasOwn(vocab, word) ? vocab[word] : undefined;
      if (id === undefined) {
        const some = Object.keys(vocab).slice(0, 6).join(", ");
        throw new Refused(`'${word}' is not a word of this tokenizer, which knows ${some} and others.`, "TokenError");
      }
      return id;
    });
  }

  /** A piece by merging, again and again, its neighboring parts that were merged first in training. */
  private pairs(piece: string): number[] {
    const cached = this.known.get(piece);
    if (cached) return cached;
    const parts = Array.from(new TextEncoder().encode(piece), (byte) => LETTERS[byte] as string);
    for (;;) {
      let best = Infinity;
      let at = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) break;
      parts.splice(at, 2, `${parts[at]}${parts[at + 1]}`);
    }
    const ids = parts.map((part) => this.file.model.vocab[part] as number);
    this.known.set(piece, ids);
    return ids;
  }
}
