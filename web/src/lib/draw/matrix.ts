/** Heat maps: one pixel a cell, then scaled by the canvas. */
import type { AttentionAnswer } from "../../generated/answers";
import { type Mode, type Scale, table } from "./color";

interface Size {
  rows: number;
  columns: number;
}

/** A matrix, row after row. */
interface DenseCells extends Size {
  values: ArrayLike<number>;
}

/** A matrix of which each row keeps `k` entries: `values[row, i]` stands in column `places[row, i]`. */
interface SparseCells extends Size {
  k: number;
  places: ArrayLike<number>;
  entries: ArrayLike<number>;
  /** The first column counts as empty. */
  withoutFirst: boolean;
}

export type Cells = DenseCells | SparseCells;

/** How numbers become colors: as they are, by their square root, or each row by its own largest. */
export type Contrast = "linear" | "sqrt" | "row";

export const CONTRASTS: readonly { value: Contrast; label: string; about: string }[] = [
  { value: "linear", label: "linear", about: "Color is proportional to the value" },
  { value: "sqrt", label: "√", about: "Color is proportional to the square root, which makes diffuse attention visible" },
  { value: "row", label: "per row", about: "Each row is scaled to its maximum" },
];

/** The part of a matrix that is shown: first row and column, and how many cells each way. */
export interface Window {
  row: number;
  column: number;
  rows: number;
  columns: number;
}

export const wholeWindow = (cells: Size): Window => ({
  row: 0,
  column: 0,
  rows: cells.rows,
  columns: cells.columns,
});

/**
 * RGBA pixels of a window of a matrix, at most `width` × `height`. Where several cells share a pixel the one
 * of the largest size is shown: a single bright cell must not vanish in a long text.
 */
export function pixels(
  cells: Cells,
  window: Window,
  extent: number,
  scale: Scale,
  mode: Mode,
  most: { width: number; height: number },
  contrast: Contrast = "linear",
): { width: number; height: number; data: Uint32Array } {
  const width = Math.max(1, Math.min(window.columns, Math.floor(most.width)));
  const height = Math.max(1, Math.min(window.rows, Math.floor(most.height)));
  const pooled = pooledCells(cells, window, width, height);
  const data = new Uint32Array(width * height);
  const colors = table(scale, mode);
  const { offset, factor } = indexing(extent, scale);
  const size = extent > 0 ? extent : 1;
  for (let y = 0; y < height; y++) {
    const from = pooled ? y * width : (window.row + y) * cells.columns + window.column;
    const values = pooled ?? (cells as DenseCells).values;
    const stretch = contrast === "row" ? size / (largestOf(values, from, width) || size) : 1;
    for (let x = 0; x < width; x++) {
      let value = (values[from + x] as number) * stretch;
      if (contrast === "sqrt") value = Math.sign(value) * Math.sqrt(Math.abs(value) * size);
      data[y * width + x] = colors[colorIndex(value, offset, factor)] as number;
    }
  }
  return { width, height, data };
}

function largestOf(values: ArrayLike<number>, from: number, count: number): number {
  let most = 0;
  for (let i = from; i < from + count; i++) {
    const size = Math.abs(values[i] as number);
    if (size > most) most = size;
  }
  return most;
}

function indexing(extent: number, scale: Scale): { offset: number; factor: number } {
  const size = extent > 0 ? extent : 1;
  return scale === "sequential" ? { offset: 0, factor: 255 / size } : { offset: 127.5, factor: 127.5 / size };
}

function colorIndex(value: number, offset: number, factor: number): number {
  const index = Math.round(offset + value * factor);
  // NaN (nothing there) falls to the paper's color.
  return index >= 0 ? (index > 255 ? 255 : index) : Number.isNaN(index) ? Math.round(offset) : 0;
}

/** The values of the pixels; null where pixels are the cells of a dense matrix themselves. */
function pooledCells(cells: Cells, window: Window, width: number, height: number): Float32Array | null {
  if ("places" in cells) return poolSparse(cells, window, width, height);
  return width === window.columns && height === window.rows ? null : pool(cells, window, width, height);
}

/** From sparse rows without making them dense: a long text has a million cells and few entries. */
function poolSparse(cells: SparseCells, window: Window, width: number, height: number): Float32Array {
  const out = new Float32Array(width * height);
  const { k, places, entries } = cells;
  const first = Math.max(window.column, cells.withoutFirst ? 1 : 0);
  const end = window.column + window.columns;
  for (let i = 0; i < window.rows; i++) {
    const row = Math.floor((i * height) / window.rows) * width;
    const from = (window.row + i) * k;
    for (let at = from; at < from + k; at++) {
      const column = places[at] as number;
      if (column < first || column >= end) continue;
      const value = entries[at] as number;
      const pixel = row + Math.floor(((column - window.column) * width) / window.columns);
      if (Math.abs(value) > Math.abs(out[pixel] as number)) out[pixel] = value;
    }
  }
  return out;
}

function pool(cells: DenseCells, window: Window, width: number, height: number): Float32Array {
  const out = new Float32Array(width * height);
  for (let i = 0; i < window.rows; i++) {
    const y = Math.floor((i * height) / window.rows);
    const from = (window.row + i) * cells.columns + window.column;
    for (let j = 0; j < window.columns; j++) {
      const value = cells.values[from + j] as number;
      const at = y * width + Math.floor((j * width) / window.columns);
      if (Math.abs(value) > Math.abs(out[at] as number)) out[at] = value;
    }
  }
  return out;
}

/** The same, from sparse rows: `columns[row, k]` and `values[row, k]` of one head. */
export function sparseToDense(
  columns: ArrayLike<number>,
  values: ArrayLike<number>,
  rows: number,
  k: number,
): Float32Array {
  const out = new Float32Array(rows * rows);
  for (let i = 0; i < rows; i++) {
    for (let n = 0; n < k; n++) {
      const value = values[i * k + n] as number;
      if (value) out[i * rows + (columns[i * k + n] as number)] = value;
    }
  }
  return out;
}

let scratch: HTMLCanvasElement | null = null;

/** The pattern of one head in an answer: destination down, source across. */
export function patternOf(answer: AttentionAnswer, head: string): DenseCells {
  const rows = answer.tokens;
  const at = Math.max(0, answer.heads.indexOf(head));
  if (answer.dense) return { rows, columns: rows, values: answer.dense.data.subarray(at * rows * rows, (at + 1) * rows * rows) };
  const k = answer.columns?.shape[2] ?? 0;
  const [from, to] = [at * rows * k, (at + 1) * rows * k];
  const [columns, values] = [answer.columns?.data.subarray(from, to) ?? [], answer.values?.data.subarray(from, to) ?? []];
  return { rows, columns: rows, values: sparseToDense(columns, values, rows, k) };
}

/** Draws pixels into a rectangle, hard-edged. */
export function blit(
  pen: CanvasRenderingContext2D,
  picture: { width: number; height: number; data: Uint32Array },
  x: number,
  y: number,
  width: number,
  height: number,
): void {
  scratch ??= document.createElement("canvas");
  scratch.width = picture.width;
  scratch.height = picture.height;
  const image = new ImageData(new Uint8ClampedArray(picture.data.buffer as ArrayBuffer), picture.width, picture.height);
  (scratch.getContext("2d") as CanvasRenderingContext2D).putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(scratch, x, y, width, height);
}

/** Sizes a canvas for the screen's pixels; gives a pen that draws in CSS pixels. */
export function sharpPen(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = globalThis.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d") as CanvasRenderingContext2D;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}
