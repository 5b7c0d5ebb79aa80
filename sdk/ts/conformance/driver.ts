// The driver of the TypeScript SDK for the conformance suite (docs/conformance.md), without its stdin and
// stdout: it runs in Node.js and in a page alike.
import type { Client, ConnectOptions, Delivery, Properties, PublishOptions, Subscription, Value, ValueMap } from "../src/shared.js";
import { CancelledError, ClosedError, FireError, InvalidError, version } from "../src/shared.js";

export type Connect = (url: string, options: ConnectOptions) => Promise<Client>;

/** A command has the fields that its op has; the runner always sends them all. */
interface Command {
  id: number;
  op: string;
  url: string;
  reconnect: boolean;
  name: string;
  type: string;
  durable: boolean;
  auto_delete: boolean;
  internal: boolean;
  exclusive: boolean;
  passive: boolean;
  if_unused: boolean;
  if_empty: boolean;
  args: ValueMap;
  exchange: string;
  queue: string;
  to_exchange: string;
  key: string;
  body: string;
  body_base64: string;
  persistent: boolean;
  mandatory: boolean;
  properties: Record<string, string | number | bigint>;
  headers: ValueMap;
  count: number;
  sub: string;
  prefetch: number;
  no_ack: boolean;
  tag: string;
  timeout_ms: number;
  multiple: boolean;
  requeue: boolean;
}

const properties = [
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

export class Driver {
  readonly #connect: Connect;
  #client: Client | undefined;
  #subscriptions = new Map<string, Subscription>();
  #errors: { code: number; message: string }[] = [];

  constructor(connect: Connect) {
    this.#connect = connect;
  }

  /** Carries out the command of a line and gives the line of its reply. */
  async reply(line: string): Promise<string> {
    const c = parse(line) as unknown as Command;
    try {
      return write({ id: c.id, ok: true, result: await this.#do(c) });
    } catch (e) {
      const error = e as Error;
      // What is no error of the package is the signal's, or a bug that is to be seen.
      const kind = error instanceof FireError ? error.kind : error.name === "TimeoutError" ? "timeout" : "bug";
      return write({ id: c.id, ok: false, error: { kind, code: error instanceof FireError ? error.code : 0, message: error.message } });
    }
  }

  async close(): Promise<void> {
    await this.#client?.close();
  }

  async #do(c: Command): Promise<ValueMap> {
    switch (c.op) {
      case "connect":
        return await this.#open(c);
      case "close":
        await this.close();
        return {};
      case "errors": {
        const errors = this.#errors;
        this.#errors = [];
        return { errors };
      }
      case "info":
        return { name: "firemq-ts", version, lang: "typescript" };
    }
    if (this.#client === undefined) throw new ClosedError("not connected");
    return await this.#use(this.#client, c);
  }

  async #open(c: Command): Promise<ValueMap> {
    await this.close();
    this.#subscriptions.clear();
    this.#errors = [];
    this.#client = await this.#connect(c.url, {
      reconnect: c.reconnect ? {} : false,
      onError: ({ code, message }) => this.#errors.push({ code, message }),
    });
    return { conn_id: this.#client.connectionId };
  }

  async #use(client: Client, c: Command): Promise<ValueMap> {
    const { durable, exclusive, passive, args } = c;
    switch (c.op) {
      case "declare_exchange":
        await client.declareExchange(c.name, c.type, { durable, autoDelete: c.auto_delete, internal: c.internal, passive, args });
        return {};
      case "delete_exchange":
        await client.deleteExchange(c.name, { ifUnused: c.if_unused });
        return {};
      case "declare_queue": {
        const { name, messages, consumers } = await client.declareQueue(c.name, { durable, exclusive, autoDelete: c.auto_delete, passive, args });
        return { name, messages, consumers };
      }
      case "delete_queue":
        return { messages: await client.deleteQueue(c.name, { ifUnused: c.if_unused, ifEmpty: c.if_empty }) };
      case "purge_queue":
        return { messages: await client.purgeQueue(c.name) };
      case "bind":
        if (c.queue !== "") await client.bindQueue(c.queue, c.exchange, c.key, { args });
        else await client.bindExchange(c.to_exchange, c.exchange, c.key, { args });
        return {};
      case "unbind":
        if (c.queue !== "") await client.unbindQueue(c.queue, c.exchange, c.key, { args });
        else await client.unbindExchange(c.to_exchange, c.exchange, c.key, { args });
        return {};
      case "publish":
        await client.publish(c.exchange, c.key, c.body, options(c));
        return {};
      case "publish_bytes":
        await client.publish(c.exchange, c.key, fromBase64(c.body_base64), options(c));
        return {};
      case "publish_many":
        return await this.#publishMany(client, c);
      case "subscribe":
        this.#subscriptions.set(
          c.sub,
          await client.subscribe(c.queue, { prefetch: c.prefetch, noAck: c.no_ack, exclusive, tag: c.tag, args }),
        );
        return {};
      case "next":
        return await this.#next(c);
      case "unsubscribe":
        await this.#subscription(c).unsubscribe();
        return {};
      case "ack":
        client.ack(Number(c.tag), { multiple: c.multiple });
        return {};
      case "nack":
        client.nack(Number(c.tag), { multiple: c.multiple, requeue: c.requeue });
        return {};
      case "get": {
        const { message, remaining } = await client.get(c.queue, { noAck: c.no_ack });
        return { message: message === null ? null : show(message), remaining };
      }
      default:
        throw new InvalidError(`unknown op ${c.op}`);
    }
  }

  async #publishMany(client: Client, c: Command): Promise<ValueMap> {
    const publishes = Array.from({ length: c.count }, (_, i) => client.publish(c.exchange, c.key, `${c.body}-${i}`, { persistent: c.persistent }));
    let confirmed = 0;
    for (const result of await Promise.allSettled(publishes)) {
      if (result.status === "fulfilled") confirmed++;
      else if (result.reason instanceof ClosedError) throw result.reason;
    }
    return { confirmed };
  }

  #subscription(c: Command): Subscription {
    const s = this.#subscriptions.get(c.sub);
    if (s === undefined) throw new InvalidError(`no subscription ${c.sub}`);
    return s;
  }

  async #next(c: Command): Promise<ValueMap> {
    const s = this.#subscription(c);
    try {
      const message = await s.receive({ signal: AbortSignal.timeout(c.timeout_ms) });
      return message === undefined ? { message: null, cancelled: true } : { message: show(message) };
    } catch (e) {
      if (e instanceof CancelledError) return { message: null, cancelled: true };
      if ((e as Error).name === "TimeoutError") return { message: null };
      throw e;
    }
  }
}

