import { expect, it } from "vitest";
import { listed, partsOf } from "./rules";

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

it("sets the tokens of a rule apart, backticks among them, and gives numbers a true minus", () => {
  const parts = partsOf("L0H2 attends to `·a-1` (4%), `\`\`` (3%) and copies it, -3.0");
  expect(parts.filter(({ isToken }) => isToken).map(({ text }) => text)).toEqual(["·a-1", "``"]);
  expect(parts.filter(({ isToken }) => !isToken).map(({ text }) => text).join("|")).toBe("L0H2 attends to | (4%), | (3%) and copies it, −3.0");
});
