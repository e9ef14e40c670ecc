import { describe, expect, it } from "vitest";
import { encode } from "./encode.testing";
import { NotebookSource, type WidgetModel } from "./notebook";

type Hear = Parameters<WidgetModel["on"]>[1];

/** A kernel that does with a question what it is told. */
function kernel(send: (question: { id: number }, hear: Hear) => void | Promise<void>): WidgetModel & { heard: Set<Hear> } {
  const heard = new Set<Hear>();
  return {
    heard,
    get: () => undefined,
    send: (content) => send(content as { id: number }, (reply, buffers) => heard.forEach((hear) => hear(reply, buffers))),
    on: (_, callback) => void heard.add(callback),
    off: (_, callback) => void heard.delete(callback),
  };
}

const answer = (): DataView[] => {
  const wire = encode({ name: "m" }, []);
  return [new DataView(wire.buffer, wire.byteOffset, wire.byteLength)];
};
const STOPPED = { name: "Unreachable", message: "The notebook's kernel has stopped; run the cell again." };

describe("the notebook's source", () => {
  it("gives each question its own answer, in whatever order they come", async () => {
    const asked: { id: number }[] = [];
    let reply: Hear = () => undefined;
    const source = new NotebookSource(kernel((question, hear) => ((reply = hear), void asked.push(question))));
    const model = source.ask("model", {});
    const run = source.ask("run", { ids: "9" });
    reply({ id: 1, error: "token id 9 is out of range", kind: "TokenError" }, []);
    reply({ id: 0 }, answer());
    await expect(model).resolves.toEqual({ name: "m" });
    await expect(run).rejects.toMatchObject({ message: "token id 9 is out of range", errorKind: "TokenError" });
    expect(asked).toEqual([
      { id: 0, name: "model", params: {} },
      { id: 1, name: "run", params: { ids: "9" } },
    ]);
  });

  it("says what to do when the kernel has stopped, whether sending throws or rejects", async () => {
    const throws = new NotebookSource(
      kernel(() => {
        throw new Error("Cannot send");
      }),
    );
    await expect(throws.ask("model", {})).rejects.toMatchObject(STOPPED);
    const rejects = new NotebookSource(kernel(() => Promise.reject(new Error("no connection"))));
    await expect(rejects.ask("model", {})).rejects.toMatchObject(STOPPED);
    expect(throws.pending + rejects.pending).toBe(0);
  });

  it("asks again once there is a kernel", async () => {
    let stopped = true;
    const source = new NotebookSource(
      kernel((question, reply) => {
        if (stopped) throw new Error("Cannot send");
        reply(question, answer());
      }),
    );
    await expect(source.ask("model", {})).rejects.toMatchObject(STOPPED);
    stopped = false;
    await expect(source.ask("model", {})).resolves.toEqual({ name: "m" });
  });

  it("hears nothing once it is closed", () => {
    const model = kernel(() => undefined);
    const source = new NotebookSource(model);
    expect(model.heard.size).toBe(1);
    source.close();
    expect(model.heard.size).toBe(0);
  });
});
