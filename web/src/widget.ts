import { mount, unmount } from "svelte";
import Root from "./Root.svelte";
import { NotebookSource, type WidgetModel } from "./lib/source/notebook";
import { memoryPlace } from "./lib/page/state";
import { inShadow } from "./shadow";

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
