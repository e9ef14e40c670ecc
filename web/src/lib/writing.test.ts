import { describe, expect, it } from "vitest";
import type { TextRun } from "../generated/answers";
import { nextToken } from "./writing";

const run = {
  ids: [0, 5, 6],
  pieces: ["<s>", "Mr", " D"],
  n_ctx: 8,
  truncated: false,
  top_ids: { shape: [3, 2], data: Int32Array.from([1, 2, 3, 4, 9, 7]) },
  top_probs: { shape: [3, 2], data: Float32Array.from([0.5, 0.1, 0.5, 0.1, 0.75, 0.2]) },
} as unknown as TextRun;
const info = { has_tokenizer: true, start_token: 0 };

describe("the model writes", () => {
  it("adds its best guess after the last token, by id", () => {
    expect(nextToken(run, info, { typed: "Mr D", ids: undefined })).toEqual({ id: 9, probability: 0.75, ids: "0,5,6,9" });
    expect(nextToken(run, info, { typed: "Mr D", ids: "0,5,6" })?.id).toBe(9);
    expect(nextToken(run, { has_tokenizer: false, start_token: 0 }, { typed: "0,5,6", ids: "0,5,6" })?.id).toBe(9);
  });

  it("waits for the run of what is in the box", () => {
    expect(nextToken(run, info, { typed: "Mr Du", ids: undefined })).toBeNull();
    expect(nextToken(run, info, { typed: "Mr D", ids: "0,5,6,9" })).toBeNull();
    expect(nextToken(null, info, { typed: "Mr D", ids: undefined })).toBeNull();
  });

  it("stops where the context ends", () => {
    expect(nextToken({ ...run, n_ctx: 3 }, info, { typed: "Mr D", ids: undefined })).toBeNull();
    expect(nextToken({ ...run, truncated: true }, info, { typed: "Mr D", ids: undefined })).toBeNull();
  });
});
