import { paint } from "./xml";

/** Style that an SVG needs written into it, since its style sheet stays behind. Children inherit these … */
const INHERITED = [
  "stroke-width",
  "stroke-dasharray",
  "stroke-linecap",
  "stroke-linejoin",
  "paint-order",
  "font-family",
  "font-size",
  "font-weight",
  "font-style",
  "text-anchor",
  "dominant-baseline",
  "visibility",
] as const;
/** … and these not; they are written where they differ from the usual. */
const OWN = { opacity: "1", display: "inline" } as const;

let copies = 0;

/** A free-standing copy of a plot: styles written into it as attributes, its ids its own. */
export function standalone(svg: SVGSVGElement): SVGSVGElement {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const from = [svg, ...svg.querySelectorAll<SVGElement>("*")];
  const to = [copy, ...copy.querySelectorAll<SVGElement>("*")];
  const styles = new Map(from.map((element) => [element, getComputedStyle(element)]));
  from.forEach((element, i) => {
    const above = i === 0 ? undefined : styles.get(element.parentElement as unknown as SVGElement);
    writeStyle(styles.get(element) as CSSStyleDeclaration, above, to[i] as SVGElement);
  });
  ownIds(copy, `p${++copies}-`);
  const box = svg.getBoundingClientRect();
  if (!copy.getAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(box.width));
  copy.setAttribute("height", String(box.height));
  copy.setAttribute("overflow", "visible");
  return copy;
}

function writeStyle(style: CSSStyleDeclaration, above: CSSStyleDeclaration | undefined, target: SVGElement): void {
  for (const what of ["fill", "stroke"] as const) {
    const value = style.getPropertyValue(what);
    const color = paint(value);
    if (!value.startsWith("url")) target.setAttribute(what, color?.color ?? "none");
    const alpha = (color?.alpha ?? 1) * Number(style.getPropertyValue(`${what}-opacity`));
    target.setAttribute(`${what}-opacity`, String(alpha));
  }
  for (const property of INHERITED) {
    const value = style.getPropertyValue(property);
    if (value !== above?.getPropertyValue(property)) target.setAttribute(property, value);
    else target.removeAttribute(property);
  }
  for (const [property, usual] of Object.entries(OWN)) {
    const value = style.getPropertyValue(property);
    if (value === usual) target.removeAttribute(property);
    else target.setAttribute(property, value);
  }
  for (const name of ["class", "style", "tabindex", "role", "aria-label", "aria-hidden"]) target.removeAttribute(name);
}

/** Ids that no other plot of the same picture has: arrow heads and clips are found by them. */
function ownIds(copy: SVGSVGElement, prefix: string): void {
  const marked = [...copy.querySelectorAll("[id]")];
  for (const element of marked) element.id = prefix + element.id;
  if (marked.length === 0) return;
  for (const element of copy.querySelectorAll("*")) {
    for (const { name, value } of [...element.attributes]) {
      const pointing = value.replace(/^url\(["']?#([^"')]+)["']?\)$/, `url(#${prefix}$1)`);
      if (pointing !== value) element.setAttribute(name, pointing);
      else if (name === "href" && value.startsWith("#")) element.setAttribute(name, `#${prefix}${value.slice(1)}`);
    }
  }
}
