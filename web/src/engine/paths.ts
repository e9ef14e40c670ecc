/** One prediction as a sum over paths: every path's value, split by the position that it begins at. */
import type { Breakdown, Grid, PathExplanation, Routes } from "../generated/answers";
import { layerOf } from "../lib/names";
import { add, dot, largest, rowOf, softmax, sum, transposed } from "../lib/algebra";
import { type Engine, matrix, type Prediction, targetOf } from "./engine";
import type { Trace } from "./run";

/** Positions of a route are listed from this share of the strongest on, at most so many, for so many paths. */
const LEAST_SHARE = 1e-4;
const SOURCES = 5;
const ROUTES = 40;

interface ValuedPath {
  heads: string[];
  /** By the position of the token that it begins at. */
  values: Float64Array;
  value: number;
}

/** The gradient below a head, of a gradient above it, with its pattern held: [position, width]. */
function throughHead(trace: Trace, label: string, gradient: Float64Array): Float64Array {
  const { model, length } = trace;
  const pattern = trace.pattern(label);
  const atZ = transposed(gradient, model.matrix("O", label), model.width);
  const atValues = new Float64Array(gradient.length / model.width * model.headWidth);
  for (let to = 0; to < atValues.length / model.headWidth; to++) {
    const row = rowOf(atZ, to, model.headWidth);
    if (row.every((value) => value === 0)) continue;
    for (let from = 0; from <= to; from++) add(atValues, row, pattern[to * length + from], from * model.headWidth);
  }
  return transposed(atValues, model.matrix("V", label), model.headWidth);
}

/** All paths, each evaluated once; those that end in the same heads share the work. */
function allPaths({ trace, position, token, versus }: Prediction): ValuedPath[] {
  const { model } = trace;
  const found: ValuedPath[] = [];
  const grow = (heads: string[], gradient: Float64Array, below: number): void => {
    const values = new Float64Array(position + 1);
    for (let at = 0; at <= position; at++) values[at] = dot(trace.streams[0] as Float64Array, at * model.width, gradient, at * model.width, model.width);
    found.push({ heads, values, value: sum(values) });
    for (const label of model.labels.slice(0, below * model.heads)) {
      grow([label, ...heads], throughHead(trace, label, gradient), layerOf(label));
    }
  };
  const top = new Float64Array((position + 1) * model.width);
  add(top, model.direction(token, versus), 1, position * model.width);
  grow([], top, model.layers);
  return found;
}

export function pathSum(about: Prediction, engine: Engine): PathExplanation {
  const { trace, position, token, versus } = about;
  const { labels, layers } = trace.model;
  const paths = allPaths(about);
  const total = sum(paths.map((path) => path.value));
  const ofPaths = (has: (steps: string[]) => boolean): number =>
    sum(paths.filter((path) => has(["embed", ...path.heads])).map((path) => path.value));
  const orders = Array.from({ length: layers + 1 }, (_, order) => order);
  const ranked = [...paths].sort((a, b) => Math.abs(b.value) - Math.abs(a.value) || a.heads.length - b.heads.length);
  const logits = trace.logitsAt(position);
  const size = logits.reduce((most, logit) => Math.max(most, Math.abs(logit)), 0) || 1;
  const bySource = new Float64Array(position + 1);
  for (const path of paths) add(bySource, path.values);
  const shown = (id: number): string => engine.shown(id);
  return {
    format: "pathsum-paths",
    version: 1,
    model: engine.name,
    probability: softmax(logits)[token] as number,
    rank: 1 + logits.filter((logit) => logit > (logits[token] as number)).length,
    counts: orders.map((order) => paths.filter((path) => path.heads.length === order).length),
    toward: {
      target_positions: [position],
      target_tokens: [token],
      target_texts: [shown(token)],
      versus: typeof versus === "number" ? shown(versus) : versus,
      context: trace.ids.slice(0, position + 1).map(shown),
      paths: paths.length,
      total,
      stderr: null,
      remainder: Math.abs(total - targetOf(about, trace)) / size,
      by_last: breakdown("last component", ["embed", ...labels], (name) => ofPaths((steps) => steps.at(-1) === name)),
      by_source: grid("source × position", ["embed"], [...bySource.keys()], bySource),
      by_head: breakdown("head", labels, (name) => ofPaths((steps) => steps.includes(name))),
      by_mlp: breakdown("mlp", [], () => 0),
      by_order: breakdown("order", orders, (order) => sum(paths.filter((path) => path.heads.length === order).map((path) => path.value))),
      by_edge: byEdge(paths, labels),
    },
    top: {
      paths: ranked.map((path) => ({ path: ["embed", ...path.heads].join("→"), value: path.value, stderr: null })),
      total,
      rest: total - sum(ranked.map((path) => path.value)),
      proven: true,
      bound: 0,
      evaluated: paths.length,
      count: paths.length,
      sequences: 1,
    },
    routes: ranked.slice(0, ROUTES).map((path) => routes(path, trace, position)),
  };
}

function breakdown<Name extends string | number>(what: string, names: Name[], value: (name: Name) => number): Breakdown {
  return { what, names, values: matrix([names.length], names.map(value)), stderr: null, sequences: 1 };
}

function grid(what: string, rows: string[], columns: (string | number)[], values: Float64Array): Grid {
  return { what, rows, columns, values: matrix([rows.length, columns.length], values), stderr: null, sequences: 1 };
}

/** The sum over all paths that use each edge. */
function byEdge(paths: readonly ValuedPath[], labels: string[]): Grid {
  const [rows, columns] = [["embed", ...labels], [...labels, "logits"]];
  const values = new Float64Array(rows.length * columns.length);
  for (const { heads, value } of paths) {
    const steps = ["embed", ...heads, "logits"];
    for (let i = 0; i + 1 < steps.length; i++) {
      (values[rows.indexOf(steps[i] as string) * columns.length + columns.indexOf(steps[i + 1] as string)] as number) += value;
    }
  }
  return grid("from × to", rows, columns, values);
}

/** The strongest source positions of a path, and the strongest route of each: the largest product of attention. */
function routes(path: ValuedPath, trace: Trace, position: number): Routes {
  const sizes = path.values.map(Math.abs);
  const order = largest(sizes, SOURCES);
  const least = LEAST_SHARE * (sizes[order[0] as number] as number);
  const positions = order.filter((at) => (sizes[at] as number) > least);
  const ways = positions.map((source) => {
    // After the first head, how much of the source arrives at each position, and from where it was moved last.
    const tables: number[][] = [];
    let best: number[] = Array.from({ length: position + 1 }, (_, at) => Number(at === source));
    for (const head of path.heads) {
      const from = best.map((_, to) => {
        let strongest = 0;
        for (let at = 0; at <= position; at++) {
          if (trace.weight(head, to, at) * (best[at] as number) > trace.weight(head, to, strongest) * (best[strongest] as number)) strongest = at;
        }
        return strongest;
      });
      best = best.map((_, to) => trace.weight(head, to, from[to] as number) * (best[from[to] as number] as number));
      tables.push(from);
    }
    const way = [position];
    for (const table of tables.slice(1).reverse()) way.unshift(table[way[0] as number] as number);
    return path.heads.length === 0 ? [position] : [source, ...way];
  });
  return { positions, values: positions.map((at) => path.values[at] as number), ways };
}
