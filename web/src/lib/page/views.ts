import type { Source } from "../source/source";

export interface View {
  readonly name: string;
  readonly title: string;
  /** The digit that opens it. */
  readonly key?: string;
}

/** A tab and its views. The first view of the first tab is what a link without a view shows. */
interface Tab {
  readonly title: string;
  readonly views: readonly View[];
}

export const TABS: readonly Tab[] = [
  {
    title: "Story",
    views: [
      { name: "story", title: "Story", key: "0" },
      { name: "text", title: "Text", key: "1" },
      { name: "why", title: "Why", key: "2" },
      { name: "paths", title: "Paths", key: "5" },
      { name: "lens", title: "Lens" },
    ],
  },
  {
    title: "Heads",
    views: [
      { name: "atlas", title: "Atlas", key: "3" },
      { name: "composition", title: "Composition", key: "4" },
      { name: "compare", title: "Compare", key: "8" },
      // The page of one head is opened from everywhere, and is no section by itself.
      { name: "head", title: "" },
    ],
  },
  { title: "Training", views: [{ name: "training", title: "Training", key: "6" }] },
  { title: "Paper", views: [{ name: "paper", title: "Paper", key: "7" }] },
  { title: "Swap", views: [{ name: "swap", title: "Swap", key: "S" }] },
  { title: "Program", views: [{ name: "program", title: "Program", key: "R" }] },
  { title: "Models", views: [{ name: "models", title: "Models", key: "9" }] },
];

export const VIEWS: readonly View[] = TABS.flatMap((tab) => tab.views);

/** The tabs with the views that this source holds: a report holds some. */
export function heldTabs({ views }: Pick<Source, "views">): readonly Tab[] {
  return TABS.map((tab) => ({ ...tab, views: tab.views.filter(({ name }) => views?.includes(name) ?? true) })).filter((tab) => tab.views.length > 0);
}
