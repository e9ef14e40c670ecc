/** A place inside an element whose styles are its own, so that neither's styles touch the other's. */
export function inShadow(element: HTMLElement, css: string): HTMLElement {
  const shadow = element.shadowRoot ?? element.attachShadow({ mode: "open" });
  const style = document.createElement("style");
  style.textContent = css;
  const target = document.createElement("div");
  shadow.replaceChildren(style, target);
  return target;
}
