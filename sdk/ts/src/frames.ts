// The frames of the FireMQ protocol: ops, their header fields, and how both are spelt on a stream (with
// a length in front) and in a WebSocket message (without).
import { decodeFields, FormatError, type Value, type ValueMap, Writer } from "./msgpack.js";

export const Op = {
  hello: 0x01,
  welcome: 0x02,
  ping: 0x03,
  pong: 0x04,
  close: 0x05,
  ok: 0x06,
  error: 0x07,
  flow: 0x08,
  declare_exchange: 0x10,
  delete_exchange: 0x11,
  declare_queue: 0x12,
  delete_queue: 0x13,
  purge_queue: 0x14,
  bind: 0x15,
  unbind: 0x16,
  publish: 0x20,
  confirm: 0x21,
  return: 0x22,
  subscribe: 0x30,
  unsubscribe: 0x31,
  credit: 0x32,
  deliver: 0x33,
  cancelled: 0x34,
  ack: 0x35,
  nack: 0x36,
  get: 0x37,
  get_ok: 0x38,
} as const;

export type OpName = keyof typeof Op;

const names = new Map<number, OpName>(Object.entries(Op).map(([name, op]) => [op, name as OpName]));

type Kind = "uint" | "str" | "bool" | "map" | "strs";

const message = { exchange: "str", key: "str", props: "map", headers: "map" } as const;

/** The header fields of each op. */
const fields = {
  hello: { ver: "uint", vhost: "str", auth: "map", heartbeat: "uint", client: "map", caps: "strs" },
  welcome: { ver: "uint", server: "map", conn_id: "str", heartbeat: "uint", max_frame: "uint", caps: "strs" },
  ping: {},
  pong: {},
  close: { code: "uint", msg: "str" },
  ok: { rid: "uint", name: "str", messages: "uint", consumers: "uint", empty: "bool" },
  error: { rid: "uint", code: "uint", msg: "str", fatal: "bool" },
  flow: { pause: "bool" },
  declare_exchange: { rid: "uint", name: "str", type: "str", durable: "bool", auto_delete: "bool", internal: "bool", passive: "bool", args: "map" },
  delete_exchange: { rid: "uint", name: "str", if_unused: "bool" },
  declare_queue: { rid: "uint", name: "str", durable: "bool", exclusive: "bool", auto_delete: "bool", passive: "bool", args: "map" },
  delete_queue: { rid: "uint", name: "str", if_unused: "bool", if_empty: "bool" },
  purge_queue: { rid: "uint", name: "str" },
  bind: { rid: "uint", exchange: "str", queue: "str", to_exchange: "str", key: "str", args: "map" },
  unbind: { rid: "uint", exchange: "str", queue: "str", to_exchange: "str", key: "str", args: "map" },
  publish: { seq: "uint", mandatory: "bool", persistent: "bool", ...message },
  confirm: { upto: "uint", seq: "uint", nack: "bool", code: "uint", msg: "str" },
  return: { seq: "uint", code: "uint", msg: "str", ...message },
  subscribe: { rid: "uint", sub: "uint", queue: "str", credit: "uint", no_ack: "bool", exclusive: "bool", tag: "str", args: "map" },
  unsubscribe: { rid: "uint", sub: "uint" },
  credit: { sub: "uint", credit: "uint" },
  deliver: { sub: "uint", tag: "uint", redelivered: "bool", ...message },
  cancelled: { sub: "uint", code: "uint", msg: "str" },
  ack: { tag: "uint", multiple: "bool" },
  nack: { tag: "uint", multiple: "bool", requeue: "bool" },
  get: { rid: "uint", queue: "str", no_ack: "bool" },
  get_ok: { rid: "uint", tag: "uint", redelivered: "bool", remaining: "uint", ...message },
} as const satisfies Record<OpName, Record<string, Kind>>;

type Typed<K> = K extends "uint" ? number | bigint : K extends "str" ? string : K extends "bool" ? boolean : K extends "map" ? ValueMap : string[];

/** The decoded header of an op: every field, with its zero value when it was absent. */
export type Header<N extends OpName> = { -readonly [F in keyof (typeof fields)[N]]: Typed<(typeof fields)[N][F]> };

/** What goes into the header of an op. Fields that are left out are zero. */
export type Fields<N extends OpName> = Partial<Header<N>>;

/** A frame of an op that version 1 has. The payload aliases what it was read from. */
export type Frame = { [N in OpName]: { op: N; header: Header<N>; payload: Uint8Array } }[OpName];

const payloads: ReadonlySet<OpName> = new Set<OpName>(["publish", "return", "deliver", "get_ok"]);

const fixed = 5; // op and hlen
/** The longest frame before welcome. */
export const limitBeforeWelcome = 65_536;
/** The longest header that a broker takes from a client. */
export const maxHeader = 131_072;
/** The longest name, key, string property or header name, in bytes of UTF-8. */
export const maxName = 255;

/** ProtocolError says that the broker sent what it may not. */
export class ProtocolError extends Error {
  override readonly name = "ProtocolError";
}

