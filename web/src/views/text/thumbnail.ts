import type { Mode } from "../../lib/draw/color";
import { blit, type Contrast, pixels, wholeWindow } from "../../lib/draw/matrix";
import type { Patterns } from "./patterns";

/** So many heads are drawn without waiting until they are seen. */
export const DRAWN_AT_ONCE = 32;

/**
 * A head's pattern at most `size` pixels per side. `lifted`: for pictures that tell patterns apart by their shape,
 * what is faint next to the attention to the first position can be seen.
 */
export function thumbnail(
  patterns: Patterns,
  head: number,
  mode: Mode,
  size: number,
  contrast: Contrast | "lifted" = "linear",
): { width: number; height: number; data: Uint32Array } {
  const scale = patterns.isSigned ? "diverging" : "sequential";
  const cells = patterns.cells(head, false);
  const [how, extent] =
    contrast === "lifted" ? (["sqrt", patterns.largest(head, true)] as const) : ([contrast, patterns.extent(head, false)] as const);
  return pixels(cells, wholeWindow(cells), extent, scale, mode, { width: size, height: size }, how);
}

/** The same as a canvas of its own, to be drawn from. */
export function bitmap(patterns: Patterns, head: number, mode: Mode, size: number, contrast: Contrast | "lifted"): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  blit(canvas.getContext("2d") as CanvasRenderingContext2D, thumbnail(patterns, head, mode, size, contrast), 0, 0, size, size);
  return canvas;
}