function options(c: Command): PublishOptions {
  const p: Record<string, Value> = {};
  for (const [name, key] of properties) {
    const v = c.properties[key];
    if (v !== undefined) p[name] = v;
  }
  return { persistent: c.persistent, mandatory: c.mandatory, properties: p as Properties, headers: c.headers };
}

function show(m: Delivery): ValueMap {
  const p: Record<string, Value> = {};
  for (const [name, key] of properties) {
    const v = m.properties[name];
    if (v !== undefined) p[key] = v;
  }
  return {
    body: textOf(m.body),
    body_base64: toBase64(m.body),
    exchange: m.exchange,
    routing_key: m.key,
    redelivered: m.redelivered,
    tag: m.tag === 0 ? "" : String(m.tag),
    properties: p,
    headers: m.headers,
  };
}

function textOf(body: Uint8Array): string | null {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body);
  } catch {
    return null;
  }
}

function fromBase64(s: string): Uint8Array {
  return Uint8Array.from(atob(s), (c) => c.charCodeAt(0));
}

function toBase64(bytes: Uint8Array): string {
  let s = "";
  for (let at = 0; at < bytes.length; at += 0x8000) s += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(s);
}

// JSON whose integers are exact: those that a number can't hold are bigints.

const tokens = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const mark = "\u0000int:"; // no string of a command begins so

function parse(line: string): Value {
  const marked = line.replace(tokens, (t) => (/^-?\d{16,}$/.test(t) ? JSON.stringify(mark + t) : t));
  return JSON.parse(marked, (_, v: unknown) => {
    if (typeof v !== "string" || !v.startsWith(mark)) return v;
    return BigInt(v.slice(mark.length));
  }) as Value;
}

function write(v: Value | undefined): string {
  if (typeof v === "bigint") return String(v);
  if (v instanceof Uint8Array) return JSON.stringify(toBase64(v));
  if (Array.isArray(v)) return `[${v.map(write).join()}]`;
  if (typeof v !== "object" || v === null) return JSON.stringify(v);
  const entries = Object.entries(v).filter(([, item]) => item !== undefined);
  return `{${entries.map(([key, item]) => `${JSON.stringify(key)}:${write(item as Value)}`).join()}}`;
}
