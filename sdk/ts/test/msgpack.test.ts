import assert from "node:assert/strict";
import { test } from "node:test";

import { decode, decodeFields, FormatError, type Value, Writer } from "../src/msgpack.js";

function encode(v: Value): Uint8Array {
  const w = new Writer(1);
  w.value(v);
  return w.written().slice();
}

const hex = (b: Uint8Array): string => Buffer.from(b).toString("hex");
const unhex = (s: string): Uint8Array => new Uint8Array(Buffer.from(s, "hex"));

const values: [string, Value][] = [
  ["nil", null],
  ["bools", [true, false]],
  ["empty strings, arrays and maps", ["", [], {}]],
  ["a string with every width of UTF-8", "aé€😀"],
  ["bytes", new Uint8Array([0, 255])],
  ["floats", [0.1, -1.5, 1e300, Infinity, -Infinity, NaN]],
  ["a map with odd keys", { "": 1, __proto__x: 2, "a b": 3 }],
  ["nested", { a: [{ b: [null, { c: "d" }] }] }],
];
for (const n of [15, 16, 31, 32, 255, 256, 65_535, 65_536]) {
  values.push([`a string of ${n}`, "s".repeat(n)], [`${n} bytes`, new Uint8Array(n)]);
  values.push([`an array of ${n}`, Array.from({ length: n }, () => 1)]);
  values.push([`a map of ${n}`, Object.fromEntries(Array.from({ length: n }, (_, i) => [`k${i}`, i]))]);
}

for (const [name, v] of values) test(`round trip: ${name}`, () => assert.deepEqual(decode(encode(v)), v));

test("integers are exact, and bigints only where a number is not", () => {
  const edges = [0n, 1n, 31n, 32n, 127n, 128n, 255n, 256n, 65_535n, 65_536n, 2n ** 31n, 2n ** 32n, 2n ** 53n, 2n ** 63n, 2n ** 64n];
  for (const edge of edges) {
    for (const n of [edge - 1n, edge, edge + 1n, -edge, -edge - 1n]) {
      if (n < -(2n ** 63n) || n >= 2n ** 64n) {
        assert.throws(() => encode(n), FormatError);
        continue;
      }
      const got = decode(encode(n));
      assert.equal(BigInt(got as number | bigint), n);
      assert.equal(typeof got, Number.isSafeInteger(Number(n)) && BigInt(Number(n)) === n && n !== 2n ** 53n && n !== -(2n ** 53n) ? "number" : "bigint", `${n}`);
      if (typeof got === "number") assert.equal(hex(encode(got)), hex(encode(n)), "a number is spelt like the bigint");
    }
  }
});

test("every encoding of an integer is read", () => {
  for (const spelling of ["05", "cc05", "cd0005", "ce00000005", "cf0000000000000005", "d005", "d10005", "d200000005", "d30000000000000005"]) {
    assert.equal(decode(unhex(spelling)), 5);
  }
  for (const spelling of ["ff", "d0ff", "d1ffff", "d2ffffffff", "d3ffffffffffffffff"]) assert.equal(decode(unhex(spelling)), -1);
  assert.equal(decode(unhex("ca3fc00000")), 1.5);
});

test("a key __proto__ is a key", () => {
  const v = decode(unhex(`81a9${hex(Buffer.from("__proto__"))}81a161${"01"}`)) as Record<string, unknown>;
  assert.deepEqual(Object.keys(v), ["__proto__"]);
  assert.equal(Object.getPrototypeOf(v), Object.prototype);
  assert.equal(({} as Record<string, unknown>)["a"], undefined);
});

test("fields that are not wanted are skipped, of whatever type", () => {
  const spellings = [
    "05", "ff", "c0", "c3", "c40100", "c500020000", "c6000000020000", "c7020a0000", "c800020a0000", "c9000000010a00", "ca3fc00000",
    "cb3ff8000000000000", "cc05", "cd0005", "ce00000005", "cf0000000000000005", "d005", "d10005", "d200000005", "d30000000000000005",
    "d40a00", "d50a0000", "d60a00000000", "d70a0000000000000000", `d80a${"00".repeat(16)}`, "a161", "d90161", "da000161", "db0000000161",
    "9201d40a00", "dc000101", "dd0000000101", "81d40a0001", "de00010102", "df000000010102", "929190a0",
  ];
  for (const v of spellings) {
    const map = unhex(`82a178${v}a16b2a`);
    assert.deepEqual(decodeFields(map, { k: 1 }), { k: 42 }, v);
    assert.deepEqual(decodeFields(map, {}), {}, v);
    for (let n = 0; n < map.length; n++) assert.throws(() => decodeFields(map.subarray(0, n), {}), FormatError, `${n} bytes of ${v}`);
  }
  for (const bytes of ["90", "81a178c1", "8101c0", "81a178c000", "81a178dd7fffffff"]) assert.throws(() => decodeFields(unhex(bytes), {}), FormatError, bytes);
});

test("undefined entries are left out", () => assert.equal(hex(encode({ a: undefined, b: 1 })), "81a16201"));

test("what would lose its meaning is refused", () => {
  for (const v of [new Date(), new Map(), () => 1, Symbol("s"), [undefined]]) assert.throws(() => encode(v as unknown as Value), FormatError);
});

test("every strict prefix is refused", () => {
  const whole = encode({ s: "x".repeat(300), b: new Uint8Array(70_000), i: [1, 300, 70_000, 2n ** 60n, -1], f: 1.5, m: { a: null } });
  for (let n = 0; n < whole.length; n += n < 400 ? 1 : 997) assert.throws(() => decode(whole.subarray(0, n)), FormatError, `${n} bytes`);
});

test("lies about lengths, unknown types and depth are refused", () => {
  for (const bytes of ["c1", "d40901", "d6ff00000001", "dd7fffffff", "df7fffffff", "db7fffffff", "c67fffffff", "a1ff", "810101", "0000"]) {
    assert.throws(() => decode(unhex(bytes)), FormatError, bytes);
  }
  assert.throws(() => decode(new Uint8Array(100_000).fill(0x91)), FormatError);
  let deep: Value = 1;
  for (let i = 0; i < 100; i++) deep = [deep];
  assert.throws(() => encode(deep), FormatError);
});
