/** Downloads of what is seen: CSV of the numbers, SVG and PNG of the picture. */
import { css, type Mode, palette } from "./colour";

export type Cell = string | number | boolean | null | undefined;

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

export function download(name: string, data: Blob): void {
  const url = URL.createObjectURL(data);
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export const downloadCsv = (name: string, text: string): void =>
  download(`${name}.csv`, new Blob([text], { type: "text/csv" }));

/** The style properties that an SVG needs written into it, since its style sheet stays behind. */
const PROPERTIES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-opacity",
  "stroke-linecap",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "font-style",
  "text-anchor",
  "dominant-baseline",
] as const;

/** A free-standing copy of an SVG: computed styles written in, paper behind. */
export function standalone(svg: SVGSVGElement, mode: Mode): SVGSVGElement {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const from = [svg, ...svg.querySelectorAll<SVGElement>("*")];
  const to = [copy, ...copy.querySelectorAll<SVGElement>("*")];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    const target = to[i] as SVGElement;
    for (const property of PROPERTIES) target.style.setProperty(property, style.getPropertyValue(property));
    target.removeAttribute("class");
  });
  const box = svg.getBoundingClientRect();
  const [width, height] = [Math.ceil(box.width), Math.ceil(box.height)];
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  if (!copy.getAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  copy.style.background = css(palette(mode).paper);
  return copy;
}

const svgText = (svg: SVGSVGElement, mode: Mode): string =>
  new XMLSerializer().serializeToString(standalone(svg, mode));

export const downloadSvg = (name: string, svg: SVGSVGElement, mode: Mode): void =>
  download(`${name}.svg`, new Blob([svgText(svg, mode)], { type: "image/svg+xml" }));

/** PNG of a canvas or an SVG, twice as many pixels as on the screen. */
export async function downloadPng(
  name: string,
  picture: HTMLCanvasElement | SVGSVGElement,
  mode: Mode,
): Promise<void> {
  const canvas = picture instanceof HTMLCanvasElement ? picture : await raster(picture, mode);
  const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/png"));
  if (blob) download(`${name}.png`, blob);
}

async function raster(svg: SVGSVGElement, mode: Mode): Promise<HTMLCanvasElement> {
  const box = svg.getBoundingClientRect();
  const image = new Image();
  // A data: address, not blob: — Chromium taints a canvas less readily and the policy allows both.
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg, mode))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(2 * box.width);
  canvas.height = Math.ceil(2 * box.height);
  const pen = canvas.getContext("2d") as CanvasRenderingContext2D;
  pen.fillStyle = css(palette(mode).paper);
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** An SVG file that holds a canvas's picture, for views that are drawn in pixels. */
export function downloadCanvasAsSvg(name: string, canvas: HTMLCanvasElement): void {
  const { width, height } = canvas;
  const text =
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}">` +
    `<image href="${canvas.toDataURL("image/png")}" width="${width}" height="${height}"/></svg>`;
  download(`${name}.svg`, new Blob([text], { type: "image/svg+xml" }));
}

/** A canvas with its title above it, since a picture leaves the page that says what it is. */
export function titled(canvas: HTMLCanvasElement, title: string, mode: Mode): HTMLCanvasElement {
  const ratio = globalThis.devicePixelRatio || 1;
  const band = Math.round(30 * ratio);
  const out = document.createElement("canvas");
  out.width = canvas.width;
  out.height = canvas.height + band;
  const pen = out.getContext("2d") as CanvasRenderingContext2D;
  pen.fillStyle = css(palette(mode).paper);
  pen.fillRect(0, 0, out.width, out.height);
  pen.fillStyle = css(palette(mode).ink);
  pen.font = `600 ${Math.round(14 * ratio)}px system-ui, sans-serif`;
  pen.textBaseline = "middle";
  pen.fillText(title, Math.round(10 * ratio), band / 2);
  pen.drawImage(canvas, 0, band);
  return out;
}
