import type { Component } from "svelte";
import type { ModelInfo } from "../../generated/answers";
import type { Source } from "../source/source";

export interface ViewProps {
  source: Source;
  info: ModelInfo;
}

export interface View {
  name: string;
  title: string;
  /** The digit that opens it, if it has a tab. */
  key: string | null;
  component: Component<ViewProps>;
}
