import { describe, expect, it } from "vitest";
import type { ModelInfo } from "../generated/answers";
import { memoryPlace, UrlState } from "./state.svelte";
import { cellAt, isSameText, randomRepeat, showText, spelled } from "./text";

describe("the same text", () => {
  it("is told by what says it, not by what is asked about it", () => {
    const effect = { example: 1, weighting: "effect" };
    expect(isSameText({ example: 1 }, effect)).toBe(true);
    expect(isSameText({ example: 1 }, { example: 2 })).toBe(false);
    expect(isSameText({ text: "a" }, { text: "a", step: 4 })).toBe(false);
    expect(isSameText({ ids: "1,2", model: "m" }, { ids: "1,2", model: "m" })).toBe(true);
    expect(isSameText(null, { example: 1 })).toBe(false);
  });
});

describe("another text", () => {
  it("takes along what is off everywhere, and nothing that is about positions of the old one", () => {
    const place = memoryPlace("#/why?x=old&t=4&d=4.1&tok=7&sel=L1H0@4&ex=L1H0@4&off=L0H0,L0H1@4,L0H0→L1H0.k,L0H0@1→L1H0@4.k&x2=older&h=L1H0");
    const url = new UrlState(place, ["why"]);
    url.set(showText(url, { e: 3 }));
    expect(place.read()).toBe(`#/why?off=L0H0,${encodeURIComponent("L0H0→L1H0.k")}&h=L1H0&e=3`);
  });

  it("is spelled without its start token and without bytes that are no text", () => {
    expect(spelled({ ids: [0, 1, 2], pieces: ["<s>", "a", "\ufffdE2"] }, { start_token: 0 })).toBe("a");
    expect(spelled({ ids: [0, 1], pieces: ["<s>", "a"] }, { start_token: null })).toBe("<s>a");
  });

  it("a cell is a head, its destination and its source, and the token to explain is the next one again", () => {
    expect(cellAt("L1H0", 9, 4)).toEqual({ h: "L1H0", t: 9, d: "9.4", tok: null });
  });
});

const info = { d_vocab: 6, n_ctx: 9, start_token: 0 } as ModelInfo;
const pool = Int32Array.of(1, 4);

describe("the seed experiment", () => {
  it("draws from the tokens that the server says may be drawn", () => {
    const drawn = new Set(Array.from({ length: 50 }, () => randomRepeat(info, pool, 4).slice(1)).flat());
    expect([...drawn].sort()).toEqual([1, 4]);
  });
  it("is the start token and the same tokens twice", () => {
    let turn = 0;
    expect(randomRepeat(info, pool, 3, () => (turn++ % 2) / 2)).toEqual([0, 1, 4, 1, 1, 4, 1]);
  });
  it("fits the context", () => {
    expect(randomRepeat(info, pool, 100)).toHaveLength(9);
  });
});
