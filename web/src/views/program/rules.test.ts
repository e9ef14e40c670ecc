import { expect, it } from "vitest";
import { listed } from "./rules";

it("lists rules that fire first, by what they add, and keeps the others in their order", () => {
  const rule = (text: string) => ({ text, head: "", size: 1, gain: 0.1 });
  const rows = listed([rule("a"), rule("b"), rule("c"), rule("d")], [
    { rule: "d", value: -3 },
    { rule: "b", value: 2 },
  ]);
  expect(rows.map(({ rule, term }) => [rule.text, term])).toEqual([
    ["d", -3],
    ["b", 2],
    ["a", null],
    ["c", null],
  ]);
});
