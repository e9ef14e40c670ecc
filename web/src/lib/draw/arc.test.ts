import { describe, expect, it } from "vitest";
import { arcBetween } from "./arc";

describe("arrows over a text", () => {
  it("rise above the line they stay on", () => {
    const { path, y } = arcBetween({ x: 10, top: 100, bottom: 120 }, { x: 110, top: 100, bottom: 120 });
    expect(path).toBe("M10.0 100.0Q60.0 72.0 110.0 100.0");
    expect(y).toBeLessThan(100);
  });
  it("go from below one line to above the next, not through its words", () => {
    const down = arcBetween({ x: 300, top: 100, bottom: 120 }, { x: 10, top: 138, bottom: 158 });
    expect(down.path).toBe("M300.0 120.0C300.0 129.0 10.0 129.0 10.0 138.0");
    const up = arcBetween({ x: 10, top: 138, bottom: 158 }, { x: 300, top: 100, bottom: 120 });
    expect(up.path).toBe("M10.0 138.0C10.0 129.0 300.0 129.0 300.0 120.0");
    expect(up.y).toBe(129);
  });
});
