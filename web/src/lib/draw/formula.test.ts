import { expect, test } from "vitest";
import { formulaParts } from "./formula";

const set = (text: string): string =>
  formulaParts(text)
    .map(({ text: part, place }) => (place === "line" ? part : place === "sub" ? `<${part}>` : `[${part}]`))
    .join("");

test("indices are set below and above the line", () => {
  expect(set("W_E OV W_U")).toBe("W<E> OV W<U>");
  expect(set("QK = W_Q W_Kᵀ / √d_head: x")).toBe("QK = W<Q> W<K>ᵀ / √d<head>: x");
  expect(set("Σ_h (A_h ⊗ W_OV^h) + Σ_{h₂∘h₁} A_{h₂}")).toBe("Σ<h> (A<h> ⊗ W<OV>[h]) + Σ<h₂∘h₁> A<h₂>");
  expect(set("A[L1H0] ⊗ W_E·OV[L1H0]·W_U")).toBe("A[L1H0] ⊗ W<E>·OV[L1H0]·W<U>");
});

test("words without an index stay as they are", () => {
  for (const text of ["", "25 paths add up", "1e−7", "the token “_”", "a _b"]) expect(set(text)).toBe(text);
});
