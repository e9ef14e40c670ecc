/** One prediction of a text and its explanation, as numbers and as a sentence: `pathsum.explorer.story`. */
import type { Span, Story } from "../generated/answers";
import { WORDS } from "../generated/words";
import { percent, signed } from "../lib/format";
import { parseHead } from "../lib/names";
import { argmax, largest } from "../lib/algebra";
import { circuit } from "./circuit";
import { type Engine, lossesOf, type Prediction, rankByInterest, targetToken } from "./engine";
import { COMPARABLE, copyingHeads, probabilityOf, without, writeReasons } from "./reasons";
import type { Trace } from "./run";
import { concat, fill, headSpan, join, type Slot, span, tokenLabel } from "./sentence";

/** Repeats that are tried: those whose gain is comparable to the first one's. */
const CANDIDATES = 4;
/** Heads that the sentence names one by one, and the longest beginning of a word that it quotes. */
const MOST_NAMED = 8;
const LONGEST_START = 12;

/** Strongest predictions among which a rival from the text is looked for. */
const RIVALS = 10;

/** The repeat whose probability falls most without the heads that copy it; else the first of all. */
function mostInteresting(trace: Trace, probabilities: readonly number[], ranked: readonly [number, number | null][]): [number, number | null] {
  const gains = ranked.slice(0, CANDIDATES).flatMap(([position, first]) =>
    first === null ? [] : [{ gain: (probabilities[position] as number) - (probabilities[first] as number), position, first }],
  );
  let best: [number, number | null] | null = null;
  let most = -Infinity;
  for (const { gain, position, first } of gains) {
    const token = targetToken(trace, position);
    const heads = copyingHeads(trace, position, token);
    if (gain < COMPARABLE * (gains[0] as { gain: number }).gain || heads.length === 0) continue;
    const lost = (probabilities[position] as number) - probabilityOf(without(trace, heads, position), position, token);
    if (lost > most) [most, best] = [lost, [position, first]];
  }
  return best ?? (ranked[0] as [number, number | null]);
}

/** The likeliest other token that stands in the text before, among the strongest predictions that begin alike. */
function rivalOf({ trace, position, token }: Prediction, engine: Engine): number | null {
  const seen = trace.ids.slice(0, position + 1);
  // The rival of a name is a name, although "the" may be likelier.
  const kind = (one: number): string => [/^\p{L}/u, /^\p{Lu}/u].map((first) => first.test(engine.piece(one).trimStart())).join();
  return largest(trace.logitsAt(position), RIVALS).find((one) => one !== token && seen.includes(one) && kind(one) === kind(token)) ?? null;
}

/** The position of the story, by default the most interesting one, and where the same pair of tokens stood before. */
export function storyPosition(trace: Trace, wanted: number | null): { position: number; first: number | null } {
  const probabilities = lossesOf(trace).map((loss) => Math.exp(-loss));
  const ranked = rankByInterest(trace.ids, probabilities);
  const [position, first = null] = wanted === null ? mostInteresting(trace, probabilities, ranked) : (ranked.find(([place]) => place === wanted) ?? [wanted]);
  return { position, first };
}

export function story(about: Prediction, first: number | null, engine: Engine): Story {
  const { trace, position, token: predicted, versus } = about;
  const { graph, lead, coverage } = circuit(about, engine, false);
  const probability = (run: Trace, place: number): number => probabilityOf(run, place, predicted);
  const logits = trace.logitsAt(position);
  const heads = lead?.copying ?? [];
  const reason = lead?.reasons[0];
  const name = reason?.edge.split("@")[0] ?? "";
  const writer = parseHead(name) ? name : null;
  const cut = writer === null ? null : without(trace, [writer], position);
  const found: Story = {
    format: "pathsum-page-story",
    version: 1,
    position,
    token: predicted,
    expected: argmax(logits),
    rival: rivalOf(about, engine),
    versus: typeof versus === "number" ? versus : null,
    probability: graph.probability,
    first,
    probability_first: first === null ? null : probability(trace, first),
    total: graph.total,
    coverage,
    heads,
    probability_without_heads: heads.length > 0 ? probability(without(trace, heads, position), position) : null,
    head: lead?.head ?? null,
    probability_without_head: lead?.probability ?? null,
    share: lead?.share ?? 0,
    source: lead?.source ?? null,
    weight: lead?.weight ?? 0,
    kind: lead?.kind ?? null,
    reasons: lead?.reasons ?? [],
    writer,
    weight_without: cut ? cut.weight(lead?.head as string, position, lead?.source as number) : (reason?.weight ?? null),
    probability_without: cut ? probability(cut, position) : (reason?.probability ?? null),
    is_decomposed: !lead?.note,
    mlps: null,
    sentence: [],
  };
  const names = clauses(found, trace.ids);
  if (coverage < COMPARABLE) names.push("coverage");
  return { ...found, sentence: fill(names.map((clause) => WORDS.story[clause]).join(""), slots(found, trace, engine)) };
}

