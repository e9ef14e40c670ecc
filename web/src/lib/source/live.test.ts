import { describe, expect, it, vi } from "vitest";
import { fetchWithToken, LiveSource } from "./live";
import { encode } from "./encode.testing";
import type { Progress } from "./source";

const answer = (): Response => new Response(encode({ name: "m" }, []) as BodyInit, { status: 200 });

describe("the live source", () => {
  it("asks once, however often it is asked", async () => {
    let asked = 0;
    const source = new LiveSource("api/", async () => (asked++, answer()));
    await Promise.all([source.ask("model", {}), source.ask("model", {}), source.ask("model", {})]);
    await source.ask("model", {});
    expect(asked).toBe(1);
  });

  it("passes on a refusal in words, and asks again next time", async () => {
    let refuse = true;
    const source = new LiveSource("api/", async () =>
      refuse ? new Response('{"error":"token id 9 is out of range","kind":"TokenError"}', { status: 400 }) : answer(),
    );
    await expect(source.ask("run", { ids: "9" })).rejects.toMatchObject({ message: "token id 9 is out of range", errorKind: "TokenError" });
    refuse = false;
    await expect(source.ask("run", { ids: "9" })).resolves.toEqual({ name: "m" });
  });

  it("asks a busy server again when it said to", async () => {
    const pauses: number[] = [];
    const busy = (): Response => new Response('{"error":"busy"}', { status: 503, headers: { "Retry-After": "2" } });
    const source = new LiveSource(
      "api/",
      async () => (pauses.length < 2 ? busy() : answer()),
      async (ms) => void pauses.push(ms),
    );
    await expect(source.ask("atlas", {})).resolves.toEqual({ name: "m" });
    expect(pauses).toEqual([2000, 2000]);
  });

  it("says when the server is gone, keeps knocking with growing pauses, and answers when it is back", async () => {
    const pauses: number[] = [];
    let down = true;
    const source = new LiveSource(
      "api/",
      async () => {
        if (down) throw new TypeError("failed to fetch");
        return answer();
      },
      async (ms) => {
        pauses.push(ms);
        if (pauses.length === 6) down = false;
      },
    );
    const reach: boolean[] = [];
    source.onReach((reachable) => reach.push(reachable));
    await expect(Promise.all([source.ask("model", {}), source.ask("paper", {})])).resolves.toHaveLength(2);
    expect(reach).toEqual([false, true]);
    expect(pauses).toEqual([500, 1000, 2000, 4000, 8000, 8000]);
  });

  it("is back if it refuses: a server that was started again has another token", async () => {
    let down = true;
    const source = new LiveSource(
      "api/",
      async () => {
        if (down) throw new TypeError("failed to fetch");
        return new Response('{"error":"open the link that was printed"}', { status: 403 });
      },
      async () => void (down = false),
    );
    const reach: boolean[] = [];
    source.onReach((reachable) => reach.push(reachable));
    await expect(source.ask("model", {})).rejects.toMatchObject({ message: "open the link that was printed" });
    expect(reach).toEqual([false, true]);
  });

  it("withdraws a question that no view waits for", async () => {
    const stopped: string[] = [];
    const source = new LiveSource("api/", (url, init) => {
      return new Promise((done, fail) => {
        init.signal?.addEventListener("abort", () => (stopped.push(url), fail(new DOMException("", "AbortError"))));
        setTimeout(() => done(answer()), 20);
      });
    });
    const [first, second] = [new AbortController(), new AbortController()];
    const alone = source.ask("model", {}, first.signal);
    first.abort();
    await expect(alone).rejects.toThrow();
    expect(stopped).toEqual(["api/model"]);
    // Asked by two, it is answered for the one that stays; and it is asked anew after a withdrawal.
    const shared = [source.ask("model", {}, second.signal), source.ask("model", {})];
    second.abort();
    await expect(Promise.all(shared)).resolves.toHaveLength(2);
    expect(stopped).toHaveLength(1);
  });

  /** A response that streams these pieces. */
  const streamed = (...pieces: (string | Uint8Array)[]): Response =>
    new Response(
      new ReadableStream({
        start(controller) {
          for (const piece of pieces) {
            controller.enqueue(typeof piece === "string" ? new TextEncoder().encode(piece) : piece);
          }
          controller.close();
        },
      }),
      { status: 200, headers: { "Content-Type": "application/vnd.pathsum.progress" } },
    );
  const wire = new Uint8Array(encode({ name: "m" }, []));

  it("tells how far a slow answer is, and reads the answer that follows, however it is cut", async () => {
    const heard: Progress[] = [];
    const source = new LiveSource("api/", async () =>
      streamed(
        '{"done": 0, "total": 0, "what": "waiting"}\n{"done": 1, "to',
        `tal": 2, "what": "é"}\n{"answer": ${wire.length}}\n`,
        wire.slice(0, 5),
        wire.slice(5),
      ),
    );
    const found = source.ask("atlas", {}, undefined, (progress) => heard.push(progress));
    await expect(found).resolves.toEqual({ name: "m" });
    expect(heard).toEqual([
      { done: 0, total: 0, what: "waiting" },
      { done: 1, total: 2, what: "é" },
    ]);
  });

  it("passes on a refusal at the end of a stream", async () => {
    const source = new LiveSource("api/", async () =>
      streamed('{"done": 0, "total": 0, "what": ""}\n{"error": "no heads", "kind": "InputError", "status": 400}\n'),
    );
    await expect(source.ask("atlas", {})).rejects.toMatchObject({ message: "no heads", errorKind: "InputError" });
  });

  it("asks again if a stream is cut off", async () => {
    let asked = 0;
    const source = new LiveSource(
      "api/",
      async () => (asked++ === 0 ? streamed(`{"answer": ${wire.length}}\n`, wire.slice(0, 5)) : answer()),
      async () => undefined,
    );
    await expect(source.ask("atlas", {})).resolves.toEqual({ name: "m" });
  });
});

describe("the token", () => {
  it("is kept for later visits, and sent in a header", async () => {
    const kept = new Map<string, string>();
    const storage = {
      getItem: (name: string) => kept.get(name) ?? null,
      setItem: (name: string, value: string) => void kept.set(name, value),
    } as Storage;
    const sent: (HeadersInit | undefined)[] = [];
    vi.stubGlobal("fetch", async (_: string, init: RequestInit) => (sent.push(init.headers), new Response("")));
    await fetchWithToken(null, storage)("api/model", { headers: { Accept: "x" } });
    await fetchWithToken("secret", storage)("api/model", { headers: { Accept: "x" } });
    await fetchWithToken(null, storage)("api/model", {});
    vi.unstubAllGlobals();
    const bearer = { Authorization: "Bearer secret" };
    expect(sent).toEqual([{ Accept: "x" }, { Accept: "x", ...bearer }, bearer]);
  });
});
