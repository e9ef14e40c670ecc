import type { Claim, ModelParams, Outline } from "../../generated/answers";
import type { Source } from "../../lib/source";

/**
 * The claims of a tour, measured one after another, so that those at the top are there while others are
 * computed. `of(id)` is one of them once it is known, `failed` says why one is not. Call `measureAll` while a
 * component is set up (it uses `$effect`).
 */
export class Measured {
  #claims = $state.raw<ReadonlyMap<string, Claim>>(new Map());
  failed = $state.raw<ReadonlyMap<string, string>>(new Map());

  of(id: string): Claim | undefined {
    return this.#claims.get(id);
  }

  get count(): number {
    return this.#claims.size + this.failed.size;
  }

  clear(): void {
    this.#claims = new Map();
    this.failed = new Map();
  }

  add(id: string, claim: Claim): void {
    this.#claims = new Map([...this.#claims, [id, claim]]);
  }

  fail(id: string, why: string): void {
    this.failed = new Map([...this.failed, [id, why]]);
  }
}

export function measureAll(
  source: Source,
  params: () => ModelParams,
  claims: () => readonly Outline[],
): Measured {
  const measured = new Measured();
  $effect(() => {
    const [about, ids] = [params(), claims().map((claim) => claim.id)];
    const stop = new AbortController();
    measured.clear();
    void (async () => {
      for (const id of ids) {
        try {
          const found = await source.ask("claim", { ...about, claim: id }, stop.signal);
          if (stop.signal.aborted) return;
          measured.add(id, found);
        } catch (error) {
          if (stop.signal.aborted) return;
          measured.fail(id, error instanceof Error ? error.message : String(error));
        }
      }
    })();
    return () => stop.abort();
  });
  return measured;
}
