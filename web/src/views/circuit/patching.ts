import type { EdgePage } from "../../generated/answers";

/** Bars of what patching an edge costs, one per set of sequences. */
export const patchBars = (page: EdgePage) =>
  page.patching.map(({ on, cost }) => ({
    name: `${on}, edge from shuffled tokens`,
    value: cost.value,
    low: cost.low,
    high: cost.high,
  }));
