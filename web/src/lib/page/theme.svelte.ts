import type { Mode } from "../draw/color";
import type { Surroundings } from "./surroundings";

/** Light or dark: what the surroundings are unless the reader chose. */
export class Theme {
  private chosen = $state<Mode | null>(null);
  private around = $state<Mode>("light");
  /** No longer follows the surroundings. */
  readonly close: () => void;

  constructor(private readonly surroundings: Surroundings) {
    this.around = surroundings.mode();
    this.chosen = surroundings.chosen();
    this.close = surroundings.listen(() => {
      this.around = surroundings.mode();
    });
  }

  get mode(): Mode {
    return this.chosen ?? this.around;
  }

  toggle(): void {
    this.chosen = this.mode === "dark" ? "light" : "dark";
    this.surroundings.choose(this.chosen);
  }
}
