/** A piece of a formula: on the line, or set below or above it. */
export interface FormulaPart {
  text: string;
  place: "line" | "sub" | "sup";
}

/** An index after the letter, sign or bracket it belongs to: W_E, Σ_{h₂∘h₁}, W^h. */
const INDEX = /(?<=[\p{L}\p{S})\]}])([_^])(?:\{([^}]*)\}|([A-Za-z0-9]+))/gu;

/** A formula as it is typed in plain text, W_E, in parts that can be set as an index. */
export function formulaParts(text: string): FormulaPart[] {
  const parts: FormulaPart[] = [];
  let from = 0;
  const add = (part: string, place: FormulaPart["place"]): void => {
    if (part !== "") parts.push({ text: part, place });
  };
  for (const found of text.matchAll(INDEX)) {
    add(text.slice(from, found.index), "line");
    add(found[2] ?? found[3] ?? "", found[1] === "_" ? "sub" : "sup");
    from = found.index + found[0].length;
  }
  add(text.slice(from), "line");
  return parts;
}
