import { describe, expect, it } from "vitest";
import source from "../../views.ts?raw";
import { HELP } from "./help";

describe("help", () => {
  it("is there for every view", () => {
    const views = [...source.matchAll(/name: "(\w+)", title/g)].map((match) => match[1]);
    expect(views.length).toBeGreaterThan(5);
    expect(Object.keys(HELP).sort()).toEqual(views.sort());
  });
});
