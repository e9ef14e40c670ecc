import { type Attributes, element, escaped, paint, painted, short } from "./xml";

/** What heat maps and their axes are drawn with: a canvas's pen, or one that writes SVG. */
export type Pen = Pick<
  CanvasRenderingContext2D,
  | "save"
  | "restore"
  | "translate"
  | "rotate"
  | "fillRect"
  | "strokeRect"
  | "fillText"
  | "measureText"
  | "fillStyle"
  | "strokeStyle"
  | "lineWidth"
  | "font"
  | "textAlign"
  | "textBaseline"
>;

const ANCHORS: Record<CanvasTextAlign, string> = {
  left: "start",
  start: "start",
  center: "middle",
  right: "end",
  end: "end",
};

interface Styles {
  fillStyle: string;
  strokeStyle: string;
  lineWidth: number;
  font: string;
  textAlign: CanvasTextAlign;
  textBaseline: CanvasTextBaseline;
  transform: string;
}

/** A pen whose strokes are elements of an SVG: lines stay lines and words stay words at any size. */
export class SvgPen implements Pen {
  fillStyle = "#000";
  strokeStyle = "#000";
  lineWidth = 1;
  font = "10px sans-serif";
  textAlign: CanvasTextAlign = "start";
  textBaseline: CanvasTextBaseline = "alphabetic";
  private transform = "";
  private readonly kept: Styles[] = [];
  private readonly parts: string[] = [];

  constructor(private readonly measure: (text: string, font: string) => TextMetrics) {}

  get content(): string {
    return this.parts.join("");
  }

  save(): void {
    const { fillStyle, strokeStyle, lineWidth, font, textAlign, textBaseline, transform } = this;
    this.kept.push({ fillStyle, strokeStyle, lineWidth, font, textAlign, textBaseline, transform });
  }

  restore(): void {
    const before = this.kept.pop();
    if (before) Object.assign(this, before);
  }

  translate(x: number, y: number): void {
    this.transform += `translate(${short(x)} ${short(y)})`;
  }

  rotate(angle: number): void {
    this.transform += `rotate(${short((angle * 180) / Math.PI)})`;
  }

  fillRect(x: number, y: number, width: number, height: number): void {
    this.add("rect", { x, y, width, height, ...painted("fill", colorOf(this.fillStyle)) });
  }

  strokeRect(x: number, y: number, width: number, height: number): void {
    const stroke = painted("stroke", colorOf(this.strokeStyle));
    this.add("rect", { x, y, width, height, fill: "none", ...stroke, "stroke-width": this.lineWidth });
  }

  fillText(text: string, x: number, y: number): void {
    const [, weight, size, family] = /^(?:(bold|\d{3}) )?([\d.]+)px (.+)$/.exec(this.font) ?? [];
    // Programs differ in what they call the middle of a line: a baseline is the same everywhere.
    const down = this.textBaseline === "middle" ? 0.36 * Number(size) : 0;
    const attributes = {
      x,
      y: y + down,
      "font-size": Number(size),
      "font-family": family,
      "font-weight": weight,
      "text-anchor": ANCHORS[this.textAlign],
      ...painted("fill", colorOf(this.fillStyle)),
    };
    this.parts.push(words(attributes, text, this.transform));
  }

  measureText(text: string): TextMetrics {
    return this.measure(text, this.font);
  }

  /** Pixels, hard-edged, at an address of their own. */
  image(href: string, x: number, y: number, width: number, height: number, opacity = 1): void {
    const place = { href, x, y, width, height, opacity: opacity < 1 ? opacity : undefined };
    this.add("image", { ...place, preserveAspectRatio: "none", "image-rendering": "pixelated" });
  }

  private add(name: string, attributes: Attributes): void {
    this.parts.push(element(name, { ...attributes, transform: this.transform || undefined }));
  }
}

/** A canvas takes "#fff" and names too; here only what `color.ts` writes and hex. */
function colorOf(style: string): ReturnType<typeof paint> {
  return style.startsWith("#") ? { color: style, alpha: 1 } : paint(style);
}

function words(attributes: Attributes, text: string, transform: string): string {
  const all = { ...attributes, transform: transform || undefined, "xml:space": "preserve" };
  return element("text", all, escaped(text));
}

/** How a canvas is drawn, for pictures that hold more than its pixels. */
interface Drawing {
  draw(pen: SvgPen): void;
}

/** Canvases that can be drawn again with another pen. */
export const drawings = new WeakMap<HTMLCanvasElement, Drawing>();
