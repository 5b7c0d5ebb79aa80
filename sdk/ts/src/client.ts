// The client: what users call, and what survives the loss of a connection.
import { type Answer, Connection, Lost, type Request, small } from "./connection.js";
import { Deque } from "./deque.js";
import { CancelledError, ClosedError, FireError, FullError, InvalidError, NackedError, ServerError, UnroutableError } from "./errors.js";
import { beginFrame, endFrame, endHeader, type Fields, type Frame, type Header, Op, ProtocolError } from "./frames.js";
import { type Body, Delivery, type Message, type PublishOptions, short, spell, type Spelt } from "./message.js";
import { FormatError, type ValueMap, Writer } from "./msgpack.js";
import { type SubscribeOptions, Subscription } from "./subscription.js";
import { type QueueRecord, Topology } from "./topology.js";
import type { Dial } from "./transport.js";
import { type Address, parseURL } from "./url.js";

export interface ReconnectOptions {
  /** The first pause before an attempt, in milliseconds. Each is twice as long as the one before. Default: 100. */
  minDelay?: number | undefined;
  /** The longest pause, in milliseconds. Default: 5000. */
  maxDelay?: number | undefined;
  /** Attempts before the client is closed. Default: no end. */
  maxAttempts?: number | undefined;
  /** How long calls wait for a connection before they fail with a ClosedError, in milliseconds. Default: 30000. */
  wait?: number | undefined;
}

export interface ConnectOptions {
  /** Shown to the broker's operators. */
  name?: string | undefined;
  /** The heartbeat to ask for, in seconds; 0 for none. A connection that is silent for two is lost. Default: 30. */
  heartbeat?: number | undefined;
  /** How long connecting may take, in milliseconds. Default: 10000. */
  timeout?: number | undefined;
  /** How a connection that is lost comes back; false: the client is closed instead. */
  reconnect?: ReconnectOptions | false | undefined;
  /** How many publishes may wait for their confirm. Further ones fail with a FullError. Default: 65536. */
  maxPendingMessages?: number | undefined;
  /** How many bytes they may have together. Default: 64 MiB. */
  maxPendingBytes?: number | undefined;
  /** Is told of errors that belong to no call: an unknown delivery tag, something that can't be declared again. */
  onError?: ((error: FireError) => void) | undefined;
  /** Is told when the broker asks publishers to pause, and to go on. The client obeys by itself. */
  onFlow?: ((paused: boolean) => void) | undefined;
  /** Is told why the connection was lost. */
  onDisconnect?: ((error: FireError) => void) | undefined;
  /** Is told that the connection is back, with all that was declared and subscribed. */
  onReconnect?: (() => void) | undefined;
  /** Gives up connecting. It has no effect later. */
  signal?: AbortSignal | undefined;
}

interface Call {
  /** Gives up waiting for the answer. What was asked for may happen nevertheless. */
  signal?: AbortSignal | undefined;
}

export interface ExchangeOptions extends Call {
  /** Whether it survives a restart of the broker. Default: true. */
  durable?: boolean | undefined;
  /** Deletes it with its last binding. */
  autoDelete?: boolean | undefined;
  /** Nobody can publish to it directly. */
  internal?: boolean | undefined;
  /** Only checks that it exists. */
  passive?: boolean | undefined;
  args?: ValueMap | undefined;
}

export interface QueueOptions extends Call {
  /** Whether it survives a restart of the broker. Default: true, and false for an exclusive queue. */
  durable?: boolean | undefined;
  /** Used by this client alone, and deleted with its connection. */
  exclusive?: boolean | undefined;
  /** Deletes it with its last subscription. */
  autoDelete?: boolean | undefined;
  /** Only checks that it exists. */
  passive?: boolean | undefined;
  /** Arguments with RabbitMQ's names, such as { "x-message-ttl": 60000 }. */
  args?: ValueMap | undefined;
}

/** What the broker says of a declared queue. */
export interface Queue {
  /** The name now: it changes with a reconnection when the broker has chosen it. */
  readonly name: string;
  readonly messages: number;
  readonly consumers: number;
}

export interface BindOptions extends Call {
  args?: ValueMap | undefined;
}

/** A message that get took, and how many are left. */
export interface Got {
  readonly message: Delivery | null;
  readonly remaining: number;
}

