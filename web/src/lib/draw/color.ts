/**
 * Colors, each with one meaning. Attention: one hue on paper. Signed effects: blue raises, orange lowers,
 * 0 is paper. Q, K, V, U, G: a hue and a line style each. All hold for color-blind readers.
 */
import type { Side } from "../names";
export type Mode = "light" | "dark";
export type Rgb = readonly [number, number, number];

interface Palette {
  paper: Rgb;
  ink: Rgb;
  faint: Rgb;
  sequential: readonly Rgb[];
  positive: readonly Rgb[];
  negative: readonly Rgb[];
}

const rgb = (hex: string): Rgb => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16)) as unknown as Rgb;
const ramps = (...hex: string[]): readonly Rgb[] => hex.map(rgb);

const PALETTES: Record<Mode, Palette> = {
  light: {
    paper: rgb("#ffffff"),
    ink: rgb("#1c1c1e"),
    faint: rgb("#8c8c92"),
    sequential: ramps("#ffffff", "#e0d6f0", "#ad94d6", "#7450af", "#3f187d"),
    positive: ramps("#ffffff", "#c9dff3", "#74adde", "#236fb6", "#083c78"),
    negative: ramps("#ffffff", "#fdddbe", "#f5a65c", "#d4600e", "#8a3400"),
  },
  dark: {
    paper: rgb("#18191c"),
    ink: rgb("#eaeaee"),
    faint: rgb("#8c8d96"),
    sequential: ramps("#18191c", "#443668", "#7056ac", "#a58ce0", "#e0d3ff"),
    positive: ramps("#18191c", "#17324e", "#215c93", "#549cdb", "#baddff"),
    negative: ramps("#18191c", "#4a2a0e", "#8c4b10", "#e08632", "#ffd3a6"),
  },
};

export const palette = (mode: Mode): Palette => PALETTES[mode];

function ramp(stops: readonly Rgb[], share: number): Rgb {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  const a = stops[low] as Rgb;
  const b = stops[low + 1] as Rgb;
  const t = at - low;
  return [a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1]), a[2] + t * (b[2] - a[2])];
}

/** Attention-like values from 0 to 1. */
export const sequential = (share: number, mode: Mode): Rgb => ramp(PALETTES[mode].sequential, share);

/** Signed values from −1 to 1; 0 is the paper's own color. */
export function diverging(share: number, mode: Mode): Rgb {
  const stops = share >= 0 ? PALETTES[mode].positive : PALETTES[mode].negative;
  return ramp(stops, Math.abs(share));
}

export const css = ([r, g, b]: Rgb, alpha = 1): string =>
  alpha === 1
    ? `rgb(${Math.round(r)} ${Math.round(g)} ${Math.round(b)})`
    : `rgb(${Math.round(r)} ${Math.round(g)} ${Math.round(b)} / ${alpha})`;

/** Dark or light letters, whichever reads better on this ground. */
export function inkOn(ground: Rgb): string {
  // Pure black and white: one of them has a contrast of 4.5 and more with every color there is.
  return contrast(ground, [0, 0, 0]) >= contrast(ground, [255, 255, 255]) ? "#000000" : "#ffffff";
}

function luminance(color: Rgb): number {
  const linear = color.map((c) => {
    const s = c / 255;
    return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

/** The contrast of two colors as WCAG defines it, from 1 to 21. */
export function contrast(a: Rgb, b: Rgb): number {
  const [x, y] = [luminance(a), luminance(b)];
  return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
}

export type Scale = "sequential" | "diverging";

/** 256 colors of a scale as 32-bit little-endian RGBA, for writing pixels. Diverging: −1 is entry 0. */
export function table(scale: Scale, mode: Mode): Uint32Array {
  const cached = tables.get(`${scale}-${mode}`);
  if (cached) return cached;
  const out = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const share = scale === "sequential" ? i / 255 : (i - 127.5) / 127.5;
    // The middle entry must be paper itself, or an empty matrix would be tinted.
    const exact = scale === "diverging" && Math.abs(share) < 0.005 ? 0 : share;
    const [r, g, b] = scale === "sequential" ? sequential(exact, mode) : diverging(exact, mode);
    out[i] = (255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r);
  }
  tables.set(`${scale}-${mode}`, out);
  return out;
}
const tables = new Map<string, Uint32Array>();

/** The color a value has on a scale whose largest size is `extent`. */
export function colorOf(value: number, extent: number, scale: Scale, mode: Mode): Rgb {
  const share = extent > 0 && Number.isFinite(value) ? value / extent : 0;
  return scale === "sequential" ? sequential(share, mode) : diverging(share, mode);
}

/** How Q-, K- and V-composition and the two sides of MLPs are drawn wherever they appear; their hues are in `app.css`. */
export const KINDS: Record<Side, { dash: string; name: string }> = {
  q: { dash: "7 4", name: "query" },
  k: { dash: "2 3", name: "key" },
  v: { dash: "none", name: "value" },
  u: { dash: "none", name: "moved by an MLP" },
  g: { dash: "4 3", name: "gate" },
};

export type LineStyle = Record<Mode | "dash" | "name", string>;
/** How several heads on one text are told apart: a hue and a line style each, always with their names. */
export const HEAD_STYLES: readonly LineStyle[] = [
  { light: "#0067a5", dark: "#6cb8ff", dash: "none", name: "solid" },
  { light: "#b84a00", dark: "#ffa35c", dash: "7 3", name: "dashed" },
  { light: "#00795a", dark: "#4fd6a8", dash: "2 3", name: "dotted" },
  { light: "#9a3f86", dark: "#ec9bd8", dash: "9 3 2 3", name: "dash and dot" },
];
