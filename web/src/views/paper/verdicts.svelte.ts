import type { Claim, ModelParams, Outline } from "../../generated/answers";
import type { Source } from "../../lib/source/source";

/** Claims by their names, once they are known, or why they are not. */
export type Measured = () => ReadonlyMap<string, Claim | Error>;

/**
 * The claims of a tour, measured one after another, so that those at the top are there while others are computed.
 * Called while a component is set up (it uses `$effect`).
 */
export function measureAll(source: Source, params: () => ModelParams, claims: () => readonly Outline[]): Measured {
  let found = $state.raw<ReadonlyMap<string, Claim | Error>>(new Map());
  async function measure(about: ModelParams, ids: readonly string[], signal: AbortSignal): Promise<void> {
    found = new Map();
    for (const id of ids) {
      const claim = await source.ask("claim", { ...about, claim: id }, signal).catch((error: Error) => error);
      if (signal.aborted) return;
      found = new Map([...found, [id, claim]]);
    }
  }
  $effect(() => {
    const stop = new AbortController();
    void measure(params(), claims().map((claim) => claim.id), stop.signal);
    return () => stop.abort();
  });
  return () => found;
}
