import type { Mode } from "../../lib/colour";
import { pixels, wholeWindow } from "../../lib/draw/matrix";
import type { Matrix } from "../../lib/wire";
import type { Patterns } from "./patterns";

/** A head's pattern at most `size` pixels a side; straight from sparse rows, without making them dense. */
export function thumbnail(
  patterns: Patterns,
  head: number,
  mode: Mode,
  size: number,
): { width: number; height: number; data: Uint32Array } {
  const scale = patterns.isSigned ? "diverging" : "sequential";
  const most = { width: size, height: size };
  const { columns, values } = patterns.answer;
  if (!patterns.isSparse || !columns || !values) {
    const cells = patterns.cells(head, false);
    return pixels(cells, wholeWindow(cells), patterns.extent(head, false), scale, mode, most);
  }
  const side = Math.min(size, patterns.n);
  const pooled = pooledSparse(columns, values, head, patterns.n, side);
  const cells = { rows: side, columns: side, values: pooled };
  let extent = patterns.weighting === "attention" ? 1 : 0;
  if (extent === 0) for (const value of pooled) extent = Math.max(extent, Math.abs(value));
  return pixels(cells, wholeWindow(cells), extent, scale, mode, most);
}

function pooledSparse(columns: Matrix, values: Matrix, head: number, n: number, side: number): Float32Array {
  const k = columns.shape[2] as number;
  const out = new Float32Array(side * side);
  for (let i = 0; i < n; i++) {
    const y = Math.floor((i * side) / n);
    const from = (head * n + i) * k;
    for (let at = from; at < from + k; at++) {
      const value = values.data[at] as number;
      const cell = y * side + Math.floor(((columns.data[at] as number) * side) / n);
      if (Math.abs(value) > Math.abs(out[cell] as number)) out[cell] = value;
    }
  }
  return out;
}
