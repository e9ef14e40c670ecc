import { describe, expect, it } from "vitest";
import { TriedTexts, withText } from "./tried.svelte";

function memory(start: Record<string, string> = {}) {
  const kept = new Map(Object.entries(start));
  return {
    kept,
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, value: string) => void kept.set(key, value),
    removeItem: (key: string) => void kept.delete(key),
  };
}

describe("texts that were tried", () => {
  it("are kept for the next visit, the latest first, and can be forgotten", () => {
    const store = memory();
    const texts = new TriedTexts(() => store);
    texts.add("one");
    texts.add("two");
    texts.add("one");
    expect(new TriedTexts(() => store).list).toEqual(["one", "two"]);
    texts.forget();
    expect([...store.kept]).toEqual([]);
  });

  it("count once while they are being typed", () => {
    expect(withText(["Mr"], "Mr and Mrs")).toEqual(["Mr and Mrs"]);
    expect(withText(["Mr and Mrs", "a"], "Mr and")).toEqual(["Mr and", "a"]);
    expect(withText(["a"], "  ")).toEqual(["a"]);
    expect(withText([], "x".repeat(5000))).toEqual([]);
    expect(withText(Array.from({ length: 12 }, (_, i) => `${i}!`), "new")).toHaveLength(12);
  });

  it("last as long as the page where nothing can be kept, or something else is under the name", () => {
    const refusing = () => {
      throw new Error("SecurityError");
    };
    const texts = new TriedTexts(refusing);
    texts.add("one");
    expect(texts.list).toEqual(["one"]);
    expect(new TriedTexts(() => memory({ "pathsum-texts": "{garbage" })).list).toEqual([]);
    expect(new TriedTexts(() => memory({ "pathsum-texts": '[1,"a",{"b":2}]' })).list).toEqual(["a"]);
    expect(new TriedTexts(() => null).list).toEqual([]);
  });
});
