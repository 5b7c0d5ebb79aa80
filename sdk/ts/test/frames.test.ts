import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { appendFrame, decodeFrame, type Fields, type Frame, Op, type OpName, ProtocolError, Splitter } from "../src/frames.js";
import { Writer } from "../src/msgpack.js";

interface Vector {
  name: string;
  op: number;
  op_name: OpName;
  frame: string;
  header: Record<string, unknown>;
  payload: string;
  ignored?: string[];
}

const spec = new URL("../../../../spec/test-vectors/", import.meta.url);
const vectors = JSON.parse(readFileSync(new URL("frames.json", spec), "utf8"), revive) as Vector[];
const malformed = JSON.parse(readFileSync(new URL("errors.json", spec), "utf8")) as { name: string; frame: string }[];

/** {"$bin": hex} and {"$int": decimal} are the vectors' words for what JSON hasn't. */
function revive(_: string, v: unknown): unknown {
  if (typeof v === "object" && v !== null) {
    if ("$bin" in v) return bytes(v.$bin as string);
    if ("$int" in v) return BigInt(v.$int as string);
  }
  return v;
}

function bytes(hex: string): Uint8Array {
  return new Uint8Array(Buffer.from(hex, "hex"));
}

/** The header without its zero values. */
function told(header: object): Record<string, unknown> {
  const zero = (v: unknown): boolean =>
    v === 0 || v === "" || v === false || (typeof v === "object" && v !== null && !(v instanceof Uint8Array) && Object.keys(v).length === 0);
  return Object.fromEntries(Object.entries(header).filter(([, v]) => !zero(v)));
}

for (const v of vectors) {
  test(`vector: ${v.name}`, () => {
    const wire = bytes(v.frame);
    const frame = decodeFrame(wire.subarray(4))!;
    assert.equal(Op[frame.op], v.op);
    assert.equal(frame.op, v.op_name);
    assert.deepEqual(told(frame.header), told(v.header));
    assert.deepEqual(frame.payload, bytes(v.payload));

    const w = new Writer();
    appendFrame(w, frame.op, frame.header as Fields<OpName>, frame.payload);
    const again = w.written().slice();
    assert.equal(new DataView(again.buffer).getUint32(0), again.length - 4);
    assert.deepEqual(decodeFrame(again.subarray(4)), frame, "what is written means the same");
    w.reset();
    appendFrame(w, frame.op, frame.header as Fields<OpName>, frame.payload, false);
    assert.deepEqual(w.written(), again.subarray(4), "a message of a WebSocket is the frame without its length");
  });
}

test("the vectors have every op", () => assert.deepEqual([...new Set(vectors.map((v) => v.op))].sort(), Object.values(Op).sort()));

// What is a matter of form a client refuses too; the rest are limits for what clients send.
const form = /^(header|bytes after|a key that|a byte|hlen|payload|str for|negative for|float for|nil for|int for|bin for|array for|extension|timestamp ext|nested map)/;
for (const { name, frame } of malformed.filter((v) => form.test(v.name) && v.name !== "header name too long")) {
  test(`malformed: ${name}`, () => assert.throws(() => decodeFrame(bytes(frame).subarray(4)), ProtocolError));
}

test("an op of a later version is no error", () => {
  assert.equal(decodeFrame(bytes("3900000000ff")), undefined);
});

function split(chunks: Uint8Array[], limit = 1 << 20): string[] {
  const s = new Splitter();
  s.limit = limit;
  const found: string[] = [];
  for (const c of chunks) s.push(c, (f) => found.push(Buffer.from(f).toString("hex")));
  return found;
}

test("a stream may be cut anywhere", () => {
  const some = vectors.filter((v) => v.frame.length < 400);
  const stream = Buffer.from(some.map((v) => v.frame).join(""), "hex");
  const want = some.map((v) => v.frame.slice(8));
  assert.deepEqual(split([new Uint8Array(stream)]), want);
  assert.deepEqual(split(Array.from(stream, (b) => new Uint8Array([b]))), want);
  for (let cut = 1; cut < stream.length; cut++) {
    assert.deepEqual(split([new Uint8Array(stream.subarray(0, cut)), new Uint8Array(stream.subarray(cut))]), want);
  }
});

test("a frame over the limit is refused as soon as its length is known", () => {
  assert.throws(() => split([bytes("00000101")], 0x100), ProtocolError);
  assert.throws(() => split([bytes("00000004")]), ProtocolError);
  assert.deepEqual(split([bytes("00000100")], 0x100), []);
});

test("what is decoded has every field", () => {
  const { header } = decodeFrame(bytes("0600000000")) as Extract<Frame, { op: "ok" }>;
  assert.deepEqual(header, { rid: 0, name: "", messages: 0, consumers: 0, empty: false });
});

// A broken frame is refused, or means something; it never makes anything else happen.
test("frames with random bytes changed", () => {
  let state = 4711;
  const random = (n: number): number => (state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0) % n;
  for (let i = 0; i < 50_000; i++) {
    const v = vectors[random(vectors.length)]!;
    const wire = bytes(v.frame).subarray(4);
    for (let n = random(3); n >= 0; n--) wire[random(wire.length)] = random(256);
    try {
      decodeFrame(random(4) === 0 ? wire.subarray(0, random(wire.length)) : wire);
    } catch (e) {
      assert.ok(e instanceof ProtocolError, `${Buffer.from(wire).toString("hex")}: ${(e as Error).stack}`);
    }
  }
});
