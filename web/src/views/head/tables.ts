/** The numbers of the head page's panels as tables, for CSV. */
import type {
  Bug,
  Estimate,
  HeadAblation,
  HeadEntry,
  HeadPage,
  TopContexts,
  Context,
  SkipTrigram,
  SkipTrigrams,
} from "../../generated/answers";
import type { Cell, DataTable } from "../../lib/page/export";
import type { Matrix } from "../../lib/source/wire";

/** The text of a token. */
type Words = (id: number) => string;

export function scoreTable(entry: HeadEntry): DataTable {
  return {
    header: ["score", "value", "standard error", "null", "p"],
    rows: Object.entries(entry.scores).map(([name, score]) => [name, score.value, score.stderr, score.null, score.p]),
  };
}

export function tokenTable(page: HeadPage, words: Words): DataTable {
  const rows = [
    ...page.ov_rows.map((row) => ({ circuit: "OV", row })),
    ...page.qk_rows.map((row) => ({ circuit: "QK", row })),
  ];
  return {
    header: ["circuit", "token id", "token", "other id", "other", "value"],
    rows: rows.flatMap(({ circuit, row }) =>
      row.others.map((other) => [
        circuit,
        row.token.id,
        words(row.token.id),
        other.token.id,
        words(other.token.id),
        other.value,
      ]),
    ),
  };
}

export function eigenvalueTable(page: HeadPage): DataTable {
  const listed = (of: string, values: Matrix): Cell[][] =>
    Array.from({ length: values.data.length >> 1 }, (_, at) => [of, values.data[2 * at], values.data[2 * at + 1]]);
  return {
    header: ["of", "real", "imaginary"],
    rows: [...listed(page.head, page.copying.eigenvalues), ...listed("random heads", page.null_eigenvalues)],
  };
}

export function offsetTable(page: HeadPage): DataTable | null {
  const profile = page.offsets;
  if (!profile) return null;
  return {
    header: ["tokens back", "score", "spread", "attention"],
    rows: Array.from(profile.score.data, (score, offset) => [
      offset,
      score,
      profile.sd.data[offset],
      profile.attention?.data[offset],
    ]),
  };
}

export function placeTable(answer: TopContexts, words: Words): DataTable {
  const listed = (order: string, places: readonly Context[]): Cell[][] =>
    places.map((place) => [
      order,
      place.sequence,
      place.source,
      words(place.ids[place.source]!),
      place.destination,
      words(place.ids[place.destination]!),
      place.weight,
      place.effect,
      place.times,
    ]);
  return {
    header: [
      ...["order", "sequence", "source", "source token", "destination", "destination token"],
      ...["attention", "effect in logits", "times"],
    ],
    rows: [...listed("by attention", answer.by_attention), ...listed("by effect", answer.by_effect), ...listed("ordinary", answer.deciles)],
  };
}

export function trigramTable(answer: SkipTrigrams): DataTable {
  const common = (row: Bug | SkipTrigram): Cell[] => [
    ...[row.source.text, row.destination.text, row.out.text],
    ...[row.attention, row.effect, row.score, row.pattern],
  ];
  return {
    header: ["source", "destination", "out", "attention", "effect", "score", "pattern", "fires", "lift", "is a bug"],
    rows: [
      ...answer.triples.map((row) => [...common(row), row.fires, row.evidence?.lift, row.bug !== null]),
      ...answer.bugs.map((row) => [...common(row), null, null, true]),
    ],
  };
}

export function ablationTable(answer: HeadAblation): DataTable {
  const numbers = (estimate: Estimate | null): Cell[] => [estimate?.value, estimate?.low, estimate?.high];
  return {
    header: ["on", "measure", "of", "value", "low", "high"],
    rows: answer.tests.flatMap(({ on, ablations, replacements }) => [
      ...ablations.map(({ knockout, after, cost }) => [on, "cost in nats", `${knockout}, ${after}`, ...numbers(cost)]),
      ...replacements.map(({ description, share }) => [on, "share recovered", description, ...numbers(share)]),
    ]),
  };
}
