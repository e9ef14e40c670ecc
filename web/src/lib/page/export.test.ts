import { describe, expect, it } from "vitest";
import { csv } from "./export";

describe("CSV", () => {
  it("quotes what needs it, and leaves missing numbers empty", () => {
    expect(csv(["a", "b"], [["x,y", 1.5], ['"', NaN], ["\n", null]])).toBe('a,b\r\n"x,y",1.5\r\n"""",\r\n"\n",\r\n');
  });
  it("keeps a token from being run as a formula", () => {
    expect(csv(["t"], [["=1+1"], ["@x"], ["-"], ["plain"]])).toBe("t\r\n\"'=1+1\"\r\n\"'@x\"\r\n\"'-\"\r\nplain\r\n");
  });
  it("leaves negative numbers numbers", () => {
    expect(csv(["v"], [[-1.5]])).toBe("v\r\n-1.5\r\n");
  });
});
