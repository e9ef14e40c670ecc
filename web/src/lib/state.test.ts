import { describe, expect, it } from "vitest";
import { formatHash, memoryPlace, parseHash, UrlState } from "./state.svelte";

const VIEWS = ["text", "atlas"];

describe("the URL's state", () => {
  it("has one key for the head, and knows that of older links", () => {
    expect([...parseHash("#/head?hd=L1H0&t=4").values]).toEqual([["h", "L1H0"], ["t", "4"]]);
  });
  it("has one key for the token: a link of the time when there were two obeys the one that was obeyed", () => {
    expect([...parseHash("#/paths?pos=9&t=4").values]).toEqual([["t", "9"]]);
    expect([...parseHash("#/paths?t=4&pos=9").values]).toEqual([["t", "9"]]);
  });

  it("gives every key one meaning: those that several views read are known to be shared", () => {
    const sources = import.meta.glob<string>("../views/*/*.{svelte,ts}", { query: "?raw", import: "default", eager: true });
    const readers = new Map<string, Set<string>>();
    for (const [path, source] of Object.entries(sources)) {
      const view = path.split("/")[2] as string;
      for (const [, key] of source.matchAll(/url\.(?:get|number)\("(\w+)"\)/g)) {
        readers.set(key as string, (readers.get(key as string) ?? new Set()).add(view));
      }
    }
    expect(readers.size).toBeGreaterThan(20);
    const shared = [...readers].filter(([, views]) => views.size > 1).map(([key]) => key);
    // The head, the token, the text (example, typed, ids), whether its lines break, and heads side by side.
    expect(shared.filter((key) => !["h", "t", "e", "x", "i", "br", "many"].includes(key))).toEqual([]);
  });

  it("survives the way to the address and back, whatever the text", () => {
    for (const text of ["a&b=c#d?e", "100 %", "+", "⏎\n", "<script>", "é😀", "1,2:3"]) {
      const { view, values } = parseHash(formatHash("text", new Map([["x", text]])));
      expect(view).toBe("text");
      expect(values.get("x")).toBe(text);
    }
  });

  it("shows the first view for a link that is stale", () => {
    expect(new UrlState(memoryPlace("#/nothing?h=1"), VIEWS).view).toBe("text");
    expect(new UrlState(memoryPlace(""), VIEWS).view).toBe("text");
  });

  it("undoes what was pushed and not what was only replaced", () => {
    const place = memoryPlace("#/text?e=0");
    const url = new UrlState(place, VIEWS);
    url.set({ h: "L1H4" }, { push: true });
    url.set({ w: "effect" });
    url.go("atlas", { e: null });
    expect(place.read()).toBe("#/atlas?h=L1H4&w=effect");
    place.back();
    expect([url.view, url.get("h"), url.get("w"), url.get("e")]).toEqual(["text", "L1H4", "effect", "0"]);
    place.back();
    expect([url.get("h"), url.get("w")]).toEqual([undefined, undefined]);
  });

  it("makes no entry when nothing changes", () => {
    const place = memoryPlace("#/text?e=0");
    const url = new UrlState(place, VIEWS);
    url.set({ h: "a" }, { push: true });
    url.set({ h: "a" }, { push: true });
    place.back();
    expect(url.get("h")).toBe(undefined);
  });

  it("takes only whole numbers as numbers", () => {
    const url = new UrlState(memoryPlace("#/text?a=12&b=-1&c=1e9&d=99999999999&e=x"), VIEWS);
    expect(["a", "b", "c", "d", "e", "f"].map((key) => url.number(key))).toEqual([12, undefined, undefined, undefined, undefined, undefined]);
  });
});
