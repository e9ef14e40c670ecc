/** Which scores a scatter shows on its axes, and ready choices of them. */
import { colorOf, type Mode, type Rgb, type Scale } from "../../lib/draw/color";
import type { StateValues } from "../../lib/page/state";
import type { UrlState } from "../../lib/page/state.svelte";
import { type AtlasScore, type AtlasTable, scoreNamed } from "./table";

export interface Axes {
  readonly x: string;
  readonly y: string;
  /** A score, or "" for one size and one color. */
  readonly size: string;
  readonly color: string;
}

interface Preset {
  readonly name: string;
  readonly title: string;
  readonly about: string;
  readonly axes: Axes;
}

const PRESETS: readonly Preset[] = [
  {
    name: "induction",
    title: "the paper's induction scatter",
    about:
      "Induction heads copy (right) and match tokens with themselves through a previous-token head (top).",
    axes: {
      x: "copying_weights",
      y: "matching_through_previous",
      size: "induction",
      color: "prefix_matching",
    },
  },
  {
    name: "corner",
    title: "copying weights, matching data",
    about: "Induction heads copy the token they attend to (right) and attend to the token that followed an earlier copy (top).",
    axes: { x: "copying_weights", y: "prefix_matching", size: "induction", color: "prefix_matching" },
  },
  {
    name: "behavior",
    title: "prefix matching and copying on data",
    about: "Induction heads on repeated random tokens: they attend to the token that came next and raise its logit.",
    axes: { x: "prefix_matching", y: "copying", size: "", color: "copying_weights" },
  },
  {
    name: "position",
    title: "previous token and first token",
    about: "Previous-token heads (right), and heads that rest on the first token (top).",
    axes: { x: "previous_token", y: "first_token", size: "", color: "prefix_matching" },
  },
];

/** The ready choices whose scores this atlas has. */
export function presetsFor(atlas: AtlasTable): readonly Preset[] {
  const has = (name: string) => name === "" || scoreNamed(atlas, name) !== undefined;
  return PRESETS.filter(({ axes }) => [axes.x, axes.y, axes.size, axes.color].every(has));
}

function usualAxes(atlas: AtlasTable): Axes {
  const [first, second] = atlas.scores;
  const any = { x: first?.name ?? "", y: second?.name ?? first?.name ?? "", size: "", color: "" };
  return presetsFor(atlas)[0]?.axes ?? any;
}

/** The axes in the URL, each falling back to the first preset's where the score is not known. */
export function axesFrom(url: Pick<UrlState, "get">, atlas: AtlasTable): Axes {
  const usual = usualAxes(atlas);
  const known = (key: keyof Axes): string => {
    const name = url.get(key);
    if (name === "none" && (key === "size" || key === "color")) return "";
    return name !== undefined && scoreNamed(atlas, name) ? name : usual[key];
  };
  return { x: known("x"), y: known("y"), size: known("size"), color: known("color") };
}

/** What the URL says for these axes. */
export const axesState = (axes: Axes): StateValues => ({ ...axes, size: axes.size || "none", color: axes.color || "none" });

/** A score's name for readers. */
export function titleOf(atlas: AtlasTable, name: string): string {
  return scoreNamed(atlas, name)?.title ?? name;
}

/** How a score becomes color, the same wherever the atlas shows it. */
export function scoreScale(score: Pick<AtlasScore, "ceiling" | "readings">): { extent: number; scale: Scale } {
  // Scores that can be negative need a scale with two sides.
  const isSigned = score.readings.some((each) => each.value < -0.02);
  return { extent: score.ceiling ?? 1, scale: isSigned ? "diverging" : "sequential" };
}

/** The color of one head's score. */
export function scoreColor(score: Pick<AtlasScore, "ceiling" | "readings">, value: number, mode: Mode): Rgb {
  const { extent, scale } = scoreScale(score);
  return colorOf(value, extent, scale, mode);
}
