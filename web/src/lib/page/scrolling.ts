/**
 * How far each page of the history was scrolled: another view begins at its top, and the back button returns to
 * where the reader was.
 */
export class ScrollMemory {
  private readonly places = new Map<string, number>();
  private here: { view: string; hash: string } | null = null;
  private isReturn = false;
  private top = 0;

  /** Hears of the back button; call it before anything that follows the address listens. Returns what ends it. */
  listen(): () => void {
    const back = (): void => {
      this.returning(true);
      // What follows from it has followed by then.
      setTimeout(() => this.returning(false));
    };
    addEventListener("popstate", back);
    return () => removeEventListener("popstate", back);
  }

  get isReturning(): boolean {
    return this.isReturn;
  }

  /** How far the page was scrolled when that was last heard. */
  get lastTop(): number {
    return this.top;
  }

  /** Whether a change of the address is the back or forward button's. */
  returning(isReturn: boolean): void {
    this.isReturn = isReturn;
  }

  /** The page has been scrolled. Kept as it happens: once the address has changed, the old page is gone. */
  scrolledTo(top: number): void {
    this.top = top;
  }

  /**
   * The address has changed. Returns where to scroll: null leaves the page alone, as within a view, whose parts
   * change in place.
   */
  moved(view: string, hash: string): number | null {
    const left = this.here;
    this.here = { view, hash };
    if (left === null || left.hash === hash) return null;
    this.places.set(left.hash, this.top);
    const isOther = view !== left.view;
    if (!isOther) return null;
    this.top = 0;
    return this.isReturn ? (this.places.get(hash) ?? 0) : 0;
  }
}

/** The part of a page that is at the top of what is seen, and how far below that top it begins. */
export interface Anchor {
  readonly part: string;
  readonly below: number;
}

const partsOf = (scroller: HTMLElement): HTMLElement[] => [...scroller.querySelectorAll<HTMLElement>("section[aria-label]")];
const belowTop = (part: HTMLElement, scroller: HTMLElement): number => {
  const top = scroller === document.scrollingElement ? 0 : scroller.getBoundingClientRect().top;
  return part.getBoundingClientRect().top - top;
};

/** Parts above may have another height when the reader returns, because parts are computed when they are seen. */
export function anchorOf(scroller: HTMLElement): Anchor | null {
  const part = partsOf(scroller).find((each) => belowTop(each, scroller) + each.offsetHeight > 0);
  return part ? { part: part.getAttribute("aria-label") as string, below: belowTop(part, scroller) } : null;
}

const PATIENCE_MS = 4000;
const SETTLED_MS = 700;

/**
 * Scrolls to a place that may not exist until answers have arrived, and stays there while the page grows; gives up
 * when the reader scrolls. Returns what stops it.
 */
export function scrollTo(scroller: HTMLElement, top: number, anchor: Anchor | null = null): () => void {
  const until = performance.now() + PATIENCE_MS;
  let frame = 0;
  let height = 0;
  let since = performance.now();
  const gestures = ["wheel", "touchmove", "keydown", "pointerdown"] as const;
  const stop = (): void => {
    cancelAnimationFrame(frame);
    for (const name of gestures) removeEventListener(name, stop, true);
  };
  const step = (): void => {
    const now = performance.now();
    if (scroller.scrollHeight !== height) {
      height = scroller.scrollHeight;
      since = now;
    }
    const part = anchor && partsOf(scroller).find((each) => each.getAttribute("aria-label") === anchor.part);
    const off = anchor && part ? belowTop(part, scroller) - anchor.below : top - scroller.scrollTop;
    if (Math.abs(off) > 1) scroller.scrollTop += off;
    // Content above or below what is seen may still arrive; the top of a page is where it is.
    const isSettled = (top === 0 && !anchor) || now - since > SETTLED_MS;
    const isThere = Math.abs(off) <= 1 && isSettled;
    if (isThere || now > until) return stop();
    frame = requestAnimationFrame(step);
  };
  for (const name of gestures) addEventListener(name, stop, true);
  step();
  return stop;
}
