import { describe, expect, it } from "vitest";
import { allKeys, formatHash, KEYS, memoryPlace, parseHash } from "./state";
import { UrlState } from "./state.svelte";

const VIEWS = ["text", "atlas"];

describe("the URL's state", () => {
  it("is read by the views that its table lists", () => {
    const sources = import.meta.glob<string>("../../views/*/*.{svelte,ts}", { query: "?raw", import: "default", eager: true });
    const read = new Set<string>();
    for (const [path, source] of Object.entries(sources)) {
      const view = path.split("/").at(-2) as string;
      for (const [, key] of source.matchAll(/url\.get\("(\w+)"\)/g)) read.add(`${view} ${key}`);
    }
    expect(read.size).toBeGreaterThan(20);
    const listed = new Set(allKeys.flatMap((key) => KEYS[key].views.split(" ").map((view) => `${view} ${key}`)));
    expect([...read].filter((each) => !listed.has(each) && !listed.has(`all ${each.split(" ")[1]}`))).toEqual([]);
  });

  it("survives the way to the address and back, whatever the text", () => {
    for (const text of ["a&b=c#d?e", "100 %", "+", "⏎\n", "<script>", "é😀", "1,2:3"]) {
      const { view, values } = parseHash(formatHash("text", new Map([["text", text]])));
      expect(view).toBe("text");
      expect(values.get("text")).toBe(text);
    }
  });

  it("shows the first view for a link that is stale, and drops keys that it does not know", () => {
    expect(new UrlState(memoryPlace("#/nothing?head=1"), VIEWS).view).toBe("text");
    expect(new UrlState(memoryPlace(""), VIEWS).view).toBe("text");
    expect(new UrlState(memoryPlace(""), VIEWS).unknownView).toBe(null);
    const stale = new UrlState(memoryPlace("#/nothing?head=1"), VIEWS);
    expect(stale.unknownView).toBe("nothing");
    stale.go("text");
    expect(stale.unknownView).toBe(null);
    expect(new UrlState(memoryPlace("#/text?hd=L1H0&lines=1"), VIEWS).link("text")).toBe("#/text?lines=1");
  });

  it("undoes what was pushed and not what was only replaced", () => {
    const place = memoryPlace("#/text?example=0");
    const url = new UrlState(place, VIEWS);
    url.set({ head: "L1H4" }, { push: true });
    url.set({ weighting: "effect" });
    url.go("atlas", { example: null });
    expect(place.read()).toBe("#/atlas?head=L1H4&weighting=effect");
    place.back();
    expect([url.view, url.get("head"), url.get("weighting"), url.get("example")]).toEqual(["text", "L1H4", "effect", 0]);
    place.back();
    expect([url.get("head"), url.get("weighting")]).toEqual([undefined, "attention"]);
  });

  it("makes no entry when nothing changes", () => {
    const place = memoryPlace("#/text?example=0");
    const url = new UrlState(place, VIEWS);
    url.set({ head: "a" }, { push: true });
    url.set({ head: "a" }, { push: true });
    place.back();
    expect(url.get("head")).toBe(undefined);
  });

  it("leaves out what has its default, and reads what is no value as the default", () => {
    const url = new UrlState(memoryPlace("#/text?weighting=x&lines=yes&open=&threshold=x"), VIEWS);
    expect([url.get("weighting"), url.get("lines"), url.get("open"), url.get("threshold")]).toEqual(["attention", false, [], undefined]);
    expect(url.link("text", { weighting: "attention", lines: true, open: ["1"], threshold: 2.5, off: [] })).toBe("#/text?lines=1&threshold=2.5");
  });

  it("takes only whole numbers as numbers", () => {
    const read = (value: string) => new UrlState(memoryPlace(`#/text?position=${value}`), VIEWS).get("position");
    expect(["12", "-1", "1e9", "99999999999", "x", ""].map(read)).toEqual([12, undefined, undefined, undefined, undefined, undefined]);
  });
});
