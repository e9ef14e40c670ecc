import { CONTRASTS } from "../../lib/draw/matrix";
import type { KeyBinding } from "../../lib/page/keyboard.svelte";
import { toggled } from "./many";
import { strongest } from "./patterns";
import type { TextScene } from "./scene.svelte";

interface Actions {
  edit(): void;
  repeat(): void;
  zoom(factor: number): void;
  reveal(token: number): void;
}

/** Everything the Text view does, by key. */
export function textKeys(scene: TextScene, actions: Actions): KeyBinding[] {
  const { focus, explorer, info } = scene;
  const { url } = explorer;
  const group = "Text";
  const last = (): number => (scene.shown?.run.ids.length ?? 1) - 1;

  function token(to: number): void {
    focus.hoverCell(null);
    focus.moveToken(to);
    if (focus.token !== null) actions.reveal(focus.token);
  }
  function head(step: number): void {
    const at = focus.head === null ? -1 : info.heads.indexOf(focus.head);
    const next = at < 0 ? (step > 0 ? 0 : info.heads.length - 1) : at + step;
    const name = info.heads[Math.min(Math.max(next, 0), info.heads.length - 1)];
    if (name === undefined) return;
    focus.moveHead(name);
    explorer.root.querySelector(`[data-head="${name}"]`)?.scrollIntoView({ block: "nearest" });
  }
  /** The cell under the pointer; else where the focused token looks hardest, the first position apart. */
  function lockCell(): void {
    const { patterns } = scene;
    const dest = focus.token;
    const src = patterns && dest !== null ? strongest(patterns.along(scene.head, dest, "dest", true), 1)[0] : undefined;
    const cell = focus.cell ?? (dest === null ? null : { dest, src: src ?? dest });
    if (cell) focus.clickCell(cell);
  }
  /** Moves the locked cell's source, so that every cell of a row can be reached without a pointer. */
  function source(step: number): void {
    const dest = focus.lockedCell?.dest ?? focus.token;
    if (dest === null) return;
    const src = Math.min(Math.max((focus.lockedCell?.src ?? dest) + step, 0), dest);
    focus.hoverCell(null);
    url.set({ cell: `${dest}.${src}` });
  }

  return [
    { keys: ["ArrowLeft", "ArrowRight"], about: "the token before, after", group, run: (event) => token((focus.token ?? 0) + (event.key === "ArrowLeft" ? -1 : 1)) },
    { keys: ["Home", "End"], about: "first, last token", group, run: (event) => token(event.key === "Home" ? 0 : last()) },
    { keys: ["ArrowUp", "ArrowDown"], about: "previous, next head", group, run: (event) => head(event.key === "ArrowUp" ? -1 : 1) },
    { keys: ["Shift+ArrowUp", "Shift+ArrowDown"], about: "the same head one layer up, down", group, run: (event) => head(event.key === "ArrowUp" ? info.n_heads : -info.n_heads) },
    { keys: "Enter", about: "lock or unlock the token", group, run: () => focus.token !== null && focus.clickToken(focus.token) },
    { keys: "h", about: "lock or unlock the head", group, run: () => focus.head !== null && focus.clickHead(focus.head) },
    { keys: "m", about: "draw the focused head on the text together with others, or no longer", group, run: () => focus.head !== null && url.set({ heads: toggled(scene.many, focus.head) }, { push: true }) },
    { keys: "d", about: "lock or unlock the cell of the strongest source, or the one under the pointer", group, run: lockCell },
    { keys: ["Shift+ArrowLeft", "Shift+ArrowRight"], about: "previous, next source of the locked cell", group, run: (event) => source(event.key === "ArrowLeft" ? -1 : 1) },
    { keys: "a", about: "all heads together", group, run: () => focus.freeHead() },
    { keys: "Escape", about: "unlock everything", group, inFields: true, run: () => leaveOrFree(scene) },
    { keys: "s", about: "use the focused token as destination or as source", group, run: () => url.set({ side: scene.side === "dest" ? "src" : "dest" }, { push: true }) },
    { keys: "w", about: "next weighting: attention, information, effect", group, run: () => url.set({ weighting: after(["attention", "information", "effect"], scene.weighting) }, { push: true }) },
    { keys: "c", about: "next contrast: linear, square root, per row", group, run: () => url.set({ contrast: after(CONTRASTS.map(({ value }) => value), scene.contrast) }) },
    { keys: "0", about: "hide or show the first position", group, run: () => url.set({ hide_first: !scene.hideFirst }) },
    { keys: "l", about: "lines between tokens", group, run: () => url.set({ lines: !scene.lines }) },
    { keys: "b", about: "break lines where the text has line breaks", group, run: () => url.set({ line_breaks: !scene.breaks }) },
    { keys: "r", about: "ranks under tokens", group, run: () => url.set({ ranks: !scene.ranks }) },
    { keys: ["+", "="], about: "zoom into the matrix", group, run: () => actions.zoom(2) },
    { keys: ["-", "_"], about: "zoom out", group, run: () => actions.zoom(0.5) },
    { keys: "e", about: "edit the text", group, run: () => actions.edit() },
    { keys: "n", about: "a new random repeat", group, run: () => actions.repeat() },
  ];
}

/** In the text box Esc leaves the box; elsewhere it frees. */
function leaveOrFree(scene: TextScene): void {
  const root = scene.explorer.root.getRootNode() as Document | ShadowRoot;
  const active = root.activeElement;
  if (active instanceof HTMLElement && active.matches("input, textarea, select")) active.blur();
  else scene.focus.free();
}

const after = <T>(order: readonly T[], value: T): T => order[(order.indexOf(value) + 1) % order.length] as T;
