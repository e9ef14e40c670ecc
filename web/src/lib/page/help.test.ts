import { describe, expect, it } from "vitest";
import { HELP } from "./help";
import { VIEWS } from "./views";

describe("help", () => {
  it("is there for every view", () => {
    expect(VIEWS.length).toBeGreaterThan(5);
    expect(Object.keys(HELP).sort()).toEqual(VIEWS.map(({ name }) => name).sort());
  });
});
