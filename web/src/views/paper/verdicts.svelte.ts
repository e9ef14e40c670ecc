import type { Claim, ModelParams, Outline } from "../../generated/answers";
import type { Source } from "../../lib/source/source";

/**
 * The claims of a tour, measured one after another, so that those at the top are there while others are computed.
 * Call `measureAll` while a component is set up (it uses `$effect`).
 */
export class Measured {
  /** A claim once it is known, or why it is not. */
  private found = $state.raw<ReadonlyMap<string, Claim | Error>>(new Map());

  of(id: string): Claim | undefined {
    const found = this.found.get(id);
    return found instanceof Error ? undefined : found;
  }

  problem(id: string): string | undefined {
    const found = this.found.get(id);
    return found instanceof Error ? found.message : undefined;
  }

  get count(): number {
    return this.found.size;
  }

  async measure(source: Source, about: ModelParams, ids: readonly string[], signal: AbortSignal): Promise<void> {
    this.found = new Map();
    for (const id of ids) {
      const found = await source.ask("claim", { ...about, claim: id }, signal).catch((error: Error) => error);
      if (signal.aborted) return;
      this.found = new Map([...this.found, [id, found]]);
    }
  }
}

export function measureAll(source: Source, params: () => ModelParams, claims: () => readonly Outline[]): Measured {
  const measured = new Measured();
  $effect(() => {
    const stop = new AbortController();
    void measured.measure(source, params(), claims().map((claim) => claim.id), stop.signal);
    return () => stop.abort();
  });
  return measured;
}
