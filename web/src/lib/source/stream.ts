import { type Progress, Refused } from "./source";

/** The type of an answer that comes with its progress; see pathsum.explorer.server.app. */
export const STREAM = "application/vnd.pathsum.progress";

type Line = Progress | { answer: number } | { error: string; kind?: string };

const NEWLINE = 10;

/** The answer at the end of a stream; `report` hears of the progress on the way. */
export async function readStream(
  stream: ReadableStream<Uint8Array>,
  report: (progress: Progress) => void,
): Promise<Uint8Array> {
  const reader = stream.getReader();
  let held = new Uint8Array(0);
  async function more(): Promise<void> {
    const { done, value } = await reader.read();
    if (done) throw new Error("The answer was cut off.");
    const joined = new Uint8Array(held.length + value.length);
    joined.set(held);
    joined.set(value, held.length);
    held = joined;
  }
  for (;;) {
    const end = held.indexOf(NEWLINE);
    if (end < 0) {
      await more();
      continue;
    }
    const line = JSON.parse(new TextDecoder().decode(held.subarray(0, end))) as Line;
    held = held.slice(end + 1);
    if ("error" in line) throw new Refused(line.error, line.kind);
    if (!("answer" in line)) {
      report(line);
      continue;
    }
    const whole = new Uint8Array(line.answer);
    let at = 0;
    for (let part = held; ; ) {
      whole.set(part, at);
      at += part.length;
      if (at >= whole.length) return whole;
      const { done, value } = await reader.read();
      if (done) throw new Error("The answer was cut off.");
      part = value as Uint8Array<ArrayBuffer>;
    }
  }
}
