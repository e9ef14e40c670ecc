import { drawings, SvgPen } from "./pen";
import { standalone } from "./plot";
import { linesOfNode } from "./text";
import { type Attributes, element, escaped, paint, painted } from "./xml";

/** What a view shows, as one SVG: plots stay plots, words words, and only heat maps are pixels. */
export interface Picture {
  svg: string;
  width: number;
  height: number;
}

const MARGIN = 12;

/**
 * Draws what `view` shows, all of it: what scrolls is laid out in full, controls are left out,
 * as the style sheet says of `.picturing`. The page itself is as before when this returns.
 */
export function pictureOf(view: HTMLElement, caption: string, ground: string): Picture {
  const undo = rollOut(view);
  try {
    const frame = view.getBoundingClientRect();
    const writer = new Writer(frame.left, frame.top - view.scrollTop);
    writer.children(view);
    const [width, height] = [Math.ceil(frame.width), Math.ceil(writer.bottom) + MARGIN];
    const foot = element(
      "text",
      { x: MARGIN + 2, y: height + 6, "font-family": "system-ui, sans-serif", "font-size": 11, fill: "#77777d" },
      escaped(caption),
    );
    const whole = height + 18;
    const paper = element("rect", { width, height: whole, ...painted("fill", paint(ground)) });
    const size: Attributes = { width, height: whole, viewBox: `0 0 ${width} ${whole}` };
    const svg = element("svg", { xmlns: "http://www.w3.org/2000/svg", ...size }, paper + writer.content + foot);
    return { svg, width, height: whole };
  } finally {
    undo();
  }
}

/** Shows everything that scrolls at its full height, for as long as it takes to look at it. */
function rollOut(view: HTMLElement): () => void {
  const fixed: { element: HTMLElement; style: string | null }[] = [];
  const remember = (element: HTMLElement): CSSStyleDeclaration => {
    fixed.push({ element, style: element.getAttribute("style") });
    return element.style;
  };
  // A canvas keeps the size it was drawn at, so what holds it must, too.
  for (const canvas of view.querySelectorAll("canvas")) {
    const { parentElement: holder } = canvas;
    if (!holder || fixed.some(({ element }) => element === holder)) continue;
    const height = holder.offsetHeight;
    remember(holder).minHeight = `${height}px`;
  }
  view.classList.add("picturing");
  for (const element of view.querySelectorAll<HTMLElement>("*")) {
    if (!(element instanceof HTMLElement) || element.scrollHeight <= element.clientHeight + 1) continue;
    if (!/auto|scroll/.test(getComputedStyle(element).overflowY)) continue;
    remember(element).overflow = "visible";
    // What holds it grows with it.
    for (let each: HTMLElement | null = element; each && each !== view; each = each.parentElement) {
      const style = remember(each);
      style.maxHeight = "none";
      style.height = "auto";
      style.flexShrink = "0";
    }
  }
  return () => {
    view.classList.remove("picturing");
    for (const { element, style } of fixed.reverse()) {
      // Through the object model: the page's policy forbids the attribute.
      element.style.cssText = style ?? "";
    }
  };
}

const ascents = new Map<string, { ascent: number; height: number }>();
let scratch: CanvasRenderingContext2D | null = null;

function measured(text: string, font: string): TextMetrics {
  scratch ??= document.createElement("canvas").getContext("2d") as CanvasRenderingContext2D;
  scratch.font = font;
  return scratch.measureText(text);
}

function ascentOf(font: string): { ascent: number; height: number } {
  let known = ascents.get(font);
  if (!known) {
    const metrics = measured("x", font);
    const ascent = metrics.fontBoundingBoxAscent;
    known = { ascent, height: ascent + metrics.fontBoundingBoxDescent };
    ascents.set(font, known);
  }
  return known;
}

const IGNORED = new Set(["SCRIPT", "STYLE", "DATALIST", "WBR", "BR", "INPUT", "TEXTAREA"]);

/** Goes through a page and writes what is seen of it. */
class Writer {
  private readonly parts: string[] = [];
  private clips = 0;
  bottom = 0;

  constructor(
    private readonly left: number,
    private readonly top: number,
  ) {}

  get content(): string {
    return this.parts.join("");
  }

