import type { Mode } from "./colour";

/** Light or dark: the system's wish unless the reader chose. */
export class Theme {
  private chosen = $state<Mode | null>(null);
  private system = $state<Mode>("light");

  constructor() {
    const query = matchMedia("(prefers-color-scheme: dark)");
    this.system = query.matches ? "dark" : "light";
    query.addEventListener("change", (event) => {
      this.system = event.matches ? "dark" : "light";
    });
    this.chosen = remembered();
  }

  get mode(): Mode {
    return this.chosen ?? this.system;
  }

  toggle(): void {
    this.chosen = this.mode === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("pathsum-theme", this.chosen);
    } catch {
      // A page opened from disk may have no storage: the choice then lasts as long as the page.
    }
  }
}

function remembered(): Mode | null {
  try {
    const value = localStorage.getItem("pathsum-theme");
    return value === "dark" || value === "light" ? value : null;
  } catch {
    return null;
  }
}
