import { tick } from "svelte";
import { css, palette } from "./color";
import { downloadPicture, type PictureKind } from "./export";
import type { Explorer } from "./explorer.svelte";
import { pictureOf } from "./picture/page";

const PATIENCE_MS = 60_000;
const rest = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** An element as one picture, including what is scrolled out of view or not loaded yet. */
export async function savePicture(explorer: Explorer, element: HTMLElement, file: string, kind: PictureKind): Promise<void> {
  explorer.whole = true;
  try {
    await tick();
    const end = Date.now() + PATIENCE_MS;
    while (explorer.source.pending > 0 && Date.now() < end) await rest(50);
    await tick();
    // Two frames: what was answered is drawn then.
    await rest(40);
    const status = [...explorer.root.querySelectorAll("footer span")].map((part) => part.textContent.trim()).join(" · ");
    const ground = css(palette(explorer.theme.mode).paper);
    await downloadPicture(file, pictureOf(element, status, ground), kind);
  } finally {
    explorer.whole = false;
  }
}
