// MessagePack, as far as the FireMQ protocol uses it: everything but extension types.
//
// Integers are exact: those beyond Number.MAX_SAFE_INTEGER are bigints, in both directions.

/** What a message header or an argument may hold. */
export type Value = null | boolean | number | bigint | string | Uint8Array | readonly Value[] | { readonly [key: string]: Value | undefined };

/** A map with string keys. Entries that are undefined are left out. */
export type ValueMap = { readonly [key: string]: Value | undefined };

/** FormatError says that bytes are no MessagePack of ours, or that a value can't be written as such. */
export class FormatError extends Error {
  override readonly name = "FormatError";
}

const utf8 = new TextEncoder();
const strictText = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

const maxDepth = 72; // the protocol's 64 inside of headers, and what is around them
const minInt64 = -(2n ** 63n);
const maxUint64 = 2n ** 64n - 1n;

/** Writer appends to a buffer that grows. */
export class Writer {
  #bytes: Uint8Array;
  #view: DataView;
  length = 0;

  constructor(capacity = 1024) {
    this.#bytes = new Uint8Array(capacity);
    this.#view = new DataView(this.#bytes.buffer);
  }

  /** What was written. It is valid until the next write. */
  written(): Uint8Array {
    return this.#bytes.subarray(0, this.length);
  }

  /** Begins again. The buffer is kept unless a large message has blown it up. */
  reset(): void {
    this.length = 0;
    if (this.#bytes.length > 1 << 20) {
      this.#bytes = new Uint8Array(1024);
      this.#view = new DataView(this.#bytes.buffer);
    }
  }

  /** Makes room for n bytes more and gives the place of the first. */
  #room(n: number): number {
    const at = this.length;
    this.length += n;
    if (this.length > this.#bytes.length) {
      const larger = new Uint8Array(Math.max(this.length, 2 * this.#bytes.length));
      larger.set(this.#bytes.subarray(0, at));
      this.#bytes = larger;
      this.#view = new DataView(larger.buffer);
    }
    return at;
  }

  uint8(n: number): void {
    const at = this.#room(1);
    this.#bytes[at] = n;
  }

  uint32(n: number): void {
    const at = this.#room(4);
    this.#view.setUint32(at, n);
  }

  /** Overwrites four bytes that were written before. */
  putUint32(at: number, n: number): void {
    this.#view.setUint32(at, n);
  }

  bytes(b: Uint8Array): void {
    const at = this.#room(b.length);
    this.#bytes.set(b, at);
  }

  mapHead(entries: number): void {
    this.#head(entries, 0x80, 16, 0, 0xde);
  }

  string(s: string): void {
    const n = s.length;
    if (n < 32) {
      // Short ASCII strings, which nearly all names are.
      const at = this.#room(1 + n);
      this.#bytes[at] = 0xa0 | n;
      let i = 0;
      for (; i < n; i++) {
        const c = s.charCodeAt(i);
        if (c > 0x7f) break;
        this.#bytes[at + 1 + i] = c;
      }
      if (i === n) return;
      this.length = at;
    }
    const b = utf8.encode(s);
    this.#head(b.length, 0xa0, 32, 0xd9, 0xda);
    this.bytes(b);
  }

  /** The head of a str, array or map: in one byte, with one byte of length (tag8, 0 for none) or more. */
  #head(n: number, fix: number, below: number, tag8: number, tag16: number): void {
    if (n < below) this.uint8(fix | n);
    else if (n < 1 << 8 && tag8 !== 0) {
      this.uint8(tag8);
      this.uint8(n);
    } else if (n < 1 << 16) {
      const at = this.#room(3);
      this.#bytes[at] = tag16;
      this.#view.setUint16(at + 1, n);
    } else {
      this.uint8(tag16 + 1);
      this.uint32(n);
    }
  }

  #integer(n: number): void {
    if (n >= 0) {
      if (n < 0x80) this.uint8(n);
      else if (n < 1 << 8) {
        this.uint8(0xcc);
        this.uint8(n);
      } else if (n < 1 << 16) {
        const at = this.#room(3);
        this.#bytes[at] = 0xcd;
        this.#view.setUint16(at + 1, n);
      } else if (n <= 0xffffffff) {
        this.uint8(0xce);
        this.uint32(n);
      } else this.#bigint(BigInt(n));
      return;
    }
    if (n >= -32) this.uint8(n & 0xff);
    else if (n >= -0x80000000) {
      const at = this.#room(5);
      this.#bytes[at] = 0xd2;
      this.#view.setInt32(at + 1, n);
    } else this.#bigint(BigInt(n));
  }

