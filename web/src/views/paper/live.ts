/** Which small live view stands beside a claim: from the view that the claim points to. */
import type { AboutModel, AboutText, Claim, EdgeOf } from "../../generated/answers";
import { parseEdge } from "../../lib/names";
import { parseLink } from "./tour";

export type Picture =
  | { readonly type: "pattern"; readonly head: string; readonly text: AboutText }
  | { readonly type: "losses"; readonly text: AboutText }
  | { readonly type: "head"; readonly head: string; readonly model: AboutModel; readonly part: HeadPart }
  | { readonly type: "edge"; readonly edge: EdgeOf }
  | { readonly type: "graph"; readonly model: AboutModel }
  | { readonly type: "terms"; readonly model: AboutModel; readonly by: "order" | "layer" }
  | { readonly type: "grid"; readonly model: AboutModel };

export type HeadPart = "eigenvalues" | "trigrams" | "offsets";

/** What of a head's page a claim is about, by words in its id. */
function partOf(id: string): HeadPart {
  if (/trigram|bug/.test(id)) return "trigrams";
  if (/position|offset|previous/.test(id)) return "offsets";
  return "eigenvalues";
}

function edgeOf(model: AboutModel, text: string | undefined): EdgeOf | null {
  const edge = text === undefined ? null : parseEdge(text);
  return edge && { ...model, ...edge };
}

export function pictureOf(claim: Claim): Picture | null {
  const link = parseLink(claim.view);
  if (!link) return null;
  const model: AboutModel = {};
  const [named, step] = [link.values.get("m"), link.values.get("s")];
  if (named !== undefined) model.model = named;
  if (step !== undefined && /^\d+$/.test(step)) model.step = Number(step);
  const example = Number(link.values.get("e") ?? 0);
  const text: AboutText = { ...model, example: Number.isInteger(example) && example >= 0 ? example : 0 };
  switch (link.view) {
    case "text": {
      const head = link.values.get("h");
      return head ? { type: "pattern", head, text } : { type: "losses", text };
    }
    case "head": {
      const head = link.values.get("hd");
      return head ? { type: "head", head, model, part: partOf(claim.id) } : null;
    }
    case "circuit": {
      const edge = edgeOf(model, link.values.get("edge"));
      return edge ? { type: "edge", edge } : { type: "graph", model };
    }
    case "paths":
      return { type: "terms", model, by: /layers/.test(claim.id) ? "layer" : "order" };
    case "atlas":
      return { type: "grid", model };
    default:
      return null;
  }
}