/** One publish until it is confirmed or refused. */
interface Publish extends Spelt {
  readonly resolve: () => void;
  readonly reject: (e: unknown) => void;
  deadline: number; // for a connection, in milliseconds since 1970
  returned: boolean;
  over: boolean; // its caller knows
  answered: boolean; // refused, ahead of older ones
}

interface Waiter {
  readonly run: (c: Connection) => void;
  readonly fail: (e: FireError) => void;
  readonly timer: ReturnType<typeof setTimeout>;
}

const maxWaiting = 65_536; // calls that wait for a connection; beyond it they fail with a FullError
const sweepMillis = 50; // how much later than its deadline a publish may fail
const maxWindow = 65_536; // of publishAll

/**
 * Client is one connection to a broker, and the ones that follow when it is lost: what was declared and
 * subscribed comes back, and what was published and not confirmed is published again. connect makes one.
 */
export class Client {
  readonly #dial: Dial;
  readonly #address: Address;
  readonly #options: ConnectOptions;
  readonly #reconnect: Required<{ [K in keyof ReconnectOptions]: number }> | undefined;

  #ready: Connection | undefined; // calls use it
  #live: Connection | undefined; // the same, or one on which things are being declared again
  #lostBy: FireError | undefined; // what ended the last connection, or the last attempt
  #over: FireError | undefined; // why the client is closed
  #closing: ((error: FireError | undefined) => void) | undefined;
  readonly #stop = new AbortController(); // ends reconnecting
  readonly #waiters = new Set<Waiter>();
  readonly #topology = new Topology();

  #paused = false;
  #seq = 0; // the last sequence number of the connection
  readonly #waiting = new Deque<Publish>(); // not sent on this connection
  readonly #unconfirmed = new Deque<Publish>(); // sent; the last one has #seq
  #pendingMessages = 0;
  #pendingBytes = 0;
  #sweep: ReturnType<typeof setTimeout> | undefined;
  readonly #writer = new Writer(64 << 10);

  readonly #subscriptions = new Map<number, Subscription>();
  #lastSubscription = 0;
  #base = 0; // tags of the connection begin behind it
  #lastTag = 0; // the highest one that was given out
  readonly #unacked = new Map<number, Subscription | null>(); // in the order of their tags; null for a get

  /** Resolves when the client is closed for good: with the reason, or undefined after close. */
  readonly closed: Promise<FireError | undefined>;

  /** Connects, for the entry points of the package. @internal */
  static async connect(dial: Dial, url: string, options: ConnectOptions): Promise<Client> {
    const client = new Client(dial, parseURL(url), options);
    client.#ready = await client.#attempt(options.signal);
    return client;
  }

  private constructor(dial: Dial, address: Address, options: ConnectOptions) {
    this.#dial = dial;
    this.#address = address;
    this.#options = options;
    const heartbeat = options.heartbeat ?? 0;
    if (!Number.isSafeInteger(heartbeat) || heartbeat < 0) throw new InvalidError("the heartbeat is no whole number of seconds");
    const r = options.reconnect ?? {};
    if (r !== false) {
      const { minDelay = 100, maxDelay = 5_000, maxAttempts = Infinity, wait = 30_000 } = r;
      this.#reconnect = { minDelay, maxDelay: Math.max(minDelay, maxDelay), maxAttempts, wait };
    }
    this.closed = new Promise((resolve) => {
      this.#closing = resolve;
    });
  }

  /** The name of the connection in the broker's management; undefined while there is none. */
  get connectionId(): string | undefined {
    return this.#ready?.id;
  }

  /** Whether the broker has asked publishers to pause. */
  get paused(): boolean {
    return this.#paused;
  }

  // ---- Topology