  #bigint(n: bigint): void {
    if (n < minInt64 || n > maxUint64) throw new FormatError(`the integer ${n} has more than 64 bits`);
    const at = this.#room(9);
    this.#bytes[at] = n < 0n ? 0xd3 : 0xcf;
    this.#view.setBigInt64(at + 1, BigInt.asIntN(64, n));
  }

  /** Writes a value. A number that is a safe integer is written as one, others as a float. */
  value(v: Value, depth = 0): void {
    if (depth > maxDepth) throw new FormatError("the values are nested too deeply");
    switch (typeof v) {
      case "string":
        return this.string(v);
      case "boolean":
        return this.uint8(v ? 0xc3 : 0xc2);
      case "bigint":
        if (n53(v)) return this.#integer(Number(v));
        return this.#bigint(v);
      case "number": {
        if (Number.isSafeInteger(v)) return this.#integer(v);
        const at = this.#room(9);
        this.#bytes[at] = 0xcb;
        this.#view.setFloat64(at + 1, v);
        return;
      }
      case "object":
        break;
      default:
        throw new FormatError(`a ${typeof v} can't be sent`);
    }
    if (v === null) return this.uint8(0xc0);
    if (v instanceof Uint8Array) {
      const n = v.length;
      if (n < 1 << 8) {
        this.uint8(0xc4);
        this.uint8(n);
      } else {
        this.uint8(0xc6);
        this.uint32(n);
      }
      return this.bytes(v);
    }
    if (Array.isArray(v)) {
      this.#head(v.length, 0x90, 16, 0, 0xdc);
      for (const item of v as readonly Value[]) this.value(item, depth + 1);
      return;
    }
    if (!plain(v)) throw new FormatError(`a ${v.constructor.name} can't be sent: write it as a string, a number or bytes`);
    const entries = Object.entries(v as ValueMap).filter((e): e is [string, Value] => e[1] !== undefined);
    this.mapHead(entries.length);
    for (const [key, item] of entries) {
      this.string(key);
      this.value(item, depth + 1);
    }
  }
}

/** Whether v is an object literal: others, such as a Date, would lose what they mean. */
function plain(v: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(v);
  // A literal of another realm, a frame or a vm, has that realm's Object.prototype.
  return prototype === null || prototype === Object.prototype || Object.getPrototypeOf(prototype) === null;
}

const n53 = (n: bigint): boolean => n >= BigInt(Number.MIN_SAFE_INTEGER) && n <= BigInt(Number.MAX_SAFE_INTEGER);
const narrow = (n: bigint): number | bigint => (n53(n) ? Number(n) : n);

/** decode reads the one value that bytes are. Strings and bins are copies. */
export function decode(bytes: Uint8Array): Value {
  const reader = new Reader(bytes);
  const v = reader.value(0);
  reader.end();
  return v;
}

/** decodeFields reads the entries of a map whose keys are wanted, and skips the others, whatever they are. */
export function decodeFields(bytes: Uint8Array, wanted: object): ValueMap {
  const reader = new Reader(bytes);
  const map = reader.fields(wanted);
  reader.end();
  return map;
}

/** The bytes of the n-th of the lengths of 8, 16 and 32 bits. */
const width = (n: number): 1 | 2 | 4 => (n === 0 ? 1 : n === 1 ? 2 : 4);

class Reader {
  at = 0;
  readonly #bytes: Uint8Array;
  readonly #view: DataView;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** Takes n bytes and gives the place of the first. */
  #take(n: number): number {
    const at = this.at;
    if (n > this.#bytes.length - at) throw new FormatError("the value ends early");
    this.at += n;
    return at;
  }

  end(): void {
    if (this.at !== this.#bytes.length) throw new FormatError(`${this.#bytes.length - this.at} bytes follow the value`);
  }

  fields(wanted: object): ValueMap {
    const head = this.#uint(1);
    if ((head & 0xf0) !== 0x80 && head !== 0xde && head !== 0xdf) throw new FormatError("it is no map");
    const n = head < 0x90 ? head & 0x0f : this.#uint(head === 0xde ? 2 : 4);
    const map: Record<string, Value> = {};
    for (let i = 0; i < n; i++) {
      const key = this.value(1);
      if (typeof key !== "string") throw new FormatError("a key of a map is no string");
      if (Object.hasOwn(wanted, key)) map[key] = this.value(1);
      else this.#skip();
    }
    return map;
  }

  /** Passes over a value of any type, with all that is in it. */
  #skip(): void {
    for (let values = 1; values > 0; values--) {
      const head = this.#uint(1);
      if (head < 0x80 || head >= 0xe0) continue;
      if (head < 0x90) values += 2 * (head & 0x0f);
      else if (head < 0xa0) values += head & 0x0f;
      else if (head < 0xc0) this.#take(head & 0x1f);
      else if (head >= 0xc4 && head <= 0xc6) this.#take(this.#uint(width(head - 0xc4)));
      else if (head >= 0xc7 && head <= 0xc9) this.#take(1 + this.#uint(width(head - 0xc7))); // an extension, and its type
      else if (head === 0xca || head === 0xcb) this.#take(head === 0xca ? 4 : 8);
      else if (head >= 0xcc && head <= 0xd3) this.#take(1 << (head & 3));
      else if (head >= 0xd4 && head <= 0xd8) this.#take(1 + (1 << (head - 0xd4)));
      else if (head >= 0xd9 && head <= 0xdb) this.#take(this.#uint(width(head - 0xd9)));
      else if (head === 0xdc || head === 0xdd) values += this.#uint(width(head - 0xdb));
      else if (head >= 0xde) values += 2 * this.#uint(width(head - 0xdd));
      else if (head === 0xc1) throw new FormatError("a value begins with the byte 0xc1");
    }
  }

