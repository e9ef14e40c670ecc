import { describe, expect, it } from "vitest";
import { encode } from "./encode.testing";
import { decode, row } from "./wire";

const bytes = (array: ArrayBufferView): Uint8Array => new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

describe("wire", () => {
  it("decodes every kind of array, nested anywhere", () => {
    const wire = encode({ name: "é", inner: [{ values: { $array: 0 } }, { values: { $array: 1 } }], ids: { $array: 2 } }, [
      { dtype: "f4", shape: [2], bytes: bytes(Float32Array.of(1.5, NaN)) },
      { dtype: "u1", shape: [3], bytes: Uint8Array.of(1, 2, 255) },
      { dtype: "i4", shape: [1, 2], bytes: bytes(Int32Array.of(-7, 9)) },
    ]);
    const answer = decode(wire) as { name: string; inner: { values: { data: number[] } }[]; ids: { shape: number[]; data: Int32Array } };
    expect(answer.name).toBe("é");
    expect([...(answer.inner[0]?.values.data ?? [])]).toEqual([1.5, NaN]);
    expect([...(answer.inner[1]?.values.data ?? [])]).toEqual([1, 2, 255]);
    expect(answer.ids.shape).toEqual([1, 2]);
    expect([...answer.ids.data]).toEqual([-7, 9]);
    expect("$arrays" in answer).toBe(false);
  });

  it("decodes float16: ones, fractions, subnormals, infinities, NaN", () => {
    const bits = Uint16Array.of(0x3c00, 0xc000, 0x3555, 0x0001, 0x7c00, 0xfc00, 0x7e00, 0x8000, 0x7bff);
    const answer = decode(encode({ a: { $array: 0 } }, [{ dtype: "f2", shape: [9], bytes: bytes(bits) }])) as { a: { data: Float32Array } };
    const [one, minusTwo, third, tiny, infinite, minus, nan, zero, most] = answer.a.data;
    expect(one).toBe(1);
    expect(minusTwo).toBe(-2);
    expect(third).toBeCloseTo(1 / 3, 3);
    expect(tiny).toBeCloseTo(2 ** -24, 12);
    expect(infinite).toBe(Infinity);
    expect(minus).toBe(-Infinity);
    expect(nan).toBeNaN();
    expect(Object.is(zero, -0)).toBe(true);
    expect(most).toBe(65504);
  });

  it("copies a view that starts at an odd place", () => {
    const wire = encode({ a: { $array: 0 } }, [{ dtype: "f4", shape: [1], bytes: bytes(Float32Array.of(2)) }]);
    const shifted = new Uint8Array(wire.length + 3);
    shifted.set(wire, 3);
    const answer = decode(shifted.subarray(3)) as { a: { data: Float32Array } };
    expect([...answer.a.data]).toEqual([2]);
  });

  it("says what is wrong with bytes that are not an answer", () => {
    expect(() => decode(new Uint8Array(2))).toThrow("The answer is empty.");
    expect(() => decode(Uint8Array.of(255, 0, 0, 0, 1))).toThrow("cut short");
    const wire = encode({ a: { $array: 0 } }, [{ dtype: "f4", shape: [64], bytes: new Uint8Array(256) }]);
    expect(() => decode(wire.slice(0, wire.length - 128))).toThrow("cut short");
    const odd = encode({ a: { $array: 0 } }, [{ dtype: "f8", shape: [1], bytes: new Uint8Array(8) }]);
    expect(() => decode(odd)).toThrow("f8");
  });

  it("takes a row of the last axis", () => {
    const matrix = { shape: [2, 2, 3], data: Float32Array.from({ length: 12 }, (_, i) => i) };
    expect([...row(matrix, 1, 0)]).toEqual([6, 7, 8]);
  });
});
