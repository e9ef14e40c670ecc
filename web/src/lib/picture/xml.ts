/** Pieces of SVG text. */

/** Characters that XML cannot hold at all, escaped or not. */
const FORBIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Text as it may stand in an element or an attribute, whatever a token spells. */
export const escaped = (text: string): string =>
  text
    .replace(FORBIDDEN, "\ufffd")
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");

/** A number as short as it may be for a picture on a screen. */
export const short = (value: number): string => String(Math.round(100 * value) / 100);

export type Attributes = Record<string, string | number | undefined>;

/** An element with its attributes; those that are undefined are left out. */
export function element(name: string, attributes: Attributes, content = ""): string {
  let start = `<${name}`;
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined) continue;
    start += ` ${key}="${typeof value === "number" ? short(value) : escaped(value)}"`;
  }
  return content === "" ? `${start}/>` : `${start}>${content}</${name}>`;
}

interface Paint {
  color: string;
  alpha: number;
}

/** A computed color as every program reads it, and how opaque it is; null if nothing would be seen. */
export function paint(css: string): Paint | null {
  const numbers = (css.match(/-?[\d.]+(?:e-?\d+)?%?/g) ?? []).map((text) =>
    text.endsWith("%") ? Number(text.slice(0, -1)) / 100 : Number(text),
  );
  const isUnit = css.startsWith("color(");
  if (!isUnit && !css.startsWith("rgb")) return null;
  const [r = 0, g = 0, b = 0, alpha = 1] = numbers;
  if (alpha === 0) return null;
  const byte = (value: number): string =>
    Math.round(Math.min(255, Math.max(0, isUnit ? 255 * value : value)))
      .toString(16)
      .padStart(2, "0");
  return { color: `#${byte(r)}${byte(g)}${byte(b)}`, alpha };
}

/** `fill` or `stroke` of a paint. */
export function painted(what: "fill" | "stroke", value: Paint | null): Attributes {
  if (!value) return { [what]: "none" };
  return { [what]: value.color, [`${what}-opacity`]: value.alpha < 1 ? value.alpha : undefined };
}