  #uint(width: 1 | 2 | 4): number {
    const at = this.#take(width);
    return width === 1 ? this.#view.getUint8(at) : width === 2 ? this.#view.getUint16(at) : this.#view.getUint32(at);
  }

  value(depth: number): Value {
    if (depth > maxDepth) throw new FormatError("the values are nested too deeply");
    const head = this.#uint(1);
    if (head < 0x80) return head;
    if (head < 0x90) return this.#map(head & 0x0f, depth);
    if (head < 0xa0) return this.#array(head & 0x0f, depth);
    if (head < 0xc0) return this.#string(head & 0x1f);
    if (head >= 0xe0) return head - 0x100;
    switch (head) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4:
        return this.#bin(this.#uint(1));
      case 0xc5:
        return this.#bin(this.#uint(2));
      case 0xc6:
        return this.#bin(this.#uint(4));
      case 0xca:
        return this.#view.getFloat32(this.#take(4));
      case 0xcb:
        return this.#view.getFloat64(this.#take(8));
      case 0xcc:
        return this.#uint(1);
      case 0xcd:
        return this.#uint(2);
      case 0xce:
        return this.#uint(4);
      case 0xcf:
        return narrow(this.#view.getBigUint64(this.#take(8)));
      case 0xd0:
        return this.#view.getInt8(this.#take(1));
      case 0xd1:
        return this.#view.getInt16(this.#take(2));
      case 0xd2:
        return this.#view.getInt32(this.#take(4));
      case 0xd3:
        return narrow(this.#view.getBigInt64(this.#take(8)));
      case 0xd9:
        return this.#string(this.#uint(1));
      case 0xda:
        return this.#string(this.#uint(2));
      case 0xdb:
        return this.#string(this.#uint(4));
      case 0xdc:
        return this.#array(this.#uint(2), depth);
      case 0xdd:
        return this.#array(this.#uint(4), depth);
      case 0xde:
        return this.#map(this.#uint(2), depth);
      case 0xdf:
        return this.#map(this.#uint(4), depth);
      default:
        throw new FormatError(`a value begins with the byte 0x${head.toString(16)}`);
    }
  }

  #bin(n: number): Uint8Array {
    const at = this.#take(n);
    return this.#bytes.slice(at, at + n);
  }

  #string(n: number): string {
    const at = this.#take(n);
    if (n < 32) {
      let s = "";
      for (let i = at; i < at + n; i++) {
        const c = this.#bytes[i]!;
        if (c > 0x7f) return this.#text(at, n);
        s += String.fromCharCode(c);
      }
      return s;
    }
    return this.#text(at, n);
  }

  #text(at: number, n: number): string {
    try {
      return strictText.decode(this.#bytes.subarray(at, at + n));
    } catch {
      throw new FormatError("a string is not UTF-8");
    }
  }

  #array(n: number, depth: number): Value[] {
    // Every item has a byte at least: a length that is a lie costs no memory.
    if (n > this.#bytes.length - this.at) throw new FormatError("the array ends early");
    const items: Value[] = [];
    for (let i = 0; i < n; i++) items.push(this.value(depth + 1));
    return items;
  }

  #map(n: number, depth: number): ValueMap {
    const map: Record<string, Value> = {};
    for (let i = 0; i < n; i++) {
      const key = this.value(depth + 1);
      if (typeof key !== "string") throw new FormatError("a key of a map is no string");
      const item = this.value(depth + 1);
      if (key === "__proto__") Object.defineProperty(map, key, { value: item, enumerable: true, configurable: true, writable: true });
      else map[key] = item;
    }
    return map;
  }
}
