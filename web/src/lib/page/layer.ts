import { hasContext, setContext } from "svelte";

const KEY = Symbol("layer");

/** Views below this component are layers of another view: the text, its box and the header are above them. */
export const provideLayer = (): void => void setContext(KEY, true);

/** Whether this is part of a layer. To be called while a component is set up. */
export const isLayer = (): boolean => hasContext(KEY);
