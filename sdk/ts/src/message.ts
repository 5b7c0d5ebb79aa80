// Messages: what is published, and what is delivered.
import { InvalidError } from "./errors.js";
import { maxHeader, maxName } from "./frames.js";
import { FormatError, type Value, type ValueMap, Writer } from "./msgpack.js";

/** What a message carries. A string is sent as UTF-8. */
export type Body = string | Uint8Array | ArrayBuffer;

/** Properties describe a message. Those that are undefined are absent. */
export interface Properties {
  contentType?: string | undefined;
  contentEncoding?: string | undefined;
  correlationId?: string | undefined;
  replyTo?: string | undefined;
  /** Time to live in a queue, in milliseconds. */
  expiration?: number | undefined;
  messageId?: string | undefined;
  /** In seconds since 1970. */
  timestamp?: number | bigint | undefined;
  type?: string | undefined;
  /** Must be the connection's user. */
  userId?: string | undefined;
  appId?: string | undefined;
  /** 0 to 255. */
  priority?: number | undefined;
}

export interface PublishOptions {
  /** Whether the broker writes the message to disk before it confirms it, and keeps it over a restart. Default: true. */
  persistent?: boolean | undefined;
  /** Asks for an UnroutableError when no queue receives the message. */
  mandatory?: boolean | undefined;
  properties?: Properties | undefined;
  /** Application headers: nulls, booleans, numbers, bigints, strings, bytes, arrays and objects of them. */
  headers?: ValueMap | undefined;
  /** Gives up waiting. The message may have arrived, or still arrive, unless it waited to be sent. */
  signal?: AbortSignal | undefined;
}

/** A message for publishAll. */
export interface Message extends Omit<PublishOptions, "signal"> {
  /** Default: "", the default exchange, which routes to the queue named by key. */
  exchange?: string | undefined;
  key?: string | undefined;
  body: Body;
}

const propertyKeys = [
  ["contentType", "content_type"],
  ["contentEncoding", "content_encoding"],
  ["correlationId", "correlation_id"],
  ["replyTo", "reply_to"],
  ["expiration", "expiration"],
  ["messageId", "message_id"],
  ["timestamp", "timestamp"],
  ["type", "type"],
  ["userId", "user_id"],
  ["appId", "app_id"],
  ["priority", "priority"],
] as const;

const integers: ReadonlySet<string> = new Set(["expiration", "timestamp", "priority"]);

/** The map that properties are on the wire. */
export function propsOf(p: Properties): ValueMap {
  const map: Record<string, Value> = {};
  for (const [name, key] of propertyKeys) {
    const v = p[name];
    if (v === undefined) continue;
    if (!integers.has(name)) map[key] = short(v as string, `the property ${name}`);
    else if ((typeof v === "bigint" || Number.isSafeInteger(v)) && (v as number) >= 0) map[key] = v;
    else throw new InvalidError(`the property ${name} is no whole number that is not negative`);
  }
  return map;
}

/** The properties of a map from the wire; what version 1 doesn't know is left out. */
export function propertiesOf(map: ValueMap): Properties {
  const p: Record<string, Value> = {};
  for (const [name, key] of propertyKeys) {
    const v = map[key];
    if (v === undefined) continue;
    if (integers.has(name) ? typeof v === "number" || typeof v === "bigint" : typeof v === "string") p[name] = v;
  }
  return p as Properties;
}

/** A publish, spelt but for its sequence number. */
export interface Spelt {
  readonly entries: number; // of the header
  readonly header: number; // its bytes at the beginning of bytes
  readonly bytes: Uint8Array; // the header's entries, then the body
}

const utf8 = new TextEncoder();
const scratch = new Writer();

