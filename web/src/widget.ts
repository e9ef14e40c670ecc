import { mount, unmount } from "svelte";
import Root from "./Root.svelte";
import { NotebookSource, type WidgetModel } from "./lib/source/notebook";
import { memoryPlace } from "./lib/page/state";
import { type ReportFile, ReportSource } from "./lib/source/report";

const HEIGHT = 760;

/** What anywidget hands over. */
interface Rendered {
  model: WidgetModel;
  el: HTMLElement;
}

/**
 * The page in a notebook's cell, inside a shadow root, so that neither's styles touch the other's. The widget
 * brings `page_style` (the text of app.css), `height` in pixels and `place` (where to begin, a hash).
 */
export function render({ model, el }: Rendered): () => void {
  const text = (name: string): string => {
    const value = model.get(name);
    return typeof value === "string" ? value : "";
  };
  const target = inShadow(el, text("page_style"));
  const height = model.get("height");
  target.style.height = `${typeof height === "number" ? height : HEIGHT}px`;
  // JupyterLab's one-letter commands would act on the notebook while the page's keys are meant.
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  const source = new NotebookSource(model);
  const app = mount(Root, { target, props: { source, place: memoryPlace(text("place")), wholePage: false } });
  return () => {
    source.close();
    void unmount(app);
  };
}

/** Shows a view of a report inside an element of somebody else's page, which keeps its address and its styles. */
export function embed(place: HTMLElement, style: string, file: ReportFile): void {
  const target = inShadow(place, style);
  target.style.height = "100%";
  // In a narrow column the view is longer than its place, and must not cover what comes after it.
  place.style.overflow = "auto";
  mount(Root, { target, props: { source: new ReportSource(file), place: memoryPlace(file.start), wholePage: false } });
}

/** A place inside an element whose styles are its own, so that neither's styles touch the other's. */
function inShadow(element: HTMLElement, css: string): HTMLElement {
  const shadow = element.shadowRoot ?? element.attachShadow({ mode: "open" });
  const style = document.createElement("style");
  style.textContent = css;
  const target = document.createElement("div");
  shadow.replaceChildren(style, target);
  return target;
}
