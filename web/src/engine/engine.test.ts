import { beforeAll, describe, expect, it } from "vitest";
import type { Matrix, Params, QuestionName } from "../generated/answers";
import { type ReportFile, ReportSource } from "../lib/source/report";
import { Engine } from "./engine";

/** Answers of the library about every bundled model that runs in the page and two hand-built ones, by scripts/engine_fixtures.py. */
const FILES = Object.entries(import.meta.glob<string>("../../fixtures/*.json", { query: "?raw", import: "default", eager: true }));
const TOLERANCE = 1e-4;
/** Patterns are sent in half precision, which has eleven bits. */
const HALF = 2 ** -11;

const isMatrix = (value: unknown): value is Matrix => value !== null && typeof value === "object" && "data" in value && "shape" in value;

const isClose = (found: number, wanted: number, tolerance: number): boolean =>
  Math.abs(found - wanted) <= tolerance * Math.max(1, Math.abs(wanted)) || (Number.isNaN(found) && Number.isNaN(wanted));

/** The places where two answers differ: numbers by more than the tolerance, everything else at all. */
function differences(found: unknown, wanted: unknown, at = ""): string[] {
  if (typeof wanted === "number" && typeof found === "number") return isClose(found, wanted, TOLERANCE) ? [] : [`${at}: ${JSON.stringify(found)} instead of ${JSON.stringify(wanted)}`];
  if (isMatrix(wanted) && isMatrix(found)) {
    const tolerance = at.includes("pattern") ? HALF : TOLERANCE;
    const places = [...wanted.data.keys()].filter((i) => !isClose(found.data[i] as number, wanted.data[i] as number, tolerance));
    const shapes = differences(found.shape, wanted.shape, `${at}.shape`);
    return [...shapes, ...places.map((i) => `${at}[${i}]: ${found.data[i]} instead of ${wanted.data[i]}`)];
  }
  if (wanted === null || typeof wanted !== "object" || found === null || typeof found !== "object") return found === wanted ? [] : [`${at}: ${JSON.stringify(found)} instead of ${JSON.stringify(wanted)}`];
  const keys = new Set([...Object.keys(wanted), ...Object.keys(found)]);
  return [...keys].flatMap((key) => differences((found as Record<string, unknown>)[key], (wanted as Record<string, unknown>)[key], `${at}.${key}`));
}

it("has answers to compare with, which `make fixtures` writes", () => expect(FILES.length).toBeGreaterThan(6));

// Some answers about a text of 95 tokens take a second on a busy machine.
describe.each(FILES)("the engine and the library on %s", { timeout: 120_000 }, (_, text) => {
  const file = JSON.parse(text) as ReportFile;
  const source = new ReportSource(file);
  let engine: Engine;
  beforeAll(async () => {
    engine = new Engine(await source.ask("weights", {}), await source.ask("model", {}), await source.ask("vocabulary", {}));
  }, 120_000);
  const keys = Object.keys(file.answers).filter((key) => !/^(model|vocabulary|weights):/.test(key));

  it.each([...new Set(keys.map((key) => key.split(":")[0] as QuestionName))])("agree on `%s`", async (question) => {
    for (const key of keys.filter((one) => one.startsWith(`${question}:`))) {
      const params = JSON.parse(key.slice(question.length + 1)) as Params[typeof question];
      const found = differences(engine.answer(question, params), await source.ask(question, params));
      expect(found.slice(0, 5), key).toEqual([]);
    }
  });
});