/** spell checks a message and makes its part of a frame, a copy. */
export function spell(exchange: string, key: string, body: Body, o: PublishOptions): Spelt {
  const w = scratch;
  w.reset();
  let entries = 0;
  const entry = (name: string, v: Value): void => {
    entries++;
    w.string(name);
    w.value(v);
  };
  if (exchange !== "") entry("exchange", short(exchange, "the exchange"));
  if (key !== "") entry("key", short(key, "the routing key"));
  if (o.mandatory === true) entry("mandatory", true);
  if (o.persistent !== false) entry("persistent", true);
  try {
    if (o.properties !== undefined) entry("props", propsOf(o.properties));
    if (o.headers !== undefined) entry("headers", o.headers);
  } catch (e) {
    if (e instanceof FormatError) throw new InvalidError(`the headers: ${e.message}`);
    throw e;
  }
  const header = w.length;
  if (header > maxHeader - 64) throw new InvalidError(`properties and headers are larger than ${maxHeader} bytes`);
  w.bytes(bytesOf(body));
  return { entries, header, bytes: w.written().slice() };
}

function bytesOf(body: Body): Uint8Array {
  if (typeof body === "string") return utf8.encode(body);
  if (body instanceof Uint8Array) return body;
  if (body instanceof ArrayBuffer) return new Uint8Array(body);
  throw new InvalidError("a body is a string, a Uint8Array or an ArrayBuffer");
}

/** Checks the length of a name. */
export function short(s: string, what: string): string {
  if (typeof s !== "string") throw new InvalidError(`${what} is no string`);
  if (s.length > maxName || (3 * s.length > maxName && utf8.encode(s).length > maxName)) {
    throw new InvalidError(`${what} is longer than ${maxName} bytes`);
  }
  return s;
}

const text = new TextDecoder();

/** What a delivery does through its client. @internal */
export interface Settler {
  settleOne(delivery: Delivery, op: "ack" | "nack", options: { multiple?: boolean; requeue?: boolean }): void;
}

/** A message from a queue. */
export class Delivery {
  /** Unique for the client and increasing, over reconnections too. 0 when it came with noAck. */
  readonly tag: number;
  /** Whether it was delivered before and not acknowledged. */
  readonly redelivered: boolean;
  /** The exchange that the message was published to. */
  readonly exchange: string;
  /** The routing key that it was published with. */
  readonly key: string;
  readonly properties: Properties;
  readonly headers: ValueMap;
  readonly body: Uint8Array;
  readonly #settler: Settler | undefined;

  /** Without a settler there is nothing to acknowledge. @internal */
  constructor(
    message: { redelivered: boolean; exchange: string; key: string; props: ValueMap; headers: ValueMap },
    tag: number,
    body: Uint8Array,
    settler: Settler | undefined,
  ) {
    this.tag = tag;
    this.redelivered = message.redelivered;
    this.exchange = message.exchange;
    this.key = message.key;
    this.properties = propertiesOf(message.props);
    this.headers = message.headers;
    this.body = body;
    this.#settler = settler;
  }

  /** The body as text. What is not UTF-8 becomes U+FFFD. */
  text(): string {
    return text.decode(this.body);
  }

  /** The body as the JSON that it is; a SyntaxError when it is none. */
  json(): unknown {
    return JSON.parse(this.text());
  }

  /**
   * Says that the message was processed, and does not wait for the broker. Like nack and reject it does
   * nothing on a delivery that is settled, came with noAck, or came over a connection that was lost
   * since: that message is delivered again. Throws a ClosedError once the client is closed.
   */
  ack(): void {
    this.#settler?.settleOne(this, "ack", {});
  }

  /** Acknowledges this delivery and every earlier one, of all subscriptions of the client. */
  ackUpTo(): void {
    this.#settler?.settleOne(this, "ack", { multiple: true });
  }

  /** Gives the message back to its queue, to be delivered again; with requeue: false like reject. */
  nack({ requeue = true }: { requeue?: boolean } = {}): void {
    this.#settler?.settleOne(this, "nack", { requeue });
  }

  /** Refuses the message: it is dead-lettered when its queue has a dead-letter exchange, and else dropped. */
  reject(): void {
    this.#settler?.settleOne(this, "nack", { requeue: false });
  }
}
