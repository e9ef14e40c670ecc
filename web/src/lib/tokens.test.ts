import { describe, expect, it } from "vitest";
import { breakable, findToken, isText, label, searchTokens, short, shown } from "./tokens";

describe("tokens", () => {
  it("marks spaces on demand, line ends and tabs always", () => {
    expect(shown(" the", 5, false).text).toBe(" the");
    expect(shown(" the", 5, true).text).toBe("·the");
    expect(shown("\n\t", 5, false)).toEqual({ text: "⏎⇥", breaks: true, bare: false });
  });
  it("shows the id of what has no text", () => {
    for (const piece of ["", "\ufffd", "\ufffd\ufffd", undefined, null]) expect(shown(piece, 17, false).text).toBe("⟨17⟩");
  });
  it("shows the bytes of what is no whole character", () => {
    expect(shown("\ufffdE6", 17, false)).toEqual({ text: "⟨E6⟩", breaks: false, bare: true });
    expect(label("\ufffdE6 97 A5", 17)).toBe("⟨E6 97 A5⟩");
    expect(["a", "\ufffdE6", " b"].filter(isText)).toEqual(["a", " b"]);
  });
  it("shows what would be invisible or turn the line around by its code", () => {
    expect(label("a\u202eb\u200b\u0007", 1)).toBe("a⟨202E⟩b⟨200B⟩⟨07⟩");
  });
  it("keeps markup as text", () => {
    expect(label("<script>", 1)).toBe("<script>");
  });
  it("breaks lines between words, and within long ones", () => {
    expect(breakable([" Q", "u", "ill", ",", " and", " M", "r"])).toEqual([false, false, true, true, true, false, true]);
    expect(breakable(["uth", "xy", "present", "lemon", "tree", "s"])).toEqual([false, false, false, false, true, true]);
  });
  it("cuts by character", () => {
    expect(short("😀😀😀", 2)).toBe("😀…");
    expect(short("ab", 2)).toBe("ab");
  });
  const tokens = ["the", " the", "\n", "a b", " theory"];
  it("finds the token that was typed", () => {
    expect(["the", "·the", "⏎", "#3", "#99", "theory", "nothing"].map((typed) => findToken(typed, tokens))).toEqual([0, 1, 2, 3, undefined, 4, undefined]);
  });
  it("searches beginnings first, the shortest first", () => {
    expect(searchTokens("th", tokens)).toEqual([0, 1, 4]);
    expect(searchTokens("", tokens)).toEqual([]);
  });
});
