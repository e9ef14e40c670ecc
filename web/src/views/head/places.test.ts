import { describe, expect, it } from "vitest";
import { excerpt } from "./places";

const text = Array.from({ length: 40 }, (_, at) => 100 + at);
const shown = (source: number, destination: number) =>
  excerpt({ ids: text.slice(0, destination + 7), source, destination }).map((part) => (part.gap ? "…" : part.at));

describe("the text around a place", () => {
  it("has the source and the destination with their neighbors, and a gap between them", () => {
    expect(shown(5, 30)).toEqual(["…", 3, 4, 5, 6, 7, "…", 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34]);
  });
  it("has no gap where nothing is left out", () => {
    expect(shown(1, 6)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
  });
  it("ends with the text", () => {
    expect(excerpt({ ids: [7, 8, 9], source: 1, destination: 2 })).toHaveLength(3);
  });
});