/** The names of the clauses that tell a story, in order. */
function clauses(found: Story, ids: readonly number[]): (keyof typeof WORDS.story)[] {
  const { probability, probability_first: before, head, source, heads, reasons } = found;
  const names: (keyof typeof WORDS.story)[] = ["opening"];
  if (before !== null) names.push(probability > 2 * before ? "first_rises" : "first");
  names.push("stop");
  if (head === null || source === null) return names;
  const isInduction = found.kind === "induction" && ids[source] === found.token;
  if (!isInduction) {
    names.push("adds_most");
    if (source === found.position) names.push("itself");
    if (found.kind === "sink") names.push("sink");
  } else if (heads.length > 1) {
    names.push("induction", "many_copy");
    if (reasons.length > 0) names.push("attends_there");
  } else {
    names.push("induction", "one_copies");
    if (reasons.length > 0) names.push("comma");
  }
  if (reasons.length > 0) {
    // If most of the attention stays without the first reason, it is not the whole reason.
    names.push((found.weight_without ?? 0) > found.weight / 3 ? "partly_because" : "because", "without_writer");
  } else if (heads.length <= 1 || !isInduction) {
    if (found.is_decomposed) names.push("no_reason");
    names.push("without_head");
  }
  return names;
}

function slots(found: Story, trace: Trace, engine: Engine): Record<string, Slot> {
  const label = (id: number): string => tokenLabel(engine.piece(id), id);
  const token = (at: number | null): Span => span(at === null ? "" : label(trace.ids[at] as number), "token", { position: at });
  const strong = (text: string): Span => span(text, "strong");
  const share = (value: number | null): string => (value === null ? "" : percent(value));
  const after = (value: number | null): Span[] =>
    concat(value === null || value < found.probability ? "drop to " : "rise to ", strong(share(value)));
  const left = found.heads.length - MOST_NAMED;
  const head = found.head ?? "";
  return {
    before: wordStart(trace.ids.slice(0, found.position + 1).map((id) => engine.piece(id))),
    token: token(found.position),
    predicted: span(label(found.token), "token"),
    probability: strong(percent(found.probability)),
    probability_first: share(found.probability_first),
    logit: found.versus === null ? "logit" : concat("lead over “", span(label(found.versus), "token"), "”"),
    induction: strong("induction"),
    head: headSpan(head),
    head_name: head,
    source: span(token(found.source).text, "cell", { head, position: found.position, source: found.source }),
    count: String(found.heads.length),
    heads: concat(join(found.heads.slice(0, MOST_NAMED).map(headSpan), ", "), left > 0 ? ` and ${left} more` : ""),
    least: share(found.probability_without_head),
    without_head: after(found.probability_without_head),
    without_heads: after(found.probability_without_heads),
    without_writer: after(found.probability_without),
    share: signed(found.share, 1),
    total: signed(found.total, 1),
    writer_name: found.writer ?? "this part",
    reasons: writeReasons(found.reasons, (at) => concat("“", token(at), "”"), false),
    weight: percent(found.weight),
    weight_without: share(found.weight_without),
    coverage: percent(Math.max(0, found.coverage ?? 0)),
  };
}

/** The beginning of the word that the last piece continues. */
function wordStart(pieces: readonly string[]): string {
  let start = pieces.length - 1;
  while (start > 0 && /^\p{L}/u.test(pieces[start] as string) && /\p{L}$/u.test(pieces[start - 1] as string)) start--;
  const text = pieces.slice(start, -1).join("").trimStart();
  // Random tokens in a row are no word.
  return [...text].length > LONGEST_START ? "" : text;
}
