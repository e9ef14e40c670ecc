import { describe, expect, it } from "vitest";
import { ScrollMemory } from "./scrolling";

describe("scrolling", () => {
  it("begins another view at its top", () => {
    const memory = new ScrollMemory();
    expect(memory.moved("atlas", "#/atlas")).toBeNull();
    memory.scrolledTo(900);
    expect(memory.moved("head", "#/head?head=L1H0")).toBe(0);
  });

  it("returns to where the reader was, by the back button only", () => {
    const memory = new ScrollMemory();
    expect(memory.moved("head", "#/head?head=L1H0")).toBeNull();
    memory.scrolledTo(1400);
    memory.moved("composition", "#/composition");
    memory.returning(true);
    memory.scrolledTo(30);
    expect(memory.moved("head", "#/head?head=L1H0")).toBe(1400);
    memory.returning(true);
    memory.scrolledTo(1400);
    expect(memory.moved("composition", "#/composition")).toBe(30);
    memory.returning(false);
    memory.scrolledTo(0);
    expect(memory.moved("head", "#/head?head=L1H0")).toBe(0);
  });

  it("leaves a view alone whose state changes, and remembers the last of it", () => {
    const memory = new ScrollMemory();
    expect(memory.moved("atlas", "#/atlas")).toBeNull();
    memory.scrolledTo(700);
    expect(memory.moved("atlas", "#/atlas?sort=kind")).toBeNull();
    memory.scrolledTo(900);
    expect(memory.moved("atlas", "#/atlas?sort=kind")).toBeNull();
    memory.scrolledTo(950);
    expect(memory.moved("head", "#/head")).toBe(0);
    memory.returning(true);
    memory.scrolledTo(0);
    expect(memory.moved("atlas", "#/atlas?sort=kind")).toBe(950);
  });
});
