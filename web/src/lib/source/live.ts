import type { QuestionName } from "../../generated/answers";
import { readStream, STREAM } from "./stream";
import { CachedSource, type PlainParams, type Progress, Refused, Unreachable } from "./source";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;

type Fetch = (url: string, init: RequestInit) => Promise<Response>;

const TOKEN = "pathsum-token";

/**
 * A fetch with the token of the link that opened the page. The browser's storage keeps it for this address and port
 * only; a cookie would be sent to every server on this machine.
 */
export function fetchWithToken(given: string | null, storage: Storage = localStorage): Fetch {
  if (given !== null) storage.setItem(TOKEN, given);
  const token = storage.getItem(TOKEN);
  return (url, init) =>
    fetch(url, token ? { ...init, headers: { ...init.headers, Authorization: `Bearer ${token}` } } : init);
}

/** Seconds to wait if a busy server does not say how long. */
const BUSY_SECONDS = 2;

/** The server has too many questions waiting, and says when to ask again. */
class Busy extends Error {
  constructor(readonly seconds: number) {
    super("The server is busy.");
    this.name = "Busy";
  }
}

/** Asks the server the page came from. If it is gone or busy, asks again with pauses until it answers. */
export class LiveSource extends CachedSource {
  readonly kind = "live";
  private waiting: Promise<void> | null = null;

  constructor(
    private readonly base = "api/",
    private readonly fetcher: Fetch = (url, init) => fetch(url, init),
    private readonly pause = (ms: number) => new Promise<void>((done) => setTimeout(done, ms)),
  ) {
    super();
  }

  protected async fetchWire(
    name: QuestionName,
    params: PlainParams,
    _key: string,
    signal: AbortSignal,
    report: (progress: Progress) => void,
  ): Promise<ArrayBuffer | Uint8Array> {
    for (;;) {
      try {
        const wire = await this.once(name, params, signal, report);
        this.setReachable(true);
        return wire;
      } catch (error) {
        if (signal.aborted) throw error;
        // It answered, if only to refuse.
        if (!(error instanceof Unreachable)) this.setReachable(true);
        if (error instanceof Busy) {
          await this.pause(1000 * error.seconds);
          continue;
        }
        if (!(error instanceof Unreachable)) throw error;
        this.setReachable(false);
        await this.untilBack();
      }
    }
  }

  private async once(
    name: QuestionName,
    params: PlainParams,
    signal: AbortSignal,
    report: (progress: Progress) => void,
  ): Promise<ArrayBuffer | Uint8Array> {
    let response: Response;
    try {
      response = await this.fetcher(this.base + name, {
        method: "POST",
        headers: { "Content-Type": "application/json", Accept: STREAM },
        body: JSON.stringify(params),
        signal,
      });
      if (response.ok && response.headers.get("Content-Type") !== STREAM) return await response.arrayBuffer();
      if (response.ok && response.body) return await readStream(response.body, report);
    } catch (error) {
      if (error instanceof Refused) throw error.errorKind === "Busy" ? new Busy(BUSY_SECONDS) : error;
      throw new Unreachable();
    }
    const seconds = Number(response.headers.get("Retry-After"));
    if (response.status === 503 && seconds > 0) throw new Busy(seconds);
    throw await refusal(response);
  }

  /** One knock at the door for all waiting questions, not one each. */
  private untilBack(): Promise<void> {
    this.waiting ??= this.knock().finally(() => {
      this.waiting = null;
    });
    return this.waiting;
  }

  private async knock(): Promise<void> {
    for (let ms = FIRST_PAUSE_MS; ; ms = Math.min(2 * ms, LONGEST_PAUSE_MS)) {
      await this.pause(ms);
      try {
        await this.fetcher(this.base + "model", {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: "{}",
        });
        return;
      } catch {
        continue;
      }
    }
  }
}

async function refusal(response: Response): Promise<Error> {
  try {
    const body = (await response.json()) as { error?: string; kind?: string };
    if (body.error) return new Refused(body.error, body.kind);
  } catch {
    // Not JSON: something other than this project's server answered; its status says the most.
  }
  return new Refused(`The server answered ${response.status} ${response.statusText}.`, "HTTPError");
}
