(async (place, letters, size, packed) => {
const value = Object.fromEntries([...letters].map((letter, number) => [letter, number]));
const bytes = new Uint8Array((packed.length / 5) * 4);
const view = new DataView(bytes.buffer);
for (let word = 0; word * 5 < packed.length; word++) {
let sum = 0;
for (let i = 0; i < 5; i++) sum = sum * 85 + value[packed[word * 5 + i]];
view.setUint32(word * 4, sum);
}
const unpack = new DecompressionStream("deflate-raw");
const stream = new Blob([bytes.subarray(0, size)]).stream().pipeThrough(unpack);
const whole = await new Response(stream).arrayBuffer();
const length = new DataView(whole).getUint32(0, true);
const text = (from, size) => new TextDecoder().decode(new Uint8Array(whole, from, size));
const head = JSON.parse(text(4, length));
let from = 4 + length;
const next = (size) => new Uint8Array(whole, (from += size) - size, size);
const style = new TextDecoder().decode(next(head.style));
const script = URL.createObjectURL(new Blob([next(head.script)], { type: "text/javascript" }));
const { embed } = await import(script);
URL.revokeObjectURL(script);
embed(place, style, { ...head.report, blocks: head.blocks.map(next) });
})(document.currentScript.previousElementSibling, "%s", %d, "%s");
