import type { Component } from "svelte";
import Atlas from "./views/atlas/View.svelte";
import Compare from "./views/compare/View.svelte";
import Composition from "./views/composition/View.svelte";
import Head from "./views/head/View.svelte";
import Lens from "./views/lens/View.svelte";
import Models from "./views/models/View.svelte";
import Paper from "./views/paper/View.svelte";
import Paths from "./views/paths/View.svelte";
import Program from "./views/program/View.svelte";
import Story from "./views/story/View.svelte";
import Swap from "./views/swap/View.svelte";
import Text from "./views/text/View.svelte";
import Training from "./views/training/View.svelte";
import Why from "./views/why/View.svelte";

/** The component of each view of `lib/page/views.ts`. */
export const COMPONENTS: Readonly<Record<string, Component>> = {
  story: Story,
  text: Text,
  why: Why,
  paths: Paths,
  lens: Lens,
  atlas: Atlas,
  composition: Composition,
  compare: Compare,
  head: Head,
  training: Training,
  paper: Paper,
  swap: Swap,
  program: Program,
  models: Models,
};
