import { describe, expect, test } from "vitest";

import { classesText, meanings, shownIn, worth } from "./trigrams";

describe("skip-trigrams", () => {
  test("what a skip-trigram is worth on text is never printed as zero", () => {
    expect(worth(1.11e-3, "text")).toBe("1.11");
    expect(worth(3.4e-6, "text")).toBe("0.00340");
    expect(worth(3.4, "weights")).toBe("+3.40");
  });

  test("the line above the list says what it is ranked by", () => {
    expect(meanings.text.ranked).toContain("held-out text");
    expect(meanings.weights.ranked).toContain("p(source)");
  });

  test("shares of patterns are one sentence", () => {
    const classes = [
      { pattern: "[b]…[a]→[b]", count: 3, share: 0.75 },
      { pattern: "other", count: 5, share: 0.25 },
    ] as const;
    expect(classesText(classes)).toBe("Share of the gain where they are right: [b]…[a]→[b] 75%, other 25%.");
  });

  test("a row is run where its triple occurs; two tokens alone show nothing of a head above layer 0", () => {
    const token = (id: number) => ({ id, text: `t${id}` });
    const row = { head: "L1H0", source: token(5), destination: token(7) };
    const place = { ids: [1, 7, 5, 9, 7, 5], source: 2, destination: 4 };
    expect(shownIn({ ...row, place }, 1)).toMatchObject(place);
    expect(shownIn({ ...row, place: null }, 1)).toBeNull();
    expect(shownIn({ ...row, head: "L0H0" }, 1)).toMatchObject({ ids: [1, 5, 7], source: 1, destination: 2 });
    expect(shownIn({ ...row, head: "L0H0" }, null)).toMatchObject({ ids: [5, 7], source: 0, destination: 1 });
  });
});
