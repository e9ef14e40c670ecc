import { describe, expect, it } from "vitest";
import type { ModelInfo, TextRun } from "../generated/answers";
import { memoryPlace } from "./page/state";
import { UrlState } from "./page/state.svelte";
import { cellAt, comparedPosition, isSameText, nextToken, randomRepeat, showModel, showText, spelled } from "./text";

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
    const place = memoryPlace("#/why?text=old&position=4&cell=4.1&token=7&selected=L1H0@4&expanded=L1H0@4&off=L0H0,L0H1@4,L0H0→L1H0.k,L0H0@1→L1H0@4.k&other_text=older&head=L1H0");
    const url = new UrlState(place, ["why"]);
    url.set(showText(url, { example: 3 }));
    expect(place.read()).toBe(`#/why?off=L0H0,${encodeURIComponent("L0H0→L1H0.k")}&head=L1H0&example=3`);
  });

  it("is spelled without its start token and without bytes that are no text", () => {
    expect(spelled({ ids: [0, 1, 2], pieces: ["<s>", "a", "\ufffdE2"] }, { start_token: 0 })).toBe("a");
    expect(spelled({ ids: [0, 1], pieces: ["<s>", "a"] }, { start_token: null })).toBe("<s>a");
  });

  it("a cell is a head, its destination and its source, and the token to explain is the next one again", () => {
    expect(cellAt("L1H0", 9, 4)).toEqual({ head: "L1H0", selected: null, position: 9, cell: "9.4", token: null });
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

const model = (parts: Partial<ModelInfo>): ModelInfo =>
  ({ name: "a", models: ["a", "b"], comparable: ["a", "b"], heads: ["L0H0", "L1H0"], has_tokenizer: true, start_token: 0, ...parts }) as ModelInfo;
const run = { ids: [0, 5, 6], pieces: ["<s>", "Mr", " D"] } as unknown as TextRun;

const HASH =
  "#/why?example=2&head=L1H0&position=1&token=7&versus=9&lookup=4&find=3&cell=1.0&selected=L1H0@1&expanded=L1H0@1&off=L0H3,L0H0@1&pattern=L0H3&edge=L0H0→L1H0.k&node=L0H3&pinned=L0H3&groups=L0H0+L0H3&path=embed→L0H3&pair=L0H3~L0H3&step=5&other_step=6&other_text=Mrs D&weighting=effect";
const after = (...args: [ModelInfo, TextRun | null, ModelInfo | null]): string => {
  const place = memoryPlace(HASH);
  const url = new UrlState(place, ["why"]);
  url.set(showModel(url, args[0], "b", args[1], args[2]));
  return place.read();
};

describe("another model", () => {
  it("keeps the tokens and what is chosen among them where both read the same ones; heads and cuts go", () => {
    expect(after(model({}), run, model({ heads: ["L0H0"] }))).toBe("#/why?position=1&token=7&versus=9&lookup=4&find=3&weighting=effect&model=b&tokens=0,5,6");
    expect(after(model({}), run, model({}))).toContain("head=L1H0");
  });

  it("keeps what the tokens spell where they are not the same, and no position or id", () => {
    expect(after(model({ comparable: ["a"] }), run, model({}))).toBe("#/why?head=L1H0&weighting=effect&model=b&text=Mr%20D");
    expect(after(model({ comparable: ["a"] }), run, model({ has_tokenizer: false }))).toBe("#/why?head=L1H0&weighting=effect&model=b");
  });

  it("is shown also where the text was refused or the model does not answer", () => {
    expect(after(model({}), null, null)).toBe("#/why?weighting=effect&model=b");
  });
});

const written = {
  ids: [0, 5, 6],
  pieces: ["<s>", "Mr", " D"],
  n_ctx: 8,
  truncated: false,
  top_ids: { shape: [3, 2], data: Int32Array.from([1, 2, 3, 4, 9, 7]) },
  top_probs: { shape: [3, 2], data: Float32Array.from([0.5, 0.1, 0.5, 0.1, 0.75, 0.2]) },
} as unknown as TextRun;
const reader = { has_tokenizer: true, start_token: 0 };

describe("the model writes", () => {
  it("adds its best guess after the last token, by id", () => {
    expect(nextToken(written, reader, { typed: "Mr D", ids: undefined })).toEqual({ id: 9, probability: 0.75, ids: "0,5,6,9" });
    expect(nextToken(written, reader, { typed: "Mr D", ids: "0,5,6" })?.id).toBe(9);
    expect(nextToken(written, { has_tokenizer: false, start_token: 0 }, { typed: "0,5,6", ids: "0,5,6" })?.id).toBe(9);
  });

  it("waits for the run of what is in the box", () => {
    expect(nextToken(written, reader, { typed: "Mr Du", ids: undefined })).toBeNull();
    expect(nextToken(written, reader, { typed: "Mr D", ids: "0,5,6,9" })).toBeNull();
    expect(nextToken(null, info, { typed: "Mr D", ids: undefined })).toBeNull();
  });

  it("stops where the context ends", () => {
    expect(nextToken({ ...written, n_ctx: 3 }, reader, { typed: "Mr D", ids: undefined })).toBeNull();
    expect(nextToken({ ...written, truncated: true }, reader, { typed: "Mr D", ids: undefined })).toBeNull();
  });
});

const counted = (ids: number[], prob: number[], rank: number[]) =>
  ({ ids, next_prob: { data: prob }, next_rank: { data: rank } }) as unknown as Parameters<typeof comparedPosition>[0];

describe("the position that two texts are compared at", () => {
  it("is a repeat that is predicted, however sure another prediction is", () => {
    expect(comparedPosition(counted([0, 5, 6, 7, 5, 6, 8], [0, 0.9, 0.99, 0, 0.6, 0, NaN], [9, 1, 1, 9, 1, 9, 0]))).toBe(4);
  });
  it("is the surest prediction of a text without repeats, and the end of one without predictions", () => {
    expect(comparedPosition(counted([0, 1, 2, 3], [0, 0.2, 0.7, NaN], [9, 1, 1, 0]))).toBe(2);
    expect(comparedPosition(counted([0, 1, 2], [0, 0.2, NaN], [9, 4, 0]))).toBe(2);
  });
});