  children(parent: Element): void {
    for (const node of parent.childNodes) {
      if (node instanceof Text) this.words(node);
      else if (node instanceof Element) this.element(node);
    }
  }

  private element(node: Element): void {
    if (IGNORED.has(node.tagName)) return;
    const style = getComputedStyle(node);
    const isHidden = style.display === "none" || style.visibility === "hidden" || style.opacity === "0";
    // Words for those who hear the page are cut away to nothing.
    if (isHidden || style.clipPath.startsWith("inset(50%")) return;
    const box = node.getBoundingClientRect();
    const isFaint = Number(style.opacity) < 1;
    if (isFaint) this.parts.push(`<g opacity="${style.opacity}">`);
    if (node instanceof SVGSVGElement) this.plot(node, box);
    else if (node instanceof HTMLCanvasElement) this.canvas(node, box);
    else if (node instanceof HTMLSelectElement) this.choice(node, style, box);
    else {
      // What runs in a text may break into lines, each with a box of its own.
      const boxes = style.display === "inline" ? node.getClientRects() : [box];
      for (const each of boxes) this.box(style, each);
      const clips = this.clip(node, style, box);
      this.children(node);
      this.after(node, box);
      if (clips) this.parts.push("</g>");
    }
    if (isFaint) this.parts.push("</g>");
  }

  private seen(box: DOMRect): { x: number; y: number; width: number; height: number } {
    const [x, y] = [box.left - this.left, box.top - this.top];
    this.bottom = Math.max(this.bottom, y + box.height);
    return { x, y, width: box.width, height: box.height };
  }

  private add(name: string, attributes: Attributes): void {
    this.parts.push(element(name, attributes));
  }

