import { describe, expect, it } from "vitest";
import { ReportSource } from "./report";
import { NotRecorded } from "./source";
import { encode } from "./encode";

async function pack(wire: Uint8Array): Promise<string> {
  const stream = new Blob([wire as BlobPart]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  return btoa(String.fromCharCode(...new Uint8Array(await new Response(stream).arrayBuffer())));
}
const packed = await pack(encode({ name: "m" }, []));
const source = new ReportSource({
  format: "pathsum-report",
  version: 1,
  title: "two-layer",
  answers: {
    "model:{}": packed,
    'run:{"example":0}': packed,
    'run:{"ids":"1,2","model":"other"}': packed,
    'why:{"example":0,"position":4}': packed,
    'why:{"example":0,"position":17}': packed,
    'why:{"example":1,"position":9}': packed,
  },
});

describe("a report", () => {
  it("answers what was recorded", async () => {
    expect(source.has("run", { example: 0 })).toBe(true);
    await expect(source.ask("run", { example: 0 })).resolves.toEqual({ name: "m" });
  });
  it("says which predictions of a text it explains", async () => {
    const problem = await source.ask("why", { example: 0, position: 5 }).catch((error: unknown) => error);
    expect((problem as Error).message).toBe(
      "This report explains the predictions at 4, 17 of this text; open the explorer to ask about others: pathsum explore two-layer",
    );
  });
  it("says in words what it does not hold", async () => {
    expect(source.has("run", { text: "x" })).toBe(false);
    const problem = await source.ask("run", { text: "x" }).catch((error: unknown) => error);
    expect(problem).toBeInstanceOf(NotRecorded);
    expect((problem as Error).message).toBe(
      "This report holds 1 example text; open the explorer to ask about others: pathsum explore two-layer",
    );
  });
});
