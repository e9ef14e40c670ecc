import { describe, expect, it } from "vitest";
import file from "../../../tests/names_examples.json";
import { parseEdge, parseHead, parseHeadEdge, parsePath, pathFormula, printEdge, unknownNames } from "./names";
import { memoryPlace } from "./page/state";
import { UrlState } from "./page/state.svelte";

interface Examples {
  heads: { text: string; layer: number; head: number }[];
  paths: { text: string; accepted: string[]; source: string; heads: string[]; formula: string }[];
  edges: { text: string; accepted: string[]; writer: string; reader: string; side: string | null }[];
  wrong: { heads: string[]; paths: string[]; edges: string[] };
}

// Python is tested against the same file (tests/explorer/test_names_shared.py).
const examples: Examples = file;

describe("names", () => {
  it.each(examples.heads)("reads the head $text", ({ text, layer, head }) => {
    expect(parseHead(text)).toEqual({ layer, head });
  });

  it.each(examples.paths)("reads the path $text", ({ text, accepted, source, heads, formula }) => {
    for (const written of [text, ...accepted]) expect(parsePath(written)).toEqual({ source, heads });
    expect(pathFormula({ source, heads })).toBe(formula);
  });

  it.each(examples.edges)("reads and prints the edge $text", ({ text, accepted, writer, reader, side }) => {
    for (const written of [text, ...accepted]) expect(parseEdge(written)).toEqual({ writer, reader, side });
    expect(printEdge(parseEdge(text)!)).toBe(text);
  });

  it("rejects what is not a name", () => {
    for (const text of examples.wrong.heads) expect(parseHead(text), text).toBeNull();
    for (const text of examples.wrong.paths) expect(parsePath(text), text).toBeNull();
    for (const text of examples.wrong.edges) expect(parseEdge(text), text).toBeNull();
  });

  it("finds what a link names in vain", () => {
    const heads = ["L0H0", "L0H1", "L1H0"];
    const unknown = (state: Record<string, string>) => unknownNames(new UrlState(memoryPlace(`#/text?${new URLSearchParams(state)}`), ["text"]), heads);
    expect(unknown({})).toEqual([]);
    expect(unknown({ head: "L0H1", pinned: "L0H0,L1H0", edge: "L0H1→L1H0.k" })).toEqual([]);
    expect(unknown({ head: "L9H9", pinned: "L0H0,x", node: "L9H9" })).toEqual(["L9H9", "x"]);
    expect(unknown({ pattern: "L9H9", pair: "L0H0~L5H0", heads: "L0H0,L2H0" })).toEqual(["L9H9", "L2H0"]);
    expect(unknown({ pair: "L9H0~L0H0" })).toEqual(["L9H0"]);
    expect(unknown({ pair: "garbage" })).toEqual(["garbage"]);
    expect(unknown({ off: "L0H1,L0H1@3,L0H0→L1H0.k,L0H0@2→L1H0@5.k,embed→logits,L1H0@5→logits,embed" })).toEqual([]);
    expect(unknown({ off: "L9H1,L9H1@3,L0H0→L9H0.k,L1H0@5→L0H0@5.v,x" })).toEqual(["L9H1", "L9H1@3", "L0H0→L9H0.k", "L1H0@5→L0H0@5.v", "x"]);
    for (const edge of ["L1H0→L0H0.k", "L0H0→L0H1.v", "L0H0→L9H0.q", "garbage", "embed→L1H0.k"]) expect(unknown({ edge })).toEqual([edge]);
  });

  it("tells edges between two heads from others", () => {
    expect(parseHeadEdge("L0H7→L1H4.k")).toEqual({ writer: "L0H7", reader: "L1H4", side: "k" });
    expect(parseHeadEdge("embed→L1H4.k")).toBeNull();
    expect(parseHeadEdge("L1H4→logits")).toBeNull();
  });
});
