/** Colors of tokens: few enough to be made once, enough to hide the steps. */
import { colorOf, css, inkOn, type Mode, type Scale } from "./color";

export const SHADES = 64;

interface Shade {
  ground: string;
  ink: string;
}

/** Which of the shades a value has: from −SHADES to SHADES, 0 for none. */
export function shadeOf(value: number, extent: number): number {
  const shade = Math.round((SHADES * value) / extent);
  if (!Number.isFinite(shade)) return 0;
  return Math.min(SHADES, Math.max(-SHADES, shade)) + 0;
}

const made = new Map<string, readonly Shade[]>();

/** All shades of a scale; that of `shadeOf` is at `shade + SHADES`. */
export function shades(scale: Scale, mode: Mode): readonly Shade[] {
  const name = `${scale} ${mode}`;
  const known = made.get(name);
  if (known) return known;
  const all = Array.from({ length: 2 * SHADES + 1 }, (_, i) => {
    const color = colorOf((i - SHADES) / SHADES, 1, scale, mode);
    return { ground: css(color), ink: inkOn(color) };
  });
  made.set(name, all);
  return all;
}
