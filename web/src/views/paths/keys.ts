import type { KeyBinding } from "../../lib/keyboard.svelte";

interface Actions {
  position(): number;
  last(): number;
  move(position: number): void;
  current(): number;
  point(row: number): void;
  act(): void;
  free(): void;
  edit(): void;
  repeat(): void;
}

/** Everything the Paths view does, by key. */
export function pathKeys(actions: Actions): KeyBinding[] {
  const group = "Paths";
  return [
    { keys: ["ArrowLeft", "ArrowRight"], about: "previous, next prediction", group, run: (event) => actions.move(actions.position() + (event.key === "ArrowLeft" ? -1 : 1)) },
    { keys: ["Home", "End"], about: "first, last prediction", group, run: (event) => actions.move(event.key === "Home" ? 0 : actions.last()) },
    { keys: ["ArrowUp", "ArrowDown"], about: "bar above, below", group, run: (event) => actions.point(actions.current() + (event.key === "ArrowUp" ? -1 : 1)) },
    { keys: ["Enter", " "], about: "open or close the bar, or choose the path", group, run: () => actions.act() },
    { keys: "Escape", about: "back to the next token and no chosen path", group, run: () => actions.free() },
    { keys: "e", about: "edit the text", group, run: () => actions.edit() },
    { keys: "n", about: "a new random repeat", group, run: () => actions.repeat() },
  ];
}
