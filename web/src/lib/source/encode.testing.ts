/** The Python side's encoding of an answer, for tests of what decodes it. */
interface Packed {
  dtype: string;
  shape: number[];
  bytes: Uint8Array;
}

/** What Python's side writes, in a few lines. */
export function encode(header: Record<string, unknown>, arrays: Packed[]): Uint8Array {
  const up = (n: number) => Math.ceil(n / 8) * 8;
  let offset = 0;
  const places = arrays.map(({ dtype, shape, bytes }) => {
    const place = { dtype, shape, offset, length: bytes.length };
    offset = up(offset + bytes.length);
    return place;
  });
  const text = new TextEncoder().encode(JSON.stringify({ ...header, $arrays: places }));
  const base = up(4 + text.length);
  const out = new Uint8Array(base + offset);
  new DataView(out.buffer).setUint32(0, text.length, true);
  out.set(text, 4);
  arrays.forEach(({ bytes }, i) => out.set(bytes, base + (places[i]?.offset ?? 0)));
  return out;
}
