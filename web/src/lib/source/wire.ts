/** Decoding of one answer: a JSON header whose arrays follow it as binary. */

export interface Matrix {
  shape: number[];
  data: Float32Array | Int32Array | Uint16Array | Uint8Array;
}

interface ArrayHeader {
  dtype: string;
  shape: number[];
  offset: number;
  length: number;
}

let halves: Float32Array | null = null;

/** All 65,536 float16 values: one table look-up a number is the fastest decoding there is here. */
function halfTable(): Float32Array {
  if (halves) return halves;
  halves = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 0x1f;
    const fraction = bits & 0x3ff;
    if (exponent === 0) halves[bits] = sign * fraction * 2 ** -24;
    else if (exponent === 31) halves[bits] = fraction ? NaN : sign * Infinity;
    else halves[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return halves;
}

function decodeHalves(bits: Uint16Array): Float32Array {
  const table = halfTable();
  const out = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) out[i] = table[bits[i] as number] as number;
  return out;
}

function decodeArray(header: ArrayHeader, buffer: ArrayBuffer, base: number): Matrix {
  const at = base + header.offset;
  if (at + header.length > buffer.byteLength) {
    throw new Error("The answer is cut short: an array ends after the last byte received.");
  }
  const count = header.shape.reduce((a, b) => a * b, 1);
  const shape = header.shape;
  switch (header.dtype) {
    case "f2":
      return { shape, data: decodeHalves(new Uint16Array(buffer, at, count)) };
    case "f4":
      return { shape, data: new Float32Array(buffer, at, count) };
    case "i4":
      return { shape, data: new Int32Array(buffer, at, count) };
    case "u2":
      return { shape, data: new Uint16Array(buffer, at, count) };
    case "u1":
      return { shape, data: new Uint8Array(buffer, at, count) };
    default:
      throw new Error(`The answer holds an array of a type this page does not know: ${header.dtype}.`);
  }
}

function withArrays(value: unknown, arrays: Matrix[]): unknown {
  if (Array.isArray(value)) {
    // Long plain lists (token strings) hold no arrays; a look at the first element is enough.
    const first = value[0];
    if (typeof first !== "object") return value;
    return value.map((item) => withArrays(item, arrays));
  }
  if (value === null || typeof value !== "object") return value;
  const record = value as Record<string, unknown>;
  if (typeof record["$array"] === "number") return arrays[record["$array"]];
  const out: Record<string, unknown> = {};
  for (const [key, item] of Object.entries(record)) out[key] = withArrays(item, arrays);
  return out;
}

const roundUp = (n: number): number => Math.ceil(n / 8) * 8;

/** `uint32 n · header of n bytes · padding to 8 · buffers`, see `pathsum.explorer.params`. */
export function decode(bytes: ArrayBuffer | Uint8Array): unknown {
  let buffer: ArrayBuffer;
  if (bytes instanceof ArrayBuffer) buffer = bytes;
  else {
    const whole = bytes.byteOffset === 0 && bytes.byteLength === bytes.buffer.byteLength;
    // Typed arrays must start at a multiple of their size, so a view inside a larger buffer is copied.
    buffer = (whole ? bytes.buffer : bytes.slice().buffer) as ArrayBuffer;
  }
  if (buffer.byteLength < 4) throw new Error("The answer is empty.");
  const n = new DataView(buffer).getUint32(0, true);
  if (4 + n > buffer.byteLength) throw new Error("The answer is cut short: its header is not whole.");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, n))) as Record<
    string,
    unknown
  >;
  const headers = (header["$arrays"] ?? []) as ArrayHeader[];
  delete header["$arrays"];
  const base = roundUp(4 + n);
  const arrays = headers.map((item) => decodeArray(item, buffer, base));
  return withArrays(header, arrays);
}

/** One row of the last axis: `row(m, 2, 5)` is `m[2, 5, :]`. */
export function row(matrix: Matrix, ...index: number[]): Matrix["data"] {
  const width = matrix.shape[matrix.shape.length - 1] ?? 1;
  let at = 0;
  index.forEach((i, axis) => {
    at = at * (matrix.shape[axis] as number) + i;
  });
  return matrix.data.subarray(at * width, (at + 1) * width);
}
