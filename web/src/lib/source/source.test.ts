import { describe, expect, it } from "vitest";
import { questionKey } from "./source";

describe("the key of a question", () => {
  it("is Python's json.dumps with sorted keys, no spaces, no escapes", () => {
    expect(questionKey("run", { text: "été \"<b>\"", model: "a" })).toBe('run:{"model":"a","text":"été \\"<b>\\""}');
    expect(questionKey("model")).toBe("model:{}");
  });
  it("drops what is undefined and keeps numbers and booleans", () => {
    expect(questionKey("why", { position: 3, token: undefined, b: true })).toBe('why:{"b":true,"position":3}');
  });
});
