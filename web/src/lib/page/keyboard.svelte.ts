import { untrack } from "svelte";
/** Every key of the page, with what it does: `?` shows the list, so nothing works that is not in it. */

export interface KeyBinding {
  /** As `KeyboardEvent.key`, with `Ctrl+`, `Alt+`, `Shift+` in front where they matter: "Shift+ArrowLeft". */
  keys: string | readonly string[];
  about: string;
  /** The heading it is listed under: a view's title, or "Everywhere". */
  group: string;
  run(event: KeyboardEvent): void;
}

export const keysOf = (binding: KeyBinding): readonly string[] =>
  typeof binding.keys === "string" ? [binding.keys] : binding.keys;

/** The name of a pressed key as bindings spell it. */
export function pressed(event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey" | "shiftKey">): string {
  const named = event.key.length > 1;
  let name = event.key;
  // Shift is part of a printable character already ("?"), so it is spelled only with named keys.
  if (named && event.shiftKey) name = `Shift+${name}`;
  if (event.altKey) name = `Alt+${name}`;
  if (event.ctrlKey || event.metaKey) name = `Ctrl+${name}`;
  return name;
}

const FIELDS = "input:not([type=checkbox]):not([type=radio]):not([type=range]), textarea, select, [contenteditable]";

/** Controls that use these keys themselves: the page must not take them away. */
const OWN_KEYS: readonly { selector: string; keys: readonly string[] }[] = [
  { selector: "button, a[href], summary, [role=button], [role=tab]", keys: ["Enter", " "] },
  { selector: "[role=tab], [role=radio], input[type=radio], input[type=range], [role=slider]", keys: ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"] },
];

export class Keyboard {
  private bindings = $state.raw<readonly KeyBinding[]>([]);

  /** Adds bindings; returns what removes them (give it to `$effect` as its clean-up). */
  add(...added: KeyBinding[]): () => void {
    // Untracked: an effect that adds keys must not run again because keys were added.
    this.bindings = [...untrack(() => this.bindings), ...added];
    return () => {
      this.bindings = this.bindings.filter((binding) => !added.includes(binding));
    };
  }

  get groups(): { title: string; bindings: KeyBinding[] }[] {
    const groups = new Map<string, KeyBinding[]>();
    for (const binding of this.bindings) {
      const list = groups.get(binding.group) ?? [];
      list.push(binding);
      groups.set(binding.group, list);
    }
    return [...groups].map(([title, bindings]) => ({ title, bindings }));
  }

  /** Runs the binding of a pressed key, the latest added first. */
  handle(event: KeyboardEvent): void {
    if (event.defaultPrevented || event.isComposing) return;
    const target = event.composedPath()[0];
    const element = target instanceof Element ? target : null;
    const name = pressed(event);
    if (element?.matches(FIELDS) || OWN_KEYS.some((own) => own.keys.includes(name) && element?.closest(own.selector))) return;
    for (const binding of [...this.bindings].reverse()) {
      if (!keysOf(binding).includes(name)) continue;
      event.preventDefault();
      binding.run(event);
      return;
    }
  }
}