/** appendFrame writes a frame, with its length in front if it is for a stream. */
export function appendFrame<N extends OpName>(w: Writer, name: N, header: Fields<N>, payload?: Uint8Array, stream = true): void {
  const start = beginFrame(w, Op[name], stream);
  const entries = Object.entries(header as ValueMap).filter((e): e is [string, Value] => !zero(e[1]));
  if (entries.length > 0) {
    w.mapHead(entries.length);
    for (const [key, v] of entries) {
      w.string(key);
      w.value(v);
    }
  }
  endHeader(w, start);
  if (payload !== undefined) w.bytes(payload);
  if (stream) endFrame(w, start);
}

/** beginFrame writes the fixed part of a frame and gives its place. The header is to follow. */
export function beginFrame(w: Writer, op: number, stream: boolean): number {
  if (stream) w.uint32(0);
  w.uint8(op);
  w.uint32(0);
  return w.length;
}

/** endHeader notes where the header ended; the payload may follow. */
export function endHeader(w: Writer, start: number, payload = 0): void {
  w.putUint32(start - 4, w.length - start - payload);
}

/** endFrame notes where the frame of a stream ended. */
export function endFrame(w: Writer, start: number): void {
  w.putUint32(start - 9, w.length - start + fixed);
}

/** Whether a header field may be left out. */
function zero(v: Value | undefined): boolean {
  if (v === undefined || v === false || v === 0 || v === 0n || v === "") return true;
  return typeof v === "object" && v !== null && !(v instanceof Uint8Array) && Object.keys(v).length === 0;
}

/** decodeFrame reads a frame without its length. It is undefined for an op that version 1 does not have. */
export function decodeFrame(bytes: Uint8Array): Frame | undefined {
  if (bytes.length < fixed) throw new ProtocolError(`a frame of ${bytes.length} bytes`);
  const op = bytes[0]!;
  const hlen = new DataView(bytes.buffer, bytes.byteOffset).getUint32(1);
  if (hlen > bytes.length - fixed) throw new ProtocolError("the header of a frame is longer than the frame");
  const name = names.get(op);
  if (name === undefined) return undefined;
  const payload = bytes.subarray(fixed + hlen);
  if (payload.length > 0 && !payloads.has(name)) throw new ProtocolError(`a ${name} frame has a payload`);
  return { op: name, header: decodeHeader(name, bytes.subarray(fixed, fixed + hlen)), payload } as Frame;
}

function decodeHeader(name: OpName, bytes: Uint8Array): Record<string, Value> {
  let map: ValueMap = {};
  if (bytes.length > 0) {
    try {
      map = decodeFields(bytes, fields[name]);
    } catch (e) {
      if (e instanceof FormatError) throw new ProtocolError(`the header of a ${name} frame: ${e.message}`);
      throw e;
    }
  }
  const header: Record<string, Value> = {};
  for (const [field, kind] of Object.entries(fields[name]) as [string, Kind][]) {
    const v = map[field];
    if (v === undefined) header[field] = zeroOf(kind);
    else if (is(v, kind)) header[field] = v;
    else throw new ProtocolError(`${field} of a ${name} frame is no ${kind}`);
  }
  return header;
}

const isMap = (v: Value | undefined): v is ValueMap =>
  typeof v === "object" && v !== null && !Array.isArray(v) && !(v instanceof Uint8Array);

function zeroOf(kind: Kind): Value {
  switch (kind) {
    case "uint":
      return 0;
    case "str":
      return "";
    case "bool":
      return false;
    case "map":
      return {};
    case "strs":
      return [];
  }
}

function is(v: Value, kind: Kind): boolean {
  switch (kind) {
    case "uint":
      return (typeof v === "number" && Number.isSafeInteger(v) && v >= 0) || (typeof v === "bigint" && v >= 0n);
    case "str":
      return typeof v === "string";
    case "bool":
      return typeof v === "boolean";
    case "map":
      return isMap(v);
    case "strs":
      return Array.isArray(v) && v.every((s) => typeof s === "string");
  }
}

/** Splitter finds the frames in the bytes of a stream. */
export class Splitter {
  /** The longest frame that is taken, as counted by its length. */
  limit = limitBeforeWelcome;
  #kept: Uint8Array[] = []; // the beginning of a frame, in pieces
  #size = 0; // of kept
  #need = 4; // bytes that kept must have before there is anything to do

  /** Passes each whole frame, without its length, to take; it aliases chunk and is to be used at once. */
  push(chunk: Uint8Array, take: (frame: Uint8Array) => void): void {
    if (this.#size > 0) {
      this.#kept.push(chunk);
      this.#size += chunk.length;
      if (this.#size < this.#need) return;
      chunk = joined(this.#kept, this.#size);
      this.#kept = [];
      this.#size = 0;
    }
    const view = new DataView(chunk.buffer, chunk.byteOffset, chunk.byteLength);
    let at = 0;
    for (;;) {
      this.#need = 4;
      if (chunk.length - at < 4) break;
      const length = view.getUint32(at);
      if (length < fixed || length > this.limit) throw new ProtocolError(`a frame of ${length} bytes, with a limit of ${this.limit}`);
      this.#need = 4 + length;
      if (chunk.length - at < this.#need) break;
      take(chunk.subarray(at + 4, at + this.#need));
      at += this.#need;
    }
    if (at < chunk.length) {
      this.#kept = [chunk.slice(at)];
      this.#size = chunk.length - at;
    }
  }
}

function joined(pieces: Uint8Array[], size: number): Uint8Array {
  const all = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}
