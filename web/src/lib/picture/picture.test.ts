import { describe, expect, it } from "vitest";
import { SvgPen } from "./pen";
import { linesOf } from "./text";
import { element, escaped, paint, painted } from "./xml";

const pen = (): SvgPen => new SvgPen((text) => ({ width: 6 * text.length }) as TextMetrics);

describe("SVG text", () => {
  it("keeps tokens text, whatever they spell", () => {
    expect(escaped('<b a="1">&')).toBe("&lt;b a=&quot;1&quot;&gt;&amp;");
    expect(escaped("a\u0000b\ud800c\u{1f600}")).toBe("a\ufffdb\ufffdc\u{1f600}");
  });
  it("leaves out what is undefined and rounds to a hundredth", () => {
    expect(element("rect", { x: 1.23456, rx: undefined, fill: "#fff" })).toBe('<rect x="1.23" fill="#fff"/>');
    expect(element("g", {}, "x")).toBe("<g>x</g>");
  });
});

describe("computed colors", () => {
  it("are hex and opacity, since not every program reads the others", () => {
    expect(paint("rgb(84, 48, 143)")).toEqual({ color: "#54308f", alpha: 1 });
    expect(paint("rgba(0, 0, 0, 0.5)")).toEqual({ color: "#000000", alpha: 0.5 });
    expect(paint("rgb(8 60 120 / 0.25)")).toEqual({ color: "#083c78", alpha: 0.25 });
    expect(paint("color(srgb 1 0.5 0 / 0.3)")).toEqual({ color: "#ff8000", alpha: 0.3 });
  });
  it("are nothing where nothing is seen", () => {
    expect(paint("rgba(0, 0, 0, 0)")).toBeNull();
    expect(paint("none")).toBeNull();
    expect(painted("fill", null)).toEqual({ fill: "none" });
  });
});

describe("the pen that writes SVG", () => {
  it("writes rectangles and words where a canvas would draw them", () => {
    const it = pen();
    it.fillStyle = "rgb(255 0 0)";
    it.fillRect(1, 2, 3, 4);
    it.font = 'bold 11px ui-monospace, "DejaVu Sans Mono", monospace';
    it.textAlign = "right";
    it.textBaseline = "middle";
    it.fillText("<a>", 10, 20);
    expect(it.content).toBe(
      '<rect x="1" y="2" width="3" height="4" fill="#ff0000"/>' +
        '<text x="10" y="23.96" font-size="11" font-family="ui-monospace, &quot;DejaVu Sans Mono&quot;, monospace"' +
        ' font-weight="bold" text-anchor="end" fill="#ff0000" xml:space="preserve">&lt;a&gt;</text>',
    );
  });
  it("turns and moves, and forgets it", () => {
    const it = pen();
    it.save();
    it.translate(5, 6);
    it.rotate(-Math.PI / 2);
    it.fillRect(0, 0, 1, 1);
    it.restore();
    it.strokeRect(0, 0, 1, 1);
    expect(it.content).toContain('transform="translate(5 6)rotate(-90)"/>');
    expect(it.content).toMatch(/stroke-width="1"\/>$/);
  });
});

describe("lines of words", () => {
  const letter = (text: string, left: number, top: number) => ({ letter: text, box: { left, top, width: 7, height: 16 } });
  it("begin where the letters go down, and not with a space", () => {
    const lines = linesOf([letter("a", 0, 0), letter(" ", 7, 0.4), letter("b", 14, 0), letter(" ", 0, 20), letter("c", 7, 20)]);
    expect(lines).toEqual([
      { text: "a b", box: { left: 0, top: 0, width: 21, height: 16 } },
      { text: "c", box: { left: 7, top: 20, width: 7, height: 16 } },
    ]);
  });
});
