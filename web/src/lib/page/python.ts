/** The lines of Python that reproduce what a view shows, from its state. */
import type { ModelInfo, TextParams } from "../../generated/answers";
import type { UrlState } from "./state.svelte";

export interface ShownState {
  url: Pick<UrlState, "view" | "get">;
  info: Pick<ModelInfo, "name" | "path" | "models" | "heads" | "examples">;
  text: TextParams;
  /** The position whose prediction is explained, and the id of the token that is predicted there. */
  position: number | null;
  token: number | null;
  /** The head that is shown, where the URL does not say it. */
  head?: string | null;
  /** What the model is compared with. */
  other?: { name: string; step: number | undefined } | undefined;
}

/** What each view shows: the first case that lists the view and whose names in braces all have a value. */
const CASES: readonly (readonly [views: string, ...lines: string[]])[] = [
  ["text", "{trace}", "shown = trace.scores({head}).cell(destination={dest}, source={src})"],
  ["text", 'shown = Explorer([{opened}]).answer("attention", {weighted_head})'],
  ["text", 'shown = Explorer([{opened}]).answer("attention", {weighted})'],
  ["text", "{trace}", "shown = trace.pattern({head})[0]  # [destination, source]"],
  ["text", "{trace}", "shown = sum(trace.pattern(head.id)[0] for head in model.heads) / len(model.heads)  # [destination, source]"],
  [
    ...(["story why", "{trace}", "cut = without(trace, [{off}])"] as const),
    "before, after = (run.logits[0, {position}].softmax(-1) for run in (trace, cut))",
    "top = before.maximum(after).topk(8).indices.tolist()",
    "shown = {model.token_text(token): (float(before[token]), float(after[token])) for token in top}",
  ],
  ["story why", "{trace}", "shown = trace.circuit({target})"],
  ["paths", "{trace}", "shown = trace.paths().toward({target})"],
  ["lens", "{trace}", "shown = trace.lens({position}).parts({layer})"],
  ["lens", "{trace}", "shown = trace.lens({position})"],
  ["atlas", "shown = ps.atlas(model)"],
  ["head", 'shown = Explorer([{opened}]).answer("head", {any_head})'],
  ["composition", "shown = virtual_weights(model, {writer}, {reader})"],
  ["composition", "shown = ps.composition(model)"],
  ["training", 'shown = Explorer([{opened}]).answer("training", {})'],
  ["paper", "shown = ps.paper(model)"],
  ["program", "shown = ps.decompile(model, budget={budget})"],
  ["models", 'shown = Explorer([{opened}]).answer("gallery", {})'],
  ["swap", 'shown = Explorer([{opened}]).answer("texts", {texts})'],
  ["compare", "shown = ps.align_heads(model, open_model({other}).at({other_step}))"],
  ["compare", "shown = ps.align_heads(model, ps.load({other}))"],
];

/** Where a name is imported from, if it is used. */
const IMPORTS: readonly (readonly [used: RegExp, line: string])[] = [
  [/\bps\./, "import pathsum as ps"],
  [/\bExplorer\(/, "from pathsum.explorer import Explorer"],
  [/\bopen_model\(/, "from pathsum.explorer import open_model"],
  [/\bwithout\(/, "from pathsum.paths import without"],
  [/\bvirtual_weights\(/, "from pathsum.circuits import virtual_weights"],
];

type Values = Readonly<Record<string, string | number | undefined>>;

const HOLE = /\{(\w+)\}/g;
const literal = (value: string | number): string => JSON.stringify(value);
const dict = (params: Record<string, string | number | undefined>): string =>
  `{${Object.entries(params)
    .flatMap(([key, value]) => (value === undefined ? [] : `${literal(key)}: ${literal(value)}`))
    .join(", ")}}`;

/** Lines that end with `shown`, what the view shows; null for a view that has none. */
export function pythonOf(state: ShownState): string[] | null {
  const values = valuesOf(state);
  const isFull = (lines: readonly string[]): boolean => lines.every((line) => [...line.matchAll(HOLE)].every(([, name]) => values[name!] !== undefined));
  const found = CASES.find(([views, ...lines]) => views.split(" ").includes(state.url.view) && isFull(lines));
  if (!found) return null;
  const lines = found.slice(1).map((line) => line.replace(HOLE, (_, name: string) => String(values[name])));
  const code = lines.some((line) => /\bmodel\b/.test(line)) ? [loading(state), ...lines] : lines;
  return [...IMPORTS.flatMap(([used, line]) => (code.some((each) => used.test(each)) ? line : [])), "", ...code, "print(shown)"];
}

function loading({ info, text }: ShownState): string {
  if (info.path === "") return `model = ...  # ${info.name}, the model that this page was opened with`;
  return text.step === undefined ? `model = ps.load(${literal(info.path)})` : `model = open_model(${literal(info.path)}).at(${text.step})`;
}

/** What can stand in the braces; undefined where the state does not say it. */
function valuesOf({ url, info, text, position, token, head: pointed, other }: ShownState): Values {
  const example = text.example === undefined ? undefined : info.examples[text.example];
  const typed = text.text ?? example?.text ?? undefined;
  const ids = text.ids ?? example?.ids.join(",") ?? "";
  const given = typed === undefined ? { ids } : { text: typed };
  const head = info.heads.find((each) => each === (url.get("head") ?? pointed));
  const [dest, src] = url.get("cell")?.split(".") ?? [];
  const [writer, reader] = url.get("edge")?.split("→") ?? [];
  const weighting = url.get("weighting");
  const versus = { none: "None", undefined: '"mean"' }[String(url.get("versus"))] ?? url.get("versus");
  const weighted = weighting === "attention" ? undefined : { ...given, weighting };
  const { step } = text;
  const quoted = (value: string | undefined): string | undefined => (value === undefined ? undefined : literal(value));
  return {
    opened: info.path === "" ? "model" : literal(info.path),
    trace: `trace = model.trace(${typed === undefined ? `[${ids}]` : literal(typed)})`,
    target: `position=${position ?? -1}, token=${url.get("token") ?? token ?? "None"}, versus=${versus}`,
    position: position ?? -1,
    layer: url.get("layer"),
    head: quoted(head),
    any_head: dict({ head: head ?? info.heads[0] ?? "", step }),
    dest,
    src,
    writer: quoted(writer),
    reader: quoted(reader),
    off: url.get("off").map(literal).join(", ") || undefined,
    weighted_head: weighted && head && dict({ ...weighted, head, precision: "full", step }),
    weighted: weighted && dict({ ...weighted, precision: "full", step }),
    texts: dict({ ...given, position: position ?? 0, other_text: url.get("other_text"), step }),
    budget: url.get("budget"),
    other: quoted(other?.name),
    other_step: other?.step,
  };
}
