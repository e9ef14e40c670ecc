/** Texts that were typed, the latest first, kept for the next visit where there is a storage to keep them in. */

const KEY = "pathsum-texts";
const MOST = 12;
/** Longer texts are shown, but not kept. */
const LONGEST = 2000;

type Store = Pick<Storage, "getItem" | "setItem" | "removeItem">;

/** The list with one more text; what the latest grew out of while it was being typed goes. */
export function withText(texts: readonly string[], text: string): readonly string[] {
  if (text.trim() === "" || text.length > LONGEST) return texts;
  const [latest, ...rest] = texts;
  const isGrown = latest !== undefined && (text.startsWith(latest) || latest.startsWith(text));
  return [text, ...(isGrown ? rest : texts).filter((each) => each !== text)].slice(0, MOST);
}

export class TriedTexts {
  list = $state.raw<readonly string[]>([]);

  /** @param store returns the storage; throws or returns null where there is none. */
  constructor(private readonly store: () => Store | null) {
    this.list = this.read();
  }

  add(text: string): void {
    const next = withText(this.list, text);
    if (next === this.list) return;
    this.list = next;
    this.write();
  }

  forget(): void {
    this.list = [];
    this.write();
  }

  private read(): readonly string[] {
    try {
      const kept: unknown = JSON.parse(this.store()?.getItem(KEY) ?? "[]");
      return Array.isArray(kept) ? kept.filter((each) => typeof each === "string").slice(0, MOST) : [];
    } catch {
      // No storage, as on a page opened from disk, or something else under this name: nothing was kept.
      return [];
    }
  }

  private write(): void {
    try {
      if (this.list.length === 0) this.store()?.removeItem(KEY);
      else this.store()?.setItem(KEY, JSON.stringify(this.list));
    } catch {
      // No storage, or it is full: the list lasts as long as the page.
    }
  }
}
