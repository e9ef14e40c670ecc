import { describe, expect, it } from "vitest";
import { ReportSource } from "./report";
import { NotRecorded } from "./source";
import { encode } from "./encode.testing";

async function pack(wire: Uint8Array): Promise<string> {
  const stream = new Blob([wire as BlobPart]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  return btoa(String.fromCharCode(...new Uint8Array(await new Response(stream).arrayBuffer())));
}
const [first, second] = [encode({ name: "m" }, []), encode({ name: "n" }, [])];
const block = new Uint8Array([...first, ...second]);
const at = [0, 0, first.length] as const;
const file = {
  format: "pathsum-report",
  version: 2,
  title: "two-layer",
  views: ["text", "why"],
  start: "#/text",
  answers: {
    "model:{}": at,
    'run:{"example":0}': at,
    'run:{"example":1}': [0, first.length, second.length] as const,
    'run:{"ids":"1,2","model":"other"}': at,
    'paths:{"example":0,"position":4}': at,
    'paths:{"example":0,"position":17}': at,
    'why:{"example":1,"position":9}': at,
  },
};
const source = new ReportSource({ ...file, blocks: [await pack(block)] });
const explore = "open the explorer: pathsum explore two-layer";
const problemOf = async (asking: Promise<unknown>): Promise<Error> => {
  const problem = await asking.then(() => null, (error: unknown) => error);
  expect(problem).toBeInstanceOf(NotRecorded);
  return problem as Error;
};

describe("a report", () => {
  it("answers what was recorded, from the middle of a block too", async () => {
    expect(source.has("run", { example: 0 })).toBe(true);
    await expect(source.ask("run", { example: 0 })).resolves.toEqual({ name: "m" });
    await expect(source.ask("run", { example: 1 })).resolves.toEqual({ name: "n" });
  });
  it("reads blocks that are not compressed, as a fragment has them", async () => {
    const fragment = new ReportSource({ ...file, blocks: [block] });
    await expect(fragment.ask("run", { example: 1 })).resolves.toEqual({ name: "n" });
  });
  it("knows its views and which predictions it explains", () => {
    expect(source.views).toEqual(["text", "why"]);
    expect(source.explained("paths", { example: 0 })).toEqual(new Set([4, 17]));
    expect(source.explained("why", { example: 0 })).toEqual(new Set());
    expect(source.explained("paths", { text: "x" })).toEqual(new Set());
  });
  it("says which predictions of a text it explains", async () => {
    const problem = await problemOf(source.ask("paths", { example: 0, position: 5 }));
    expect(problem.message).toBe(
      `This report explains the predictions at 4, 17 of this text as a sum of paths. For the rest, ${explore}`,
    );
    const none = await problemOf(source.ask("why", { example: 0, position: 4 }));
    expect(none.message).toBe(`This report explains no prediction of this text as a graph. For the rest, ${explore}`);
  });
  it("does not call a position explained that is explained for another token only", async () => {
    const problem = await problemOf(source.ask("paths", { example: 0, position: 4, token: 3 }));
    expect(problem.message).toBe(
      `This report explains the prediction at 4 of the next token only, against the mean of all tokens. For the rest, ${explore}`,
    );
  });
  it("does not send to other texts for what it lacks of this one", async () => {
    const problem = await problemOf(source.ask("scores", { example: 0, head: "L0H0" }));
    expect(problem.message).toBe(`This report includes no score tables of this text. For the rest, ${explore}`);
    const step = await problemOf(source.ask("run", { example: 0, step: 5 }));
    expect(step.message).toContain("does not include this text at step 5");
  });
  it("says which texts it holds when asked about another", async () => {
    expect(source.has("run", { text: "x" })).toBe(false);
    const problem = await problemOf(source.ask("run", { text: "x" }));
    expect(problem.message).toBe(`This report includes 2 example texts. To run others, ${explore}`);
  });
});
