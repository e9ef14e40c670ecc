import { describe, expect, it } from "vitest";
import type { ModelInfo, TextRun } from "../generated/answers";
import { showModel } from "./otherModel";
import { memoryPlace, UrlState } from "./state.svelte";

const info = (parts: Partial<ModelInfo>): ModelInfo =>
  ({ name: "a", models: ["a", "b"], comparable: ["a", "b"], heads: ["L0H0", "L1H0"], has_tokenizer: true, start_token: 0, ...parts }) as ModelInfo;
const run = { ids: [0, 5, 6], pieces: ["<s>", "Mr", " D"] } as unknown as TextRun;

const HASH =
  "#/why?e=2&h=L1H0&t=1&tok=7&vs=9&ht=4&find=3&d=1.0&sel=L1H0@1&ex=L1H0@1&off=L0H3,L0H0@1&ph=L0H3&edge=L0H0→L1H0.k&n=L0H3&pin=L0H3&g=L0H0+L0H3&p=embed→L0H3&pair=L0H3~L0H3&s=5&os=6&x2=Mrs D&w=effect";
const after = (...args: [ModelInfo, TextRun | null, ModelInfo | null]): string => {
  const place = memoryPlace(HASH);
  const url = new UrlState(place, ["why"]);
  url.set(showModel(url, args[0], "b", args[1], args[2]));
  return place.read();
};

describe("another model", () => {
  it("keeps the tokens and what is chosen among them where both read the same ones; heads and cuts go", () => {
    expect(after(info({}), run, info({ heads: ["L0H0"] }))).toBe("#/why?t=1&tok=7&vs=9&ht=4&find=3&w=effect&m=b&i=0,5,6");
    expect(after(info({}), run, info({}))).toContain("h=L1H0");
  });

  it("keeps what the tokens spell where they are not the same, and no position or id", () => {
    expect(after(info({ comparable: ["a"] }), run, info({}))).toBe("#/why?h=L1H0&w=effect&m=b&x=Mr%20D");
    expect(after(info({ comparable: ["a"] }), run, info({ has_tokenizer: false }))).toBe("#/why?h=L1H0&w=effect&m=b");
  });

  it("is shown also where the text was refused or the model does not answer", () => {
    expect(after(info({}), null, null)).toBe("#/why?w=effect&m=b");
  });
});
