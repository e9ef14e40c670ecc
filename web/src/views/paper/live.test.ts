import { describe, expect, it } from "vitest";
import type { Claim } from "../../generated/answers";
import { pictureOf } from "./live";

const claim = (id: string, view: string) => ({ id, view }) as Claim;

describe("the live view beside a claim", () => {
  it("is one head's pattern where the text view is locked on a head", () => {
    expect(pictureOf(claim("two-induction", "#/text?e=4&h=L1H2&t=46"))).toEqual({
      ...{ type: "pattern", head: "L1H2", text: { example: 4 } },
    });
    expect(pictureOf(claim("zero", "#/text?m=zero-layer&e=0"))).toEqual({
      ...{ type: "losses", text: { model: "zero-layer", example: 0 } },
    });
  });

  it("shows the part of a head's page that the claim is about", () => {
    const part = (id: string) => pictureOf(claim(id, "#/head?m=one-layer&hd=L0H0"));
    expect(part("one-bugs")).toMatchObject({ part: "trigrams", model: { model: "one-layer" } });
    expect(part("one-positional")).toMatchObject({ part: "offsets" });
    expect(part("one-copying")).toMatchObject({ part: "eigenvalues" });
  });

  it("shows an edge, or the whole graph", () => {
    expect(pictureOf(claim("k", "#/circuit?edge=L0H1→L1H2.k"))).toEqual({
      ...{ type: "edge", edge: { writer: "L0H1", reader: "L1H2", kind: "k" } },
    });
    expect(pictureOf(claim("k", "#/circuit?edge=broken"))).toMatchObject({ type: "graph" });
  });

  it("is nothing where the link is not understood", () => {
    expect(pictureOf(claim("x", "#/elsewhere"))).toBeNull();
    expect(pictureOf(claim("x", ""))).toBeNull();
  });
});
