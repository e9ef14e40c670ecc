import type { Contrast } from "./draw/matrix";
import type { UrlState } from "./state.svelte";

export const CONTRASTS: readonly { value: Contrast; label: string; about: string }[] = [
  { value: "linear", label: "linear", about: "Color follows the number" },
  { value: "sqrt", label: "√", about: "Color follows the square root: diffuse attention becomes visible" },
  { value: "row", label: "per row", about: "The largest of each row is darkest" },
];

/** How attention becomes color, wherever a pattern is drawn. */
export const contrastOf = (url: UrlState): Contrast =>
  CONTRASTS.find((item) => item.value === url.get("ct"))?.value ?? "linear";