  /** Declares an exchange: direct, fanout, topic or headers. */
  async declareExchange(name: string, type: string, o: ExchangeOptions = {}): Promise<void> {
    const fields = {
      name: short(name, "the name"),
      type,
      durable: o.durable ?? true,
      auto_delete: o.autoDelete ?? false,
      internal: o.internal ?? false,
      passive: o.passive ?? false,
      args: o.args ?? {},
    };
    await this.#call("declare_exchange", () => fields, o.signal, () => {
      if (!fields.passive) this.#topology.exchangeDeclared(fields);
    });
  }

  /** Deletes an exchange; that there is none is no error. */
  async deleteExchange(name: string, o: Call & { ifUnused?: boolean } = {}): Promise<void> {
    await this.#call("delete_exchange", () => ({ name, if_unused: o.ifUnused ?? false }), o.signal, () => this.#topology.exchangeDeleted(name));
  }

  /** Declares a queue. With the name "" the broker chooses one. */
  async declareQueue(name = "", o: QueueOptions = {}): Promise<Queue> {
    const fields = {
      name: short(name, "the name"),
      durable: o.durable ?? o.exclusive !== true,
      exclusive: o.exclusive ?? false,
      auto_delete: o.autoDelete ?? false,
      passive: o.passive ?? false,
      args: o.args ?? {},
    };
    let record: QueueRecord | undefined;
    const answer = await this.#call("declare_queue", () => ({ ...fields, name: this.#now(fields.name) }), o.signal, (a) => {
      if (!fields.passive) record = this.#topology.queueDeclared(fields, ok(a).name);
    });
    const { name: given, messages, consumers } = ok(answer);
    return {
      get name() {
        return record?.name ?? given;
      },
      messages: small(messages),
      consumers: small(consumers),
    };
  }

  /** Deletes a queue and gives the number of its messages; that there is none is no error. */
  async deleteQueue(name: string, o: Call & { ifUnused?: boolean; ifEmpty?: boolean } = {}): Promise<number> {
    const fields = { if_unused: o.ifUnused ?? false, if_empty: o.ifEmpty ?? false };
    const answer = await this.#call("delete_queue", () => ({ name: this.#now(name), ...fields }), o.signal, () => this.#topology.queueDeleted(name));
    return small(ok(answer).messages);
  }

  /** Drops the messages of a queue that are not with a consumer, and gives their number. */
  async purgeQueue(name: string, o: Call = {}): Promise<number> {
    return small(ok(await this.#call("purge_queue", () => ({ name: this.#now(name) }), o.signal)).messages);
  }

  /** Binds a queue to an exchange. */
  bindQueue(queue: string, exchange: string, key = "", o: BindOptions = {}): Promise<void> {
    return this.#bind("bind", { exchange, queue, key, args: o.args ?? {} }, o.signal);
  }

  /** Removes a binding; that there is none is no error. */
  unbindQueue(queue: string, exchange: string, key = "", o: BindOptions = {}): Promise<void> {
    return this.#bind("unbind", { exchange, queue, key, args: o.args ?? {} }, o.signal);
  }

  /** Binds the exchange to to the exchange from: it gets from's messages that match. */
  bindExchange(to: string, from: string, key = "", o: BindOptions = {}): Promise<void> {
    return this.#bind("bind", { exchange: from, to_exchange: to, key, args: o.args ?? {} }, o.signal);
  }

  /** Removes a binding between exchanges; that there is none is no error. */
  unbindExchange(to: string, from: string, key = "", o: BindOptions = {}): Promise<void> {
    return this.#bind("unbind", { exchange: from, to_exchange: to, key, args: o.args ?? {} }, o.signal);
  }

  async #bind(op: "bind" | "unbind", fields: Omit<Fields<"bind">, "rid">, signal: AbortSignal | undefined): Promise<void> {
    const now = (): Omit<Fields<"bind">, "rid"> => (fields.queue === undefined ? fields : { ...fields, queue: this.#now(fields.queue) });
    await this.#call(op, now, signal, () => (op === "bind" ? this.#topology.bound(fields) : this.#topology.unbound(fields)));
  }

  /** The name now of a queue that was declared here. */
  #now(queue: string): string {
    return this.#topology.queue(queue)?.name ?? queue;
  }

  // ---- Publishing

  /**
   * Publishes a message. The promise is fulfilled when the broker has confirmed it: a persistent message
   * in a durable queue is on disk then. To have many in flight, don't await each: see publishAll.
   *
   * Rejects with an UnroutableError for a mandatory message that no queue received, a NackedError when the
   * broker refused it, an InvalidError when it can't be sent, a FullError when too many wait already, and
   * a ClosedError when the client is closed or not connected in time; it may have arrived then.
   */
  publish(exchange: string, key: string, body: Body, options: PublishOptions = {}): Promise<void> {
    return new Promise((resolve, reject) => {
      options.signal?.throwIfAborted();
      this.#usable();
      const spelt = spell(exchange, key, body, options);
      if (this.#ready !== undefined) fits(spelt, this.#ready.maxFrame);
      const { maxPendingMessages = 65_536, maxPendingBytes = 64 << 20 } = this.#options;
      if (this.#pendingMessages >= maxPendingMessages || (this.#pendingMessages > 0 && this.#pendingBytes + spelt.bytes.length > maxPendingBytes)) {
        throw new FullError(`${this.#pendingMessages} publishes with ${this.#pendingBytes} bytes wait for their confirms`);
      }
      const deadline = this.#ready === undefined ? Date.now() + this.#reconnect!.wait : Infinity;
      const p: Publish = { ...spelt, resolve, reject, deadline, returned: false, over: false, answered: false };
      this.#pendingMessages++;
      this.#pendingBytes += p.bytes.length;
      if (options.signal !== undefined) this.#abortable(p, options.signal);
      this.#waiting.push(p);
      if (this.#ready === undefined) this.#sweepLater();
      else this.#pump();
    });
  }

  /**
   * Publishes all messages with up to window of them in flight (1000 unless given), and gives their number
   * once all are confirmed. After a failure no more are taken; it rejects with the first failure once
   * the others are confirmed or refused. When signal is aborted it rejects at once, and does not wait for those
   * that are in flight.
   */
  async publishAll(
    messages: Iterable<Message> | AsyncIterable<Message>,
    { window = 1000, signal }: { window?: number; signal?: AbortSignal } = {},
  ): Promise<number> {
    if (!(window >= 1 && window <= maxWindow)) throw new InvalidError(`the window is not between 1 and ${maxWindow}`);
    let count = 0;
    let inFlight = 0;
    let failure: { error: unknown } | undefined;
    let wake: (() => void) | undefined;
    const below = async (limit: number): Promise<void> => {
      while (inFlight >= limit && signal?.aborted !== true) await new Promise<void>((resolve) => (wake = resolve));
    };
    const abort = (): void => wake?.();
    signal?.addEventListener("abort", abort, { once: true });
    const landed = (): void => {
      inFlight--;
      wake?.();
    };
    try {
      for await (const { exchange = "", key = "", body, ...options } of messages) {
        await below(window);
        if (failure !== undefined || signal?.aborted === true) break;
        inFlight++;
        this.publish(exchange, key, body, options).then(
          () => {
            count++;
            landed();
          },
          (error: unknown) => {
            failure ??= { error };
            landed();
          },
        );
      }
      await below(1);
    } finally {
      signal?.removeEventListener("abort", abort);
    }
    signal?.throwIfAborted();
    if (failure !== undefined) throw failure.error;
    return count;
  }

  #abortable(p: Publish, signal: AbortSignal): void {
    const abort = (): void => this.#finish(p, signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    const quiet = (): void => signal.removeEventListener("abort", abort);
    const { resolve, reject } = p;
    Object.assign(p, { resolve: () => (quiet(), resolve()), reject: (e: unknown) => (quiet(), reject(e)) });
  }

  /** Tells the caller of a publish what became of it, once. */
  #finish(p: Publish, error?: unknown): void {
    if (p.over) return;
    p.over = true;
    this.#pendingMessages--;
    this.#pendingBytes -= p.bytes.length;
    if (error === undefined) p.resolve();
    else p.reject(error);
  }

  /** Sends what waits to be published, as far as the connection takes it. */
  #pump(): void {
    const c = this.#ready;
    if (c === undefined || this.#paused) return;
    const limit = c.maxFrame;
    while (this.#waiting.length > 0 && c.writable) {
      const p = this.#waiting.shift()!;
      if (p.over) continue;
      try {
        fits(p, limit); // a broker may come back with another limit
      } catch (e) {
        this.#finish(p, e);
        continue;
      }
      this.#unconfirmed.push(p);
      const w = this.#writer;
      w.reset();
      const start = beginFrame(w, Op.publish, c.stream);
      w.mapHead(p.entries + 1);
      w.string("seq");
      w.value(++this.#seq);
      w.bytes(p.bytes);
      endHeader(w, start, p.bytes.length - p.header);
      if (c.stream) endFrame(w, start);
      c.write(w.written());
    }
  }

  /** The publish with a sequence number. */
  #sent(seq: number): Publish | undefined {
    return this.#unconfirmed.at(seq - (this.#seq - this.#unconfirmed.length + 1));
  }

  #confirmed(m: Header<"confirm">): void {
    if (m.nack) {
      const p = this.#sent(small(m.seq));
      if (p === undefined) return;
      p.answered = true;
      this.#finish(p, new NackedError(m.msg, small(m.code)));
      while (this.#unconfirmed.at(0)?.answered === true) this.#unconfirmed.shift();
      return;
    }
    for (let first = this.#seq - this.#unconfirmed.length + 1; first <= small(m.upto); first++) {
      const p = this.#unconfirmed.shift();
      if (p === undefined) break;
      this.#finish(p, p.returned ? new UnroutableError("no queue received the message", 312) : undefined);
    }
  }

  /** Publishes that wait for a connection fail when they have waited long enough. */
  #sweepLater(): void {
    if (this.#sweep !== undefined || this.#ready !== undefined) return;
    const first = this.#waiting.at(0);
    if (first === undefined || first.deadline === Infinity) return;
    this.#sweep = setTimeout(
      () => {
        this.#sweep = undefined;
        const now = Date.now();
        for (let p = this.#waiting.at(0); p !== undefined && (p.over || p.deadline <= now); p = this.#waiting.at(0)) {
          this.#waiting.shift();
          this.#finish(p, this.#tooLong());
        }
        this.#sweepLater();
      },
      Math.max(first.deadline - Date.now(), sweepMillis),
    );
  }

  #tooLong(): ClosedError {
    return new ClosedError(`there was no connection for ${this.#reconnect?.wait} ms`, this.#lostBy);
  }

  // ---- Consuming

  /** Begins to receive the messages of a queue. */
  async subscribe(queue: string, o: SubscribeOptions = {}): Promise<Subscription> {
    const s = new Subscription(++this.#lastSubscription, this.#topology.queue(queue) ?? queue, this.#supply, o);
    const fields = (): Omit<Fields<"subscribe">, "rid"> => {
      this.#subscriptions.set(s.id, s); // deliveries come right behind the answer
      return s.fields;
    };
    const late = (answer: Answer | undefined): void => {
      if (answer === undefined) this.#subscriptions.delete(s.id);
      else void this.#end(s).catch(() => {}); // nobody is left to hear of it
    };
    try {
      await this.#call("subscribe", fields, o.signal, undefined, late);
      return s;
    } catch (e) {
      s.finish(undefined);
      if (o.signal?.aborted !== true) this.#subscriptions.delete(s.id);
      throw e;
    }
  }

  readonly #supply = {
    grant: (sub: number, credit: number): void => this.#live?.send("credit", { sub, credit }),
    giveBack: (deliveries: Delivery[]): void => {
      for (const d of deliveries) if (this.#unacked.has(d.tag)) this.#settle("nack", d.tag, false, true);
    },
    unsubscribe: (s: Subscription, signal: AbortSignal | undefined): Promise<void> => this.#end(s, signal),
  };

  /** Ends a subscription here and at the broker. */
  async #end(s: Subscription, signal?: AbortSignal): Promise<void> {
    // The request comes first, so that what is given back does not come again. Without a connection there
    // is nothing to ask for: it is not resumed.
    const gone = (): void => void this.#subscriptions.delete(s.id);
    const request = this.#live === undefined ? gone() : this.#call("unsubscribe", () => ({ sub: s.id }), signal, gone);
    s.finish(undefined);
    await request;
    // The broker deletes an auto-delete queue with its last subscription: it is not to come back alone.
    const queue = this.#topology.queue(s.queue);
    if (queue?.fields.auto_delete === true && ![...this.#subscriptions.values()].some((other) => other.queue === s.queue)) {
      this.#topology.queueDeleted(s.queue);
    }
  }

  /** Takes one message from a queue. A subscription is much cheaper for more than a few. */
  async get(queue: string, o: Call & { noAck?: boolean } = {}): Promise<Got> {
    const noAck = o.noAck ?? false;
    let got: Got = { message: null, remaining: 0 };
    const take = (a: Answer): void => {
      if (a.op === "get_ok") got = { message: this.#delivery(a.header, a.payload, null, noAck), remaining: small(a.header.remaining) };
    };
    const late = (): void => got.message?.nack();
    await this.#call("get", () => ({ queue: this.#now(queue), no_ack: noAck }), o.signal, take, late);
    return got;
  }

  /** Makes a delivery, and notes that it is to be settled. It owns its memory. */
  #delivery(m: Header<"deliver" | "get_ok">, payload: Uint8Array, s: Subscription | null, noAck: boolean): Delivery {
    if (noAck) return new Delivery(m, 0, payload.slice(), undefined);
    this.#lastTag = this.#base + small(m.tag);
    this.#unacked.set(this.#lastTag, s);
    return new Delivery(m, this.#lastTag, payload.slice(), this.#settler);
  }

  /**
   * Acknowledges a delivery by its tag, with multiple every earlier one too; tag 0 with multiple is all of
   * them. Tags of a connection that was lost are ignored; a tag that never was is told to onError.
   */
  ack(tag: number, { multiple = false }: { multiple?: boolean } = {}): void {
    this.#usable();
    this.#settle("ack", tag, multiple, false);
  }

  /** Gives a delivery back to its queue, or with requeue: false refuses it, by its tag as ack. */
  nack(tag: number, { multiple = false, requeue = true }: { multiple?: boolean; requeue?: boolean } = {}): void {
    this.#usable();
    this.#settle("nack", tag, multiple, requeue);
  }

  readonly #settler = {
    settleOne: ({ tag }: Delivery, op: "ack" | "nack", { multiple = false, requeue = false }: { multiple?: boolean; requeue?: boolean }): void => {
      this.#usable();
      if (this.#unacked.has(tag)) this.#settle(op, tag, multiple, requeue);
    },
  };

  #settle(op: "ack" | "nack", tag: number, multiple: boolean, requeue: boolean): void {
    const all = multiple && tag === 0;
    if (!all && tag <= this.#base) return; // of a connection that was lost
    if (this.#live === undefined) return;
    const wire = all ? 0 : tag - this.#base;
    if (op === "ack") this.#live.send("ack", { tag: wire, multiple });
    else this.#live.send("nack", { tag: wire, multiple, requeue });
    if (!multiple) {
      const s = this.#unacked.get(tag);
      this.#unacked.delete(tag);
      s?.processed();
      return;
    }
    for (const [t, s] of this.#unacked) {
      if (!all && t > tag) break;
      this.#unacked.delete(t);
      s?.processed();
    }
  }

  // ---- What comes

  #frame(f: Frame): void {
    switch (f.op) {
      case "confirm":
        return this.#confirmed(f.header);
      case "return": {
        const p = this.#sent(small(f.header.seq));
        if (p !== undefined) p.returned = true;
        return;
      }
      case "deliver":
        return this.#deliver(f.header, f.payload);
      case "cancelled": {
        const s = this.#subscriptions.get(small(f.header.sub));
        if (s === undefined) return;
        this.#subscriptions.delete(s.id);
        return s.finish(new CancelledError(f.header.msg, small(f.header.code)));
      }
      case "flow":
        if (this.#paused !== f.header.pause) this.#tell(this.#options.onFlow, f.header.pause);
        this.#paused = f.header.pause;
        return this.#pump();
      case "error":
        return this.#tell(this.#options.onError, new ServerError(f.header.msg, small(f.header.code)));
      default: // nothing that a broker sends
    }
  }

  #deliver(m: Header<"deliver">, payload: Uint8Array): void {
    const s = this.#subscriptions.get(small(m.sub));
    if (s === undefined) throw new ProtocolError(`a delivery for subscription ${m.sub}, which there is not`);
    s.deliver(this.#delivery(m, payload, s, s.noAck));
  }

  /** Calls a function of the user's, apart from the work on frames: it may throw. */
  #tell<T>(fn: ((arg: T) => void) | undefined, arg: T): void {
    if (fn !== undefined) queueMicrotask(() => fn(arg));
  }

  // ---- Calls, over connections that come and go

  /**
   * Makes a request on the connection, once there is one, and again when it was lost before the answer.
   * fields are asked for each time it is sent. done gets the answer before anything else that comes is
   * handled. late gets it when the caller has given up, or undefined when there is none.
   */
  #call<N extends Request>(
    op: N,
    fields: () => Omit<Fields<N>, "rid">,
    signal?: AbortSignal,
    done?: (answer: Answer) => void,
    late?: (answer: Answer | undefined) => void,
  ): Promise<Answer> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      let over = false; // the caller knows
      const end = (tell: () => void): void => {
        over = true;
        signal?.removeEventListener("abort", abort);
        tell();
      };
      const fail = (e: unknown): void => {
        if (over) late?.(undefined);
        else end(() => reject(e instanceof FormatError ? new InvalidError(e.message) : e));
      };
      const abort = (): void => end(() => reject(signal!.reason));
      signal?.addEventListener("abort", abort, { once: true });
      const answered = (answer: Answer): void => {
        done?.(answer);
        if (over) late?.(answer);
        else end(() => resolve(answer));
      };
      const run = (c: Connection): void => {
        if (over) return late?.(undefined);
        try {
          c.request(op, fields(), answered, (e) => (e instanceof Lost && !over ? this.#connected(run, fail) : fail(e)));
        } catch (e) {
          fail(e);
        }
      };
      this.#connected(run, fail);
    });
  }

  /** Calls run with the connection: now, or as soon as there is one. */
  #connected(run: (c: Connection) => void, fail: (e: FireError) => void): void {
    if (this.#ready !== undefined) return run(this.#ready);
    if (this.#over !== undefined) return fail(new ClosedError(this.#over.message, this.#over.cause));
    if (this.#waiters.size >= maxWaiting) return fail(new FullError(`${maxWaiting} calls wait for a connection`));
    const timer = setTimeout(() => {
      this.#waiters.delete(waiter);
      fail(this.#tooLong());
    }, this.#reconnect!.wait);
    const waiter = { run, fail, timer };
    this.#waiters.add(waiter);
  }

  #usable(): void {
    if (this.#over !== undefined) throw new ClosedError(this.#over.message, this.#over.cause);
  }

  // ---- Connections

  /** Opens a connection on which nothing is declared yet. */
  async #attempt(signal?: AbortSignal): Promise<Connection> {
    let connection: Connection | undefined;
    let lost: FireError | undefined; // while nobody could be told
    const { name = "", heartbeat = 30, timeout = 10_000 } = this.#options;
    connection = await Connection.open(
      this.#dial,
      this.#address,
      { name, heartbeat, timeout },
      {
        frame: (f) => this.#frame(f),
        drained: () => this.#pump(),
        lost: (e) => {
          lost = e;
          if (connection !== undefined && this.#live === connection) this.#lost(e);
        },
      },
      signal,
    );
    if (lost !== undefined) throw lost as FireError;
    if (this.#over !== undefined) {
      connection.destroy();
      throw this.#over;
    }
    this.#live = connection;
    this.#base = this.#lastTag;
    return connection;
  }

  /** The connection is lost, and with it all that belongs to it alone. */
  #lost(error: FireError): void {
    const wasReady = this.#ready !== undefined;
    this.#live = this.#ready = undefined;
    this.#lostBy = error;
    this.#unacked.clear();
    for (const s of this.#subscriptions.values()) {
      if (s.ended) this.#subscriptions.delete(s.id);
      else s.disconnected();
    }
    this.#seq = 0;
    this.#paused = false;
    if (!wasReady) return; // the attempt that is under way goes on to the next one
    // What was sent comes before what was not.
    const again = [...this.#unconfirmed.drain(), ...this.#waiting.drain()].filter((p) => !p.over);
    const deadline = Date.now() + (this.#reconnect?.wait ?? 0);
    for (const p of again) {
      p.deadline = deadline;
      p.returned = false;
      this.#waiting.push(p);
    }
    this.#tell(this.#options.onDisconnect, error);
    if (this.#reconnect === undefined) return this.#shut(new ClosedError(`the connection was lost: ${error.message}`, error), false);
    this.#sweepLater();
    void this.#return(this.#reconnect);
  }

  /** Connects until it succeeds or the client is closed. */
  async #return({ minDelay, maxDelay, maxAttempts }: { minDelay: number; maxDelay: number; maxAttempts: number }): Promise<void> {
    const lostAt = Date.now();
    for (let n = 0; ; n++) {
      if (n >= maxAttempts) {
        return this.#shut(new ClosedError(`no connection after ${n} attempts: ${this.#lostBy?.message}`, this.#lostBy), false);
      }
      // Clients that were dropped together don't come back together.
      const longest = Math.min(minDelay * 2 ** n, maxDelay);
      await this.#pause(minDelay + Math.random() * (longest - minDelay));
      if (this.#over !== undefined) return;
      try {
        const c = await this.#attempt(this.#stop.signal);
        await this.#restore(c, lostAt);
        if (this.#live !== c) continue; // lost with the last answer
        return this.#restored(c);
      } catch (e) {
        if (this.#over !== undefined) return;
        if (!(e instanceof FireError || e instanceof Lost)) throw e;
        this.#lostBy = e instanceof Lost ? e.cause : e;
        const live = this.#live;
        if (live === undefined) continue;
        live.destroy();
        this.#lost(this.#lostBy);
      }
    }
  }

  #pause(millis: number): Promise<void> {
    return new Promise((resolve) => {
      const { signal } = this.#stop;
      const over = (): void => {
        clearTimeout(timer);
        signal.removeEventListener("abort", over);
        resolve();
      };
      const timer = setTimeout(over, millis);
      signal.addEventListener("abort", over);
    });
  }

  /** Declares and subscribes again. What can't be is told to onError, and to the subscription. */
  async #restore(c: Connection, lostAt: number): Promise<void> {
    // While the broker has not noticed that the old connection is gone, what is exclusive belongs to it.
    const patience = lostAt + 3000 * c.heartbeat;
    const again = async <N extends Request>(op: N, fields: Fields<N>, refused?: (e: ServerError) => void): Promise<Answer | undefined> => {
      try {
        return await new Promise<Answer>((resolve, reject) => c.request(op, fields, resolve, reject));
      } catch (e) {
        if (!(e instanceof ServerError) || (e.code === 405 && Date.now() < patience)) throw e;
        refused?.(e);
        this.#tell(this.#options.onError, e);
        return undefined;
      }
    };
    const declareQueue = async (record: QueueRecord): Promise<void> => {
      const answer = await again("declare_queue", record.fields);
      if (answer === undefined) return;
      const { name } = ok(answer);
      if (name !== record.name) this.#topology.queueRenamed(record, name);
    };
    const subscribe = (s: Subscription): Promise<unknown> =>
      again("subscribe", s.fields, (e) => {
        this.#subscriptions.delete(s.id);
        s.finish(new CancelledError(e.message, e.code));
      });
    await Promise.all([...this.#topology.exchanges().map((x) => again("declare_exchange", x)), ...this.#topology.queues().map(declareQueue)]);
    await Promise.all(this.#topology.bindings().map((b) => again("bind", b)));
    await Promise.all([...this.#subscriptions.values()].map(subscribe));
  }

  /** The connection is as the lost one was: what waited goes on. */
  #restored(c: Connection): void {
    this.#ready = c;
    clearTimeout(this.#sweep);
    this.#sweep = undefined;
    this.#tell(this.#options.onReconnect, undefined);
    const waiters = [...this.#waiters];
    this.#waiters.clear();
    for (const { run, timer } of waiters) {
      clearTimeout(timer);
      run(c);
    }
    this.#pump();
  }

  /**
   * Says goodbye to the broker and closes the client. Calls and publishes that wait fail with a
   * ClosedError: await those that matter first.
   */
  async close(): Promise<void> {
    if (this.#over !== undefined) return;
    const live = this.#live;
    this.#shut(new ClosedError(), true);
    await live?.close();
  }

  /** Everything that waits fails. own: because of close. */
  #shut(error: ClosedError, own: boolean): void {
    this.#over = error;
    this.#ready = this.#live = undefined;
    clearTimeout(this.#sweep);
    this.#stop.abort();
    for (const p of [...this.#unconfirmed.drain(), ...this.#waiting.drain()]) this.#finish(p, error);
    for (const { fail, timer } of this.#waiters) {
      clearTimeout(timer);
      fail(error);
    }
    this.#waiters.clear();
    for (const s of this.#subscriptions.values()) s.finish(error, own);
    this.#subscriptions.clear();
    this.#closing?.(own ? undefined : error);
  }
}

/** Checks that a publish fits in a frame. */
function fits(p: Spelt, maxFrame: number): void {
  const frame = p.bytes.length + 5 + 5 + 4 + 9; // op and hlen, the map's head, "seq" and its number
  if (frame > maxFrame) throw new InvalidError(`a message of ${p.bytes.length} bytes does not fit in the broker's frames of ${maxFrame}`);
}

/** The ok that a request is answered with that is no get. */
function ok(answer: Answer): Header<"ok"> {
  if (answer.op !== "ok") throw new ProtocolError("get_ok answers another request");
  return answer.header;
}
