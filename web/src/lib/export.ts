/** Downloads of what is seen: CSV of the numbers, SVG and PNG of the picture. */
import type { Picture } from "./picture/page";

export type Cell = string | number | boolean | null | undefined;

/** Numbers as rows, with a name for each column. */
export interface DataTable {
  header: string[];
  rows: Cell[][];
}

/** Text of a CSV file. Cells that a spreadsheet would run as a formula are quoted as text. */
export function csv(header: readonly string[], rows: Iterable<readonly Cell[]>): string {
  const lines = [header.map(csvCell).join(",")];
  for (const cells of rows) lines.push(cells.map(csvCell).join(","));
  return `${lines.join("\r\n")}\r\n`;
}

function csvCell(value: Cell): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  const text = String(value);
  // A token may be "=1+1": in a spreadsheet it must stay a token.
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) || safe !== text ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function download(name: string, data: Blob): void {
  const url = URL.createObjectURL(data);
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export const downloadCsv = (name: string, text: string): void =>
  download(`${name}.csv`, new Blob([text], { type: "text/csv" }));

export type PictureKind = "png" | "svg";

/** The picture of a view as a file. */
export async function downloadPicture(name: string, picture: Picture, kind: PictureKind): Promise<void> {
  if (kind === "svg") download(`${name}.svg`, new Blob([picture.svg], { type: "image/svg+xml" }));
  else download(`${name}.png`, await raster(picture));
}

/** Canvases have a largest side; a very long page gets fewer pixels rather than none. */
const LONGEST_SIDE = 16_000;

/** Twice as many pixels as on the screen. */
async function raster(picture: Picture): Promise<Blob> {
  const scale = Math.min(2, LONGEST_SIDE / Math.max(picture.width, picture.height));
  const image = new Image();
  // A data: address, not blob: — Chromium taints a canvas less readily and the policy allows both.
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(picture.svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(scale * picture.width);
  canvas.height = Math.ceil(scale * picture.height);
  const pen = canvas.getContext("2d") as CanvasRenderingContext2D;
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) =>
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The browser made no PNG of the picture."))), "image/png"),
  );
}
