import type { View } from "./lib/page/views";
import Atlas from "./views/atlas/View.svelte";
import Compare from "./views/compare/View.svelte";
import Composition from "./views/composition/View.svelte";
import Head from "./views/head/View.svelte";
import Models from "./views/models/View.svelte";
import Paper from "./views/paper/View.svelte";
import Paths from "./views/paths/View.svelte";
import Story from "./views/story/View.svelte";
import Text from "./views/text/View.svelte";
import Training from "./views/training/View.svelte";
import Why from "./views/why/View.svelte";

/** The first is what a link without a view shows. The head page belongs to the atlas and has no tab. */
export const VIEWS: readonly View[] = [
  { name: "story", title: "Story", key: "0", component: Story },
  { name: "text", title: "Text", key: "1", component: Text },
  { name: "why", title: "Why", key: "2", component: Why },
  { name: "atlas", title: "Atlas", key: "3", component: Atlas },
  { name: "composition", title: "Composition", key: "4", component: Composition },
  { name: "paths", title: "Paths", key: "5", component: Paths },
  { name: "training", title: "Training", key: "6", component: Training },
  { name: "paper", title: "Paper", key: "7", component: Paper },
  { name: "compare", title: "Compare", key: "8", component: Compare },
  { name: "models", title: "Models", key: "9", component: Models },
  { name: "head", title: "Head", key: null, component: Head },
];
