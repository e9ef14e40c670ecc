import type { Mode } from "../draw/color";

/** What is around the page and says whether it should be light or dark. */
export interface Surroundings {
  mode(): Mode;
  /** Calls back when the mode may be another; returns what stops it. */
  listen(changed: () => void): () => void;
  /** What the reader chose at an earlier visit, if that is kept here. */
  chosen(): Mode | null;
  choose(mode: Mode): void;
}

const KEY = "pathsum-theme";
const DARK = "(prefers-color-scheme: dark)";

const systemMode = (): Mode => (matchMedia(DARK).matches ? "dark" : "light");

function listenToSystem(changed: () => void): () => void {
  const query = matchMedia(DARK);
  query.addEventListener("change", changed);
  return () => query.removeEventListener("change", changed);
}

/** A page of its own: the system's wish, and the reader's choice is kept for the next visit. */
export const ownPage: Surroundings = {
  mode: systemMode,
  listen: listenToSystem,
  chosen: () => {
    try {
      const value = localStorage.getItem(KEY);
      return value === "dark" || value === "light" ? value : null;
    } catch {
      return null;
    }
  },
  choose: (mode) => {
    try {
      localStorage.setItem(KEY, mode);
    } catch {
      // A page opened from disk may have no storage: the choice then lasts as long as the page.
    }
  },
};

/** The theme that a notebook shows itself in, as it says on its body; null if it says nothing. */
export function notebookMode(body: Pick<HTMLElement, "dataset" | "classList">): Mode | null {
  const jupyter = body.dataset["jpThemeLight"];
  if (jupyter !== undefined) return jupyter === "false" ? "dark" : "light";
  // marimo
  if (body.classList.contains("dark")) return "dark";
  return body.classList.contains("light") ? "light" : null;
}

/**
 * A cell of a notebook: the notebook's theme, or the system's wish where the notebook says nothing. A choice lasts
 * as long as the widget: kept for longer, it would set every other widget against its notebook.
 */
export const notebookCell: Surroundings = {
  mode: () => notebookMode(document.body) ?? systemMode(),
  listen: (changed) => {
    const observer = new MutationObserver(changed);
    observer.observe(document.body, { attributes: true, attributeFilter: ["class", "data-jp-theme-light"] });
    const stop = listenToSystem(changed);
    return () => {
      observer.disconnect();
      stop();
    };
  },
  chosen: () => null,
  choose: () => undefined,
};
