import { describe, expect, it } from "vitest";
import type { Mode } from "../draw/color";
import { notebookMode, type Surroundings } from "./surroundings";
import { Theme } from "./theme.svelte";

const body = (classes: string[], dataset: Record<string, string> = {}) =>
  ({ dataset, classList: { contains: (name: string) => classes.includes(name) } }) as unknown as HTMLElement;

function around(mode: Mode, chosen: Mode | null = null): Surroundings & { become(mode: Mode): void; kept: Mode | null } {
  const listeners = new Set<() => void>();
  return {
    kept: chosen,
    mode: () => mode,
    listen: (changed) => {
      listeners.add(changed);
      return () => void listeners.delete(changed);
    },
    chosen() {
      return this.kept;
    },
    choose(choice) {
      this.kept = choice;
    },
    become(next) {
      mode = next;
      listeners.forEach((changed) => changed());
    },
  };
}

describe("light or dark", () => {
  it("follows the surroundings until it is closed", () => {
    const place = around("light");
    const theme = new Theme(place);
    expect(theme.mode).toBe("light");
    place.become("dark");
    expect(theme.mode).toBe("dark");
    theme.close();
    place.become("light");
    expect(theme.mode).toBe("dark");
  });

  it("is what the reader chose, whatever is around", () => {
    const place = around("dark");
    const theme = new Theme(place);
    theme.toggle();
    expect([theme.mode, place.kept]).toEqual(["light", "light"]);
    place.become("dark");
    expect(theme.mode).toBe("light");
    expect(new Theme(around("light", "dark")).mode).toBe("dark");
  });

  it.each([
    ["JupyterLab, dark", body([], { jpThemeLight: "false" }), "dark"],
    ["JupyterLab, light", body([], { jpThemeLight: "true" }), "light"],
    ["marimo, dark", body(["dark", "dark-theme"]), "dark"],
    ["marimo, light", body(["light", "light-theme"]), "light"],
    ["neither", body(["dark-blue"]), null],
  ])("knows the notebook's theme: %s", (_, shown, mode) => {
    expect(notebookMode(shown)).toBe(mode);
  });
});
