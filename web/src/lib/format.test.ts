import { describe, expect, it } from "vitest";
import { count, countedP, fixed, number, percent, plural, pValue, readableExponents, signed, smallP, tickLabel, wrapped } from "./format";

describe("numbers for reading", () => {
  it("has few digits and a true minus", () => {
    expect([0, 0.1234, 3.4567, 127.4, -0.5, 1.2e-7, 2.5e7, null, NaN, -Infinity].map((x) => number(x))).toEqual([
      "0", "0.123", "3.46", "127", "−0.500", "1.2e−7", "2.5e7", "–", "–", "−∞",
    ]);
  });
  it("prints a counted p as a bound where its draws cannot show less", () => {
    const shown = [[1 / 201, 200], [1 / 401, 400], [0.0348, 200], [1, 200], [0.0004, null], [NaN, 200]] as const;
    expect(shown.map(([p, draws]) => countedP(p, draws))).toEqual([
      "< 0.005", "< 0.0025", "0.035", "1", "< 0.001", "–",
    ]);
  });
  it("writes exponents in sentences as it does in numbers", () => {
    expect(count(6_875_395_665_388_507e6)).toBe("6.9 × 10²¹");
    expect(readableExponents("1,111,111,111,111,111 paths of 61,440,000 tokens")).toBe("1.1 × 10¹⁵ paths of 61,440,000 tokens");
    expect(readableExponents("an error of 1e-07, at most 2.5e-5; L1H0 e-mail")).toBe(
      "an error of 1e−7, at most 2.5e−5; L1H0 e-mail",
    );
  });
  it("breaks between words, and loses none", () => {
    expect(wrapped("random tokens, the first copy", 14)).toEqual(["random tokens,", "the first copy"]);
    expect(wrapped("short", 14)).toEqual(["short"]);
    expect(wrapped("incomprehensibilities of it", 14)).toEqual(["incomprehensibilities", "of it"]);
  });
  it("signs effects, and zero is no sign", () => {
    expect([1.234, -1.234, 0.001, -0.001].map((x) => signed(x))).toEqual(["+1.23", "−1.23", "0.00", "0.00"]);
  });
  it("prints shares", () => {
    expect([0.714, 0.0312, 0.004, 0.00001, 0, 1, null].map(percent)).toEqual(["71%", "3.1%", "0.40%", "< 0.01%", "0%", "100%", "–"]);
    expect([0.99, 0.9964, 0.9999].map(percent)).toEqual(["99%", "99.6%", "> 99.9%"]);
  });
  it("counts", () => {
    expect([count(1234567), plural(1, "token"), plural(2000, "token"), pValue(0), pValue(0.04)]).toEqual([
      "1,234,567", "1 token", "2,000 tokens", "p < 0.001", "p 0.040",
    ]);
  });
  it("names ticks by what tells them apart", () => {
    const ticks = [0, 2.5, 5, 7.5, 10, 12.5];
    expect(ticks.map((tick) => tickLabel(tick, ticks))).toEqual(["0", "2.5", "5.0", "7.5", "10.0", "12.5"]);
    expect([-0.2, 0, 1].map((tick) => tickLabel(tick, [-0.2, 0, 1]))).toEqual(["−0.2", "0", "1.0"]);
    expect(tickLabel(2000, [0, 1000, 2000])).toBe("2,000");
    expect(tickLabel(0.001, [0, 0.001])).toBe("0.001");
    expect(tickLabel(2e-7, [0, 2e-7])).toBe("2e−7");
  });
});

describe("numbers of a table", () => {
  it("keep their decimals and a true minus, and zero has no sign", () => {
    expect([0.698, -0.39, -1e-9, 3e-8].map((value) => fixed(value))).toEqual([
      "0.70",
      "−0.39",
      "0.00",
      "0.00",
    ]);
    expect(fixed(-165727.88)).toBe("−165728");
    expect(fixed(Number.NaN)).toBe("–");
    expect(fixed(null)).toBe("–");
  });

  it("never print p as zero", () => {
    expect([0.5, 0.01, 0.004, 0].map(smallP)).toEqual(["0.50", "0.01", "< 0.01", "< 0.01"]);
    expect(smallP(Number.NaN)).toBe("–");
  });
});
