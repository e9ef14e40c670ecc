/** Downloads: numbers as CSV, plots as SVG and PNG. */

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

export const downloadCsv = (name: string, { header, rows }: DataTable): void =>
  download(`${name}.csv`, new Blob([csv(header, rows)], { type: "text/csv" }));

export type PlotFormat = "png" | "svg";

/** The drawings inside an element: its canvases and its SVGs, without icons and legend marks. */
const plotsIn = (panel: Element): Element[] =>
  [...panel.querySelectorAll("canvas, svg:is([role=img], [role=group], .plot-layer)")].filter((each) => each.getBoundingClientRect().width > 0);

/** Saves the plots of a panel as one file, placed as they are on the page. */
export async function downloadPlots(name: string, panel: Element, format: PlotFormat, ground: string): Promise<void> {
  const plots = plotsIn(panel);
  if (plots.length === 0) throw new Error("there is no plot in this panel yet");
  const { svg, width, height } = serialize(plots, ground);
  if (format === "svg") download(`${name}.svg`, new Blob([svg], { type: "image/svg+xml" }));
  else download(`${name}.png`, await rasterize(svg, width, height));
}

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = 8;

function serialize(plots: readonly Element[], ground: string): { svg: string; width: number; height: number } {
  const boxes = plots.map((plot) => plot.getBoundingClientRect());
  const [left, top] = [Math.min(...boxes.map((box) => box.left)) - MARGIN, Math.min(...boxes.map((box) => box.top)) - MARGIN];
  const width = Math.ceil(Math.max(...boxes.map((box) => box.right)) - left + MARGIN);
  const height = Math.ceil(Math.max(...boxes.map((box) => box.bottom)) - top + MARGIN);
  const whole = element("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
  whole.append(element("rect", { width, height, fill: ground }));
  plots.forEach((plot, i) => {
    const box = boxes[i] as DOMRect;
    const place = { x: box.left - left, y: box.top - top, width: box.width, height: box.height };
    if (plot instanceof HTMLCanvasElement) whole.append(element("image", { href: plot.toDataURL("image/png"), ...place }));
    else whole.append(standalone(plot as SVGSVGElement, place));
  });
  // XML has no place for most control characters, and a token may be one.
  const svg = new XMLSerializer().serializeToString(whole).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
  return { svg, width, height };
}

function element(name: string, attributes: Record<string, string | number>): SVGElement {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (key !== "xmlns") made.setAttribute(key, String(value));
  return made;
}

/** The styles that a drawing needs written into it, because its style sheet stays behind. */
const STYLES = [
  ...["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "paint-order", "opacity", "visibility", "display"],
  ...["font-family", "font-size", "font-weight", "font-style", "text-anchor", "text-decoration-line", "white-space"],
] as const;

/** A copy of a drawing with its computed styles as attributes. */
function standalone(svg: SVGSVGElement, place: Record<string, number>): SVGSVGElement {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const targets = [copy, ...copy.querySelectorAll<SVGElement>("*")];
  [svg, ...svg.querySelectorAll<SVGElement>("*")].forEach((original, i) => {
    const [style, target] = [getComputedStyle(original), targets[i] as SVGElement];
    for (const name of STYLES) target.setAttribute(name === "text-decoration-line" ? "text-decoration" : name, style.getPropertyValue(name));
    for (const name of ["class", "style", "tabindex", "role"]) target.removeAttribute(name);
  });
  if (!svg.getAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${place["width"]} ${place["height"]}`);
  for (const [key, value] of Object.entries({ ...place, overflow: "visible" })) copy.setAttribute(key, String(value));
  return copy;
}

/** Canvases have a largest side; a very large plot gets fewer pixels rather than none. */
const LONGEST_SIDE = 16_000;

/** Twice as many pixels as on the screen. */
async function rasterize(svg: string, width: number, height: number): Promise<Blob> {
  const scale = Math.min(2, LONGEST_SIDE / Math.max(width, height));
  const image = new Image();
  // A data: address, not blob: — Chromium taints a canvas less readily and the policy allows both.
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(scale * width);
  canvas.height = Math.ceil(scale * height);
  const pen = canvas.getContext("2d") as CanvasRenderingContext2D;
  pen.imageSmoothingEnabled = false;
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) =>
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The browser could not encode the PNG."))), "image/png"),
  );
}
