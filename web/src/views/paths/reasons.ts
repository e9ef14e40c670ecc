/** Why a path's last head looked where the path came from, from the circuit of the same prediction. */
import type { CircuitGraph, Reason } from "../../lib/circuit";
import type { ListedPath } from "./tree";

export interface LastMove {
  readonly head: string;
  readonly dest: number;
  readonly src: number;
  readonly reason: Reason | null;
}

/** The last head of a path and where it looked, on the path's strongest route; null for a direct path. */
export function lastMove(path: ListedPath, graph: CircuitGraph | null): LastMove | null {
  const way = path.routes?.ways[0] ?? [];
  const head = path.heads[path.heads.length - 1];
  const [src, dest] = way.slice(-2);
  if (head === undefined || src === undefined || dest === undefined || way.length < 2) return null;
  const node = graph?.nodes.get(`${head}@${dest}`);
  // The circuit explains the source that matters most there.
  const reason = node?.attended?.source === src ? (graph?.reason(node.id) ?? null) : null;
  return { head, dest, src, reason };
}

/** "L1H0 ← ble@5, looked there because of L0H3 (K)". */
export function moveText(move: LastMove, token: (position: number) => string): string {
  const why = move.reason ? `, looked there because of ${move.reason.writer.component} (${move.reason.kind.toUpperCase()})` : "";
  return `${move.head} ← ${token(move.src)}@${move.src}${why}`;
}
