/** The lines of Python that reproduce what a view shows, from its state. */
import type { ModelInfo, TextParams } from "../generated/answers";

export interface ShownState {
  view: string;
  get: (key: string) => string | undefined;
  info: Pick<ModelInfo, "name" | "path" | "models" | "heads" | "examples">;
  text: TextParams;
  /** The position whose prediction is explained, and the id of the token that is predicted there. */
  position: number | null;
  token: number | null;
  /** The head that is shown, where the state does not say it. */
  head?: string | null;
}

const literal = (value: string | number): string => JSON.stringify(value);
const dict = (params: object): string =>
  `{${Object.entries(params)
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => `${literal(key)}: ${literal(value as string | number)}`)
    .join(", ")}}`;

/** Lines that end with `shown`, what the view shows; null for a view that has none. */
export function pythonOf(state: ShownState): string[] | null {
  const lines = VIEWS[state.view]?.(state);
  return lines ? arranged([...load(state), ...lines, "print(shown)"]) : null;
}

const IMPORT = /^(import|from) /;

/** Imports first, and neither a model nor an import that nothing uses. */
function arranged(lines: readonly string[]): string[] {
  let code = lines.filter((line) => line !== "" && !IMPORT.test(line));
  const isUsed = (name: string, from: readonly string[]): boolean => from.some((line) => new RegExp(`\\b${name}\\b`).test(line));
  const [first = "", ...rest] = code;
  if (first.startsWith("model = ") && !isUsed("model", rest)) code = rest;
  const imports = lines.filter((line) => IMPORT.test(line) && isUsed(line.split(" ").at(-1) ?? "", code));
  return [...imports, "", ...code];
}

function load({ info, text }: ShownState): string[] {
  const imports = ["import pathsum as ps"];
  if (info.path === "") return [...imports, "", `model = ...  # ${info.name}, the model that this page was opened with`];
  if (text.step === undefined) return [...imports, "", `model = ps.load(${literal(info.path)})`];
  return [
    ...imports,
    "from pathsum.explorer import open_model",
    "",
    `model = open_model(${literal(info.path)}).at(${text.step})`,
  ];
}

/** The text of the page: as it was typed, or its tokens. */
function given({ info, text }: ShownState): { text?: string; ids?: string } {
  const example = text.example === undefined ? undefined : info.examples[text.example];
  const typed = text.text ?? example?.text;
  return typeof typed === "string" ? { text: typed } : { ids: text.ids ?? example?.ids.join(",") ?? "" };
}

function trace(state: ShownState): string {
  const { text, ids } = given(state);
  return `trace = model.trace(${text === undefined ? `[${ids}]` : literal(text)})`;
}

/** The options that choose the prediction, as `circuit` and `toward` take them. */
function target({ get, position, token }: ShownState): string {
  const versus = get("vs");
  const against = versus === "none" ? "None" : versus !== undefined && /^\d+$/.test(versus) ? versus : '"mean"';
  return `position=${position ?? -1}, token=${get("tok") ?? token ?? "None"}, versus=${against}`;
}

/** What only the page computes is asked of it in the same words. */
function asked(state: ShownState, question: string, params: object): string[] {
  const { step } = state.text;
  const first = state.info.path === "" ? "model" : literal(state.info.path);
  return [
    "from pathsum.explorer import Explorer",
    "",
    `shown = Explorer([${first}]).answer(${literal(question)}, ${dict({ ...params, ...(step === undefined ? {} : { step }) })})`,
  ];
}

const known = (state: ShownState): string | undefined =>
  state.info.heads.find((head) => head === (state.get("h") ?? state.head));

const VIEWS: Record<string, (state: ShownState) => string[]> = {
  text: (state) => {
    const head = known(state);
    const cell = /^(\d+)\.(\d+)$/.exec(state.get("d") ?? "");
    if (cell && head) return [trace(state), `shown = trace.scores(${literal(head)}).cell(destination=${cell[1]}, source=${cell[2]})`];
    const weighting = state.get("w");
    if (weighting === "information" || weighting === "effect") {
      return asked(state, "attention", { ...given(state), weighting, ...(head ? { head } : {}), precision: "full" });
    }
    if (head) return [trace(state), `shown = trace.pattern(${literal(head)})[0]  # [destination, source]`];
    return [trace(state), "shown = sum(trace.pattern(head.id)[0] for head in model.heads) / len(model.heads)  # [destination, source]"];
  },
  why: (state) => {
    const off = state.get("off");
    if (off === undefined) return [trace(state), `shown = trace.circuit(${target(state)})`];
    return [
      "from pathsum.paths import without",
      "",
      trace(state),
      `cut = without(trace, [${off.split(",").map(literal).join(", ")}])`,
      `before, after = (run.logits[0, ${state.position ?? -1}].softmax(-1) for run in (trace, cut))`,
      "top = before.maximum(after).topk(8).indices.tolist()",
      "shown = {model.token_text(token): (float(before[token]), float(after[token])) for token in top}",
    ];
  },
  paths: (state) => [trace(state), `shown = trace.paths().toward(${target(state)})`],
  atlas: () => ["shown = ps.atlas(model)"],
  head: (state) => {
    const head = known(state) ?? state.info.heads[0];
    return [`head = model.head(${literal(head ?? "")})`, "shown = head.full_ov.topk(10)  # also head.full_qk, ps.skip_trigrams(model, ...)"];
  },
  composition: (state) => {
    const edge = state.get("edge");
    if (edge === undefined) return ["shown = ps.composition(model)"];
    const [writer = "", read = ""] = edge.split("→");
    return ["from pathsum.circuits import virtual_weights", "", `shown = virtual_weights(model, ${literal(writer)}, ${literal(read)})`];
  },
  training: ({ info }) => [`shown = ps.dynamics(${literal(info.path)})`],
  paper: () => ["shown = ps.paper(model)"],
  compare: (state) => {
    if (state.get("what") === "texts") {
      const other = state.get("x2");
      return asked(state, "texts", {
        ...given(state),
        position: state.position ?? 0,
        ...(other === undefined ? {} : { other_text: other }),
      });
    }
    const other = state.get("other") ?? state.info.models.find((name) => name !== state.info.name) ?? state.info.name;
    const step = state.get("os");
    if (step === undefined) return [`shown = ps.align_heads(model, ps.load(${literal(other)}))`];
    return ["from pathsum.explorer import open_model", "", `shown = ps.align_heads(model, open_model(${literal(other)}).at(${step}))`];
  },
};
