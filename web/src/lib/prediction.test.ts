import { expect, it } from "vitest";
import { Answer } from "./source/answer.svelte";
import { shadingOf, sourcesNote } from "./prediction.svelte";

it("scales the shading by the largest token, but not by a sink", () => {
  expect(shadingOf([1, -2], 3)).toEqual({ values: new Float32Array([1, -2, 0]), extent: 2 });
  expect(shadingOf([9, 1, -2], 4).extent).toBe(2);
  expect(shadingOf([5, 1, -2], 4).extent).toBe(5);
  expect(shadingOf([9, 0], 2).extent).toBe(9);
});

it("states the numbers that add up", () => {
  const answer = new Answer<"sources">();
  expect(sourcesNote(answer)).toBe("");
  const tokens = { shape: [3], data: new Float32Array([9, 1, -2]) };
  answer.value = { format: "pathsum-page-sources", version: 1, position: 2, token: 0, total: 8.5, tokens, rest: 0.5, remainder: 0 };
  expect(sourcesNote(answer)).toContain("Tokens add up to +8.00 of +8.50, positions and biases +0.50.");
  expect(sourcesNote(answer)).toContain("The first token adds +9.00, which is beyond the scale.");
  answer.error = new Error("lost");
  expect(sourcesNote(answer)).toBe("No shading: lost");
});
