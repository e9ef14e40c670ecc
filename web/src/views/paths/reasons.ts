/** Why a path's last head attends where the path came from, from the circuit of the same prediction. */
import type { CircuitGraph, Edge } from "../../lib/circuit";
import type { ListedPath } from "./tree";

export interface LastMove {
  readonly head: string;
  readonly dest: number;
  readonly src: number;
  /** The edge by which a lower head did most for that, into its key there or its query. */
  readonly reason: (Edge & { readonly writer: string }) | null;
}

/** The last head of a path and where it looked, on the path's strongest route; null for a direct path. */
export function lastMove(path: ListedPath, graph: CircuitGraph | null): LastMove | null {
  const way = path.routes?.ways[0] ?? [];
  const head = path.heads[path.heads.length - 1];
  const [src, dest] = way.slice(-2);
  if (head === undefined || src === undefined || dest === undefined || way.length < 2) return null;
  const node = graph?.nodes.get(`${head}@${dest}`);
  // The circuit explains the source that matters most there.
  if (!graph || node?.attended?.source !== src) return { head, dest, src, reason: null };
  const edges = graph.inputs(node.id).filter((edge) => edge.kind !== "v" && edge.share > 0);
  const found = [...edges].sort((a, b) => a.kind.localeCompare(b.kind)).find(({ from, kind }) => {
    const writer = graph.nodes.get(from);
    return writer?.isHead && writer.position === (kind === "q" ? dest : src);
  });
  return { head, dest, src, reason: found ? { ...found, writer: graph.nodes.get(found.from)!.component } : null };
}

/** "L1H0 ← ble@5, attends there because of L0H3 (K)". */
export function moveText(move: LastMove, token: (position: number) => string): string {
  const why = move.reason ? `, attends there because of ${move.reason.writer} (${move.reason.kind.toUpperCase()})` : "";
  return `${move.head} ← ${token(move.src)}@${move.src}${why}`;
}
