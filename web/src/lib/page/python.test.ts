import { describe, expect, it } from "vitest";
import { pythonOf, type ShownState } from "./python";
import { memoryPlace } from "./state";
import { UrlState } from "./state.svelte";

const VIEWS = ["nothing", "text", "why", "paths", "lens", "atlas", "head", "composition", "compare", "swap"];
const info = {
  name: "hand-built-induction",
  path: "hand-built-induction",
  models: ["hand-built-induction", "hand-built-skip-trigrams"],
  heads: ["L0H0", "L0H1", "L1H0", "L1H1"],
  examples: [
    { title: "a", text: 'c a b d a b', ids: [], about: "", kind: "text" as const },
    { title: "b", text: null, ids: [1, 2, 3, 1], about: "", kind: "probe" as const },
  ],
};
function lines(hash: string, more: Partial<ShownState> = {}): string[] | null {
  return pythonOf({ url: new UrlState(memoryPlace(`#/${hash}`), VIEWS), info, text: { example: 0 }, position: 5, token: 2, ...more });
}

/** The lines of each view, which Python's tests run. */
const SHOWN = {
  text: lines("text"),
  "text, a head that is pointed at": lines("text", { head: "L1H0" }),
  "text, a head": lines("text?head=L1H0", { text: { text: "c a\tb d\n" } }),
  "text, a cell": lines("text?head=L1H0&cell=5.3"),
  "text, effects": lines("text?head=L1H0&weighting=effect"),
  why: lines("why"),
  "why, the last token": lines("why", { position: 6, token: 4 }),
  "why, a token against another": lines("why?token=3&versus=4"),
  "why, with a head and an edge off": lines("why?off=L0H0,L0H1@2→L1H0@5.k"),
  paths: lines("paths?versus=none"),
  "paths of ids": lines("paths", { text: { example: 1 }, position: 2 }),
  lens: lines("lens"),
  "lens, a cell": lines("lens?layer=1"),
  head: lines("head?head=L1H0"),
  composition: lines("composition"),
  "composition, an edge": lines("composition?edge=L0H0→L1H0.k"),
  compare: lines("compare", { other: { name: "hand-built-induction", step: undefined } }),
  swap: lines("swap"),
};

describe("lines of Python", () => {
  it("are those that Python's tests run", async () => {
    await expect(`${JSON.stringify(SHOWN, null, 2)}\n`).toMatchFileSnapshot("../../../../tests/explorer/copied_python.json");
  });
  it("load a snapshot, and say when the model has no file", () => {
    expect(lines("atlas", { text: { example: 0, step: 40 } })).toContain('model = open_model("hand-built-induction").at(40)');
    expect(lines("atlas", { info: { ...info, path: "" } })?.join("\n")).toContain("the model that this page was opened with");
  });
  it("compare with the model and the step that are shown", () => {
    expect(lines("compare", { other: { name: "two-layer", step: 40 } })).toContain('shown = ps.align_heads(model, open_model("two-layer").at(40))');
    expect(lines("compare")).toBeNull();
  });
  it("are of views only", () => expect(lines("nothing")).toBeNull());
});
