import { mount } from "svelte";
import Root from "./Root.svelte";
import { type ReportFile, ReportSource } from "./lib/source/report";
import { memoryPlace } from "./lib/page/state";
import { inShadow } from "./shadow";

/** Shows a view of a report inside an element of somebody else's page, which keeps its address and its styles. */
export function embed(place: HTMLElement, style: string, file: ReportFile): void {
  const target = inShadow(place, style);
  target.style.height = "100%";
  // In a narrow column the view is longer than its place, and must not cover what comes after it.
  place.style.overflow = "auto";
  mount(Root, { target, props: { source: new ReportSource(file), place: memoryPlace(file.start), wholePage: false } });
}
