/** The places of heads in a grid of layers, and how arrow keys move between them. */
import { layerOf } from "../names";

interface GridRow {
  readonly layer: number;
  readonly indices: readonly number[];
}

/** Rows from the last layer down to the first: data flows upwards. */
export function gridRows(heads: readonly string[]): GridRow[] {
  const layers = new Map<number, number[]>();
  heads.forEach((head, index) => {
    const layer = layerOf(head);
    layers.set(layer, [...(layers.get(layer) ?? []), index]);
  });
  return [...layers].map(([layer, indices]) => ({ layer, indices })).sort((a, b) => b.layer - a.layer);
}

/** How much room a head has: for words and a picture, for two short lines, or for its color alone. */
type Density = "roomy" | "dense" | "compact";

export function gridDensity(rows: readonly GridRow[]): Density {
  const columns = Math.max(0, ...rows.map((row) => row.indices.length));
  if (columns <= 8 && rows.length <= 8) return "roomy";
  return columns <= 16 && rows.length <= 16 ? "dense" : "compact";
}

/** The head that a key leads to from `index`; null if the key means nothing here. */
export function gridKey(rows: readonly GridRow[], index: number, key: string): number | null {
  const row = rows.findIndex((each) => each.indices.includes(index));
  const own = rows[row];
  if (!own) return null;
  const column = own.indices.indexOf(index);
  const clamp = (at: number, length: number) => Math.min(length - 1, Math.max(0, at));
  switch (key) {
    case "ArrowLeft":
      return own.indices[clamp(column - 1, own.indices.length)] ?? null;
    case "ArrowRight":
      return own.indices[clamp(column + 1, own.indices.length)] ?? null;
    case "Home":
      return own.indices[0] ?? null;
    case "End":
      return own.indices[own.indices.length - 1] ?? null;
    case "ArrowUp":
    case "ArrowDown": {
      const other = rows[clamp(row + (key === "ArrowUp" ? -1 : 1), rows.length)];
      return other?.indices[clamp(column, other.indices.length)] ?? null;
    }
    default:
      return null;
  }
}
