import { describe, expect, it } from "vitest";
import { Keyboard, pressed } from "./keyboard.svelte";

const event = (key: string, more: Partial<KeyboardEvent> = {}): KeyboardEvent =>
  ({
    key,
    ctrlKey: false,
    metaKey: false,
    altKey: false,
    shiftKey: false,
    defaultPrevented: false,
    isComposing: false,
    composedPath: () => [],
    preventDefault: () => undefined,
    ...more,
  }) as unknown as KeyboardEvent;

globalThis.Element ??= class {} as unknown as typeof Element;

describe("keys", () => {
  it("spells modifiers, but not the shift inside a character", () => {
    expect(pressed(event("?", { shiftKey: true }))).toBe("?");
    expect(pressed(event("ArrowLeft", { shiftKey: true }))).toBe("Shift+ArrowLeft");
    expect(pressed(event("s", { ctrlKey: true }))).toBe("Ctrl+s");
  });
  it("runs the latest binding, and the one before once it is gone", () => {
    const keyboard = new Keyboard();
    const ran: string[] = [];
    keyboard.add({ keys: "Escape", about: "", group: "a", run: () => ran.push("first") });
    const remove = keyboard.add({ keys: ["Escape", "x"], about: "", group: "b", run: () => ran.push("second") });
    keyboard.handle(event("Escape"));
    remove();
    keyboard.handle(event("Escape"));
    keyboard.handle(event("Escape", { ctrlKey: true }));
    expect(ran).toEqual(["second", "first"]);
  });
  it("lists what is registered, by group", () => {
    const keyboard = new Keyboard();
    keyboard.add({ keys: "a", about: "one", group: "g", run: () => undefined });
    keyboard.add({ keys: "b", about: "two", group: "g", run: () => undefined });
    expect(keyboard.groups.map((group) => [group.title, group.bindings.length])).toEqual([["g", 2]]);
  });
});
