/** The picture of a story: the few edges of a circuit that fit a small panel, and the heads that can be switched off. */
import type { Reason, Span, Story } from "../../generated/answers";
import type { CircuitGraph, Edge } from "../../lib/circuit";
import { parseHead, type Side } from "../../lib/names";
import type { Arc } from "../../lib/ui/Arcs.svelte";

/** A picture with more nodes is no longer read at a glance. */
export const MOST_NODES = 7;
/** Edges that carry less of the logit only clutter it. */
const FAINTEST = 0.08;
/** Heads that are offered as switches. */
const MOST_SWITCHES = 6;

/** Parts that a read adds by itself have no node below them: positions and biases. */
const isWritten = (name: string): boolean => !/^(pos|b_|bias)/.test(name);

/** The strongest edges below the prediction that join at most `most` nodes; at least the strongest one, and the head that the story names. */
export function smallCircuit(graph: CircuitGraph, most = MOST_NODES, head: string | null = null): readonly Edge[] {
  const named = `${head}@${graph.target.position}`;
  const drawn = graph.edges.filter((edge) => edge.from === named && edge.to === graph.target.id);
  if (drawn.length > 0) drawn.push(...graph.inputs(named, "v").slice(0, 1));
  const nodes = new Set([graph.target.id, ...drawn.map(({ from }) => from)]);
  const least = FAINTEST * Math.abs(graph.answer.total);
  for (;;) {
    const next = graph.edges
      .filter((edge) => nodes.has(edge.to) && !drawn.includes(edge) && isWritten(edge.from))
      .filter((edge) => nodes.has(edge.from) || nodes.size < most)
      .reduce<Edge | null>((best, edge) => (best === null || Math.abs(edge.share) > Math.abs(best.share) ? edge : best), null);
    if (next === null || (drawn.length > 0 && Math.abs(next.share) < least)) return drawn;
    drawn.push(next);
    nodes.add(next.from);
  }
}

/** What the drawn edges into the logit add up to. */
export function drawnIntoLogit(graph: CircuitGraph, drawn: readonly Edge[]): number {
  return drawn.filter((edge) => edge.to === graph.target.id).reduce((sum, edge) => sum + edge.share, 0);
}

/** The heads among the reasons that the story gives for the attention. */
export function writersOf(story: Story): readonly string[] {
  return [...new Set(story.reasons.map(writerOf).filter((name) => parseHead(name) !== null))].sort();
}
const writerOf = ({ edge }: Reason): string => (edge.split("→")[0] as string).replace(/@\d+$/, "");

/** The heads that the story names, lower layers first. */
export function switches(story: Story, writers: readonly string[]): readonly string[] {
  const named = [...writers, ...(story.writer === null ? [] : [story.writer]), ...story.heads, ...(story.head === null ? [] : [story.head])];
  return [...new Set(named)].slice(0, MOST_SWITCHES).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
}

/** Arrows over the text: the notes of earlier heads, and where the head attends. */
export function arcsOf(story: Story, off: ReadonlySet<string>): readonly Arc[] {
  const { head, source, position } = story;
  if (head === null || source === null) return [];
  const arcs: Arc[] = [];
  // What is written into a key goes to the source, what is written into the query to the position itself.
  for (const [side, to] of [["k", source], ["q", position]] as const) {
    const notes = new Map<number, string[]>();
    for (const reason of story.reasons.filter(({ edge }) => edge.endsWith(".q") === (side === "q"))) {
      const writer = writerOf(reason);
      if (reason.wrote === null || reason.wrote === to || parseHead(writer) === null || off.has(writer)) continue;
      notes.set(reason.wrote, [...(notes.get(reason.wrote) ?? []), writer]);
    }
    // Notes come from neighboring tokens: one label, over the longest arrow, names all writers.
    const writers = [...new Set([...notes.values()].flat())].sort().join(", ");
    const from = [...notes.keys()].sort((a, b) => a - b);
    arcs.push(...from.map((wrote, i) => ({ from: wrote, to, width: 2, color: `var(--${side})`, dash: "2 3", label: i === 0 ? writers : "" })));
  }
  if (source !== position && !off.has(head)) arcs.push({ from: source, to: position, width: 2.5, color: "var(--v)", label: head });
  return arcs;
}

/** Where the short form of a sentence ends: before the reasons, or at the end of its claim. */
const REASONS = /,? (partly )?because |; no single part|\. |\.$/;

/** The claim of a story's sentence: without its opening, which the headline states, and without its reasons. */
export function claimOf(sentence: readonly Span[]): readonly Span[] {
  const opening = sentence.findIndex(({ text, kind }) => kind === "text" && text.includes(". "));
  if (opening < 0) return sentence;
  const [first, ...rest] = sentence.slice(opening) as [Span, ...Span[]];
  const claim = [{ ...first, text: first.text.slice(first.text.indexOf(". ") + 2) }, ...rest];
  const end = claim.findIndex(({ text, kind }) => kind === "text" && REASONS.test(text));
  const last = claim[end];
  return last ? [...claim.slice(0, end), { ...last, text: last.text.replace(new RegExp(`(${REASONS.source}).*`), "") }] : claim;
}

/** The three reads of the head that the story is about. */
export type Handle = "query" | "key" | "value";
export const HANDLES = [
  { handle: "query", mark: "①", words: "looks for", kind: "q" },
  { handle: "key", mark: "②", words: "finds", kind: "k" },
  { handle: "value", mark: "③", words: "writes", kind: "v" },
] as const satisfies readonly { handle: Handle; mark: string; words: string; kind: Side }[];

/** Parts of a read that are named. */
const MOST_PARTS = 3;

/** The strongest parts of one read of the story's head, each with the component and the position that wrote it. */
export function readOf(graph: CircuitGraph, { head, position }: Pick<Story, "head" | "position">, handle: Handle): readonly (Edge & { component: string; position: number })[] {
  const side = HANDLES.find((each) => each.handle === handle)!.kind;
  return graph
    .inputs(`${head}@${position}`, side)
    .filter((edge) => isWritten(edge.from) && edge.share > 0)
    .slice(0, MOST_PARTS)
    .map((edge) => ({ ...edge, component: graph.nodes.get(edge.from)?.component ?? edge.from, position: graph.nodes.get(edge.from)?.position ?? 0 }));
}

/** The drawn edges that a handle lights: one read of the head, and for the value its way to the logit. */
export function litBy(drawn: readonly Edge[], { head, position }: Pick<Story, "head" | "position">, handle: Handle): readonly string[] {
  const side = HANDLES.find((each) => each.handle === handle)!.kind;
  const node = `${head}@${position}`;
  return drawn.filter((edge) => (edge.to === node && edge.kind === side) || (handle === "value" && edge.from === node)).map(({ id }) => id);
}
