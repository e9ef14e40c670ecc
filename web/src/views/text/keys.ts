import { CONTRASTS } from "../../lib/draw/matrix";
import type { Keys } from "../../lib/page/explorer.svelte";
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
export function textKeys(scene: TextScene, actions: Actions): Keys[] {
  const { focus, explorer, info } = scene;
  const { url } = explorer;
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
    ["ArrowLeft|ArrowRight", "the token before, after", (event) => token((focus.token ?? 0) + (event.key === "ArrowLeft" ? -1 : 1))],
    ["Home|End", "first, last token", (event) => token(event.key === "Home" ? 0 : last())],
    ["ArrowUp|ArrowDown", "previous, next head", (event) => head(event.key === "ArrowUp" ? -1 : 1)],
    ["Shift+ArrowUp|Shift+ArrowDown", "the same head one layer up, down", (event) => head(event.key === "ArrowUp" ? info.n_heads : -info.n_heads)],
    ["Enter", "lock or unlock the token", () => focus.token !== null && focus.clickToken(focus.token)],
    ["h", "lock or unlock the head", () => focus.head !== null && focus.clickHead(focus.head)],
    ["m", "draw the focused head on the text together with others, or stop", () => focus.head !== null && url.set({ heads: toggled(scene.many, focus.head) }, { push: true })],
    ["d", "lock or unlock the cell of the strongest source, or the one under the pointer", lockCell],
    ["Shift+ArrowLeft|Shift+ArrowRight", "previous, next source of the locked cell", (event) => source(event.key === "ArrowLeft" ? -1 : 1)],
    ["a", "all heads together", () => focus.freeHead()],
    ["Escape", "unlock everything", () => focus.free()],
    ["s", "use the focused token as destination or as source", () => url.set({ side: scene.side === "dest" ? "src" : "dest" }, { push: true })],
    ["w", "next weighting: attention, information, effect", () => url.set({ weighting: after(["attention", "information", "effect"], scene.weighting) }, { push: true })],
    ["c", "next contrast: linear, square root, per row", () => url.set({ contrast: after(CONTRASTS.map(({ value }) => value), scene.contrast) })],
    ["0", "hide or show the first position", () => url.set({ hide_first: !scene.hideFirst })],
    ["l", "lines between tokens", () => url.set({ lines: !scene.lines })],
    ["b", "break lines where the text has line breaks", () => url.set({ line_breaks: !scene.breaks })],
    ["+|=", "zoom into the matrix", () => actions.zoom(2)],
    ["-|_", "zoom out", () => actions.zoom(0.5)],
    ["e", "edit the text", () => actions.edit()],
    ["n", "a new random repeat", () => actions.repeat()],
  ];
}

const after = <T>(order: readonly T[], value: T): T => order[(order.indexOf(value) + 1) % order.length] as T;