  private box(style: CSSStyleDeclaration, box: DOMRect): void {
    if (box.width === 0 || box.height === 0 || style.display === "contents") return;
    const ground = paint(style.backgroundColor);
    const rx = Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2) || undefined;
    if (ground) this.add("rect", { ...this.seen(box), rx, ...painted("fill", ground) });
    this.borders(style, box, rx);
    if (style.outlineStyle !== "none") {
      const [wide, away] = [parseFloat(style.outlineWidth), parseFloat(style.outlineOffset)];
      const grow = away + wide / 2;
      const { x, y, width, height } = this.seen(box);
      const around = { x: x - grow, y: y - grow, width: width + 2 * grow, height: height + 2 * grow };
      this.add("rect", { ...around, rx, fill: "none", ...line(style.outlineColor, wide, style.outlineStyle) });
    }
  }

  private borders(style: CSSStyleDeclaration, box: DOMRect, rx: number | undefined): void {
    const sides = (["Top", "Right", "Bottom", "Left"] as const).map((side) => ({
      wide: style[`border${side}Style`] === "none" ? 0 : parseFloat(style[`border${side}Width`]),
      color: style[`border${side}Color`],
      dash: style[`border${side}Style`],
    }));
    const [first] = sides;
    if (!first || sides.every((side) => side.wide === 0)) return;
    const { x, y, width, height } = this.seen(box);
    if (sides.every((side) => side.wide === first.wide && side.color === first.color)) {
      const half = first.wide / 2;
      const inner = { x: x + half, y: y + half, width: width - first.wide, height: height - first.wide };
      this.add("rect", { ...inner, rx, fill: "none", ...line(first.color, first.wide, first.dash) });
      return;
    }
    const ends = [
      (half: number) => ({ x1: x, y1: y + half, x2: x + width, y2: y + half }),
      (half: number) => ({ x1: x + width - half, y1: y, x2: x + width - half, y2: y + height }),
      (half: number) => ({ x1: x, y1: y + height - half, x2: x + width, y2: y + height - half }),
      (half: number) => ({ x1: x + half, y1: y, x2: x + half, y2: y + height }),
    ];
    sides.forEach(({ wide, color, dash }, i) => {
      if (wide > 0 && paint(color)) this.add("line", { ...ends[i]?.(wide / 2), ...line(color, wide, dash) });
    });
  }

  /** What a box cuts off on the page is cut off in the picture. */
  private clip(node: Element, style: CSSStyleDeclaration, box: DOMRect): boolean {
    const isCut = style.overflowX !== "visible" && style.display !== "inline";
    const isFull = node.scrollWidth <= node.clientWidth + 1 && node.scrollHeight <= node.clientHeight + 1;
    if (!isCut || isFull || box.width === 0) return false;
    const id = `clip-${++this.clips}`;
    this.parts.push(element("clipPath", { id }, element("rect", this.seen(box))), `<g clip-path="url(#${id})">`);
    return true;
  }

  private words(node: Text): void {
    const parent = node.parentElement as HTMLElement;
    const lines = linesOfNode(node);
    if (lines.length === 0) return;
    const style = getComputedStyle(parent);
    const font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const { ascent, height } = ascentOf(font);
    const capital = getComputedStyle(parent, "::first-letter").textTransform === "uppercase";
    if (capital && lines[0] && node === parent.firstChild) {
      lines[0].text = lines[0].text.charAt(0).toUpperCase() + lines[0].text.slice(1);
    }
    for (const { text, box } of lines) {
      const y = box.top - this.top + (box.height - height) / 2 + ascent;
      this.bottom = Math.max(this.bottom, box.top - this.top + box.height);
      this.text(style, style.textTransform === "uppercase" ? text.toUpperCase() : text, box.left - this.left, y, box.width);
    }
  }

  private text(style: CSSStyleDeclaration, text: string, x: number, y: number, width?: number): void {
    const attributes: Attributes = {
      x,
      y,
      "font-family": style.fontFamily,
      "font-size": parseFloat(style.fontSize),
      "font-weight": style.fontWeight === "400" ? undefined : style.fontWeight,
      "font-style": style.fontStyle === "normal" ? undefined : style.fontStyle,
      "font-variant": style.fontVariantCaps === "normal" ? undefined : style.fontVariantCaps,
      ...painted("fill", paint(style.color)),
      // Another machine has other fonts: words keep the room they had here.
      textLength: width,
      lengthAdjust: width === undefined ? undefined : "spacingAndGlyphs",
      "text-decoration": style.textDecorationLine === "underline" ? "underline" : undefined,
      "xml:space": "preserve",
    };
    this.parts.push(element("text", attributes, escaped(text)));
  }

  /** Small words that the style sheet puts next to an element, at a place of their own. */
  private after(node: Element, box: DOMRect): void {
    const style = getComputedStyle(node, "::after");
    const words = /^"(.+)"$/.exec(style.content)?.[1];
    if (words === undefined || style.position !== "absolute") return;
    const y = box.top - this.top + parseFloat(style.top) + parseFloat(style.fontSize);
    this.text(style, words, box.left - this.left + parseFloat(style.left), y);
    this.bottom = Math.max(this.bottom, y);
  }

  /** Of a list to choose from what is chosen, as words. */
  private choice(select: HTMLSelectElement, style: CSSStyleDeclaration, box: DOMRect): void {
    const words = select.selectedOptions[0]?.text ?? "";
    const size = parseFloat(style.fontSize);
    const { x, y, height } = this.seen(box);
    this.text(style, words, x + parseFloat(style.paddingLeft), y + height / 2 + 0.36 * size);
  }

  private plot(svg: SVGSVGElement, box: DOMRect): void {
    if (box.width === 0) return;
    const copy = standalone(svg);
    const { x, y } = this.seen(box);
    copy.setAttribute("x", String(x));
    copy.setAttribute("y", String(y));
    copy.removeAttribute("opacity");
    this.parts.push(new XMLSerializer().serializeToString(copy));
  }

  private canvas(canvas: HTMLCanvasElement, box: DOMRect): void {
    if (canvas.width === 0 || box.width === 0) return;
    const place = this.seen(box);
    const drawing = drawings.get(canvas);
    if (!drawing) {
      const href = canvas.toDataURL("image/png");
      this.add("image", { href, ...place, preserveAspectRatio: "none", "image-rendering": "pixelated" });
      return;
    }
    const pen = new SvgPen(measured);
    drawing.draw(pen);
    this.parts.push(`<g transform="translate(${place.x} ${place.y})">${pen.content}</g>`);
  }
}

function line(color: string, wide: number, dash: string): Attributes {
  const gaps = dash === "dashed" ? "4 3" : dash === "dotted" ? `${wide} ${wide}` : undefined;
  return { ...painted("stroke", paint(color)), "stroke-width": wide, "stroke-dasharray": gaps };
}
