// A subscription: the buffer between a connection and whoever receives, and the credit that fills it.
import { CancelledError, ClosedError, type FireError, InvalidError } from "./errors.js";
import { Deque } from "./deque.js";
import type { Fields } from "./frames.js";
import type { ValueMap } from "./msgpack.js";
import { type Delivery, short } from "./message.js";
import type { QueueRecord } from "./topology.js";

export interface SubscribeOptions {
  /**
   * How many unacknowledged messages the broker may have sent, with noAck how many unprocessed ones. It
   * bounds what the client buffers. Default: 100.
   */
  prefetch?: number | undefined;
  /** Messages count as acknowledged once they are sent. */
  noAck?: boolean | undefined;
  /** Refuses other consumers of the queue; a ServerError 405 when there are some. */
  exclusive?: boolean | undefined;
  /** The consumer's name for operators. Default: the broker chooses one. */
  tag?: string | undefined;
  /** Such as { "x-priority": 10 }. */
  args?: ValueMap | undefined;
  signal?: AbortSignal | undefined;
}

/** What a subscription needs of its client. @internal */
export interface Supply {
  grant(id: number, credit: number): void;
  giveBack(deliveries: Delivery[]): void;
  unsubscribe(s: Subscription, signal?: AbortSignal): Promise<void>;
}

const defaultPrefetch = 100;

type Waiter = { resolve: (d: Delivery | undefined) => void; reject: (e: unknown) => void };

/**
 * Subscription receives the messages of a queue, over reconnections. Credit is granted by itself: an
 * eighth of the prefetch each time that an eighth of it was settled or, with noAck, received.
 *
 *     for await (const message of subscription) {
 *       work(message.text());
 *       message.ack();
 *     }
 *
 * The loop ends when the subscription or the client is closed here, and throws a CancelledError when the
 * broker ends the subscription, or a ClosedError when the connection is lost for good. Leaving the loop
 * unsubscribes. Several loops may share a subscription; each message goes to one of them.
 */
export class Subscription implements AsyncIterable<Delivery> {
  /** Unique for the client. */
  readonly id: number;
  readonly prefetch: number;
  readonly noAck: boolean;
  readonly #queue: QueueRecord | string;
  readonly #asked: Fields<"subscribe">;
  readonly #supply: Supply;
  readonly #part: number;
  #buffer = new Deque<Delivery>();
  #waiters = new Set<Waiter>();
  #processed = 0; // since the last grant
  #end: { error: FireError | undefined; own: boolean } | undefined;

  /** @internal */
  constructor(id: number, queue: QueueRecord | string, supply: Supply, o: SubscribeOptions) {
    const { prefetch = defaultPrefetch, noAck = false, exclusive = false, tag = "", args = {} } = o;
    if (!Number.isSafeInteger(prefetch) || prefetch < 1) throw new InvalidError("the prefetch is no whole number above 0");
    this.id = id;
    this.prefetch = prefetch;
    this.noAck = noAck;
    this.#queue = queue;
    this.#asked = { sub: id, no_ack: noAck, exclusive, tag: short(tag, "the tag"), args };
    this.#supply = supply;
    this.#part = Math.ceil(prefetch / 8);
  }

  /** The queue's name. It changes with a reconnection when the broker has chosen it. */
  get queue(): string {
    return typeof this.#queue === "string" ? this.#queue : this.#queue.name;
  }

  /**
   * Waits for a message; undefined when it was unsubscribed. Rejects with a CancelledError, a ClosedError
   * or the reason of the signal.
   */
  async receive({ signal }: { signal?: AbortSignal | undefined } = {}): Promise<Delivery | undefined> {
    signal?.throwIfAborted();
    let waiter: Waiter | undefined;
    const taken = this.#take((w) => (waiter = w));
    if (signal === undefined || waiter === undefined) return await taken;
    const { reject } = waiter;
    const abort = (): void => {
      this.#waiters.delete(waiter!);
      reject(signal.reason);
    };
    signal.addEventListener("abort", abort, { once: true });
    try {
      return await taken;
    } finally {
      signal.removeEventListener("abort", abort);
    }
  }

  /** Takes a message, or waits for one and says who waits. */
  #take(waits: (w: Waiter) => void): Promise<Delivery | undefined> {
    const d = this.#buffer.shift();
    if (d !== undefined) {
      if (this.noAck) this.processed();
      return Promise.resolve(d);
    }
    if (this.#end !== undefined) return this.#end.error === undefined ? Promise.resolve(undefined) : Promise.reject(this.#end.error);
    return new Promise((resolve, reject) => {
      const waiter = { resolve, reject };
      this.#waiters.add(waiter);
      waits(waiter);
    });
  }

  /**
   * Calls fn for each message, at most concurrency of them at the same time (1 unless given), until the
   * subscription ends as a loop over it would. When fn throws, no more are taken, and handle rejects with
   * that error once the calls that run are done.
   */
  async handle(fn: (d: Delivery) => unknown, { concurrency = 1, signal }: { concurrency?: number; signal?: AbortSignal } = {}): Promise<void> {
    signal?.throwIfAborted();
    const waiting = new Set<Waiter>();
    let failure: { error: unknown } | undefined;
    const stop = (error: unknown): void => {
      failure ??= { error };
      for (const w of waiting) {
        this.#waiters.delete(w);
        w.resolve(undefined);
      }
    };
    const abort = (): void => stop(signal!.reason);
    signal?.addEventListener("abort", abort, { once: true });
    const work = async (): Promise<void> => {
      while (failure === undefined) {
        let waiter: Waiter | undefined;
        const d = await this.#untilClosed(this.#take((w) => waiting.add((waiter = w))));
        if (waiter !== undefined) waiting.delete(waiter);
        if (d === undefined) return;
        await fn(d);
      }
    };
    await Promise.all(Array.from({ length: concurrency }, () => work().catch(stop)));
    signal?.removeEventListener("abort", abort);
    if (failure !== undefined) throw (failure as { error: unknown }).error;
  }

  [Symbol.asyncIterator](): AsyncIterator<Delivery, undefined> {
    const done = { done: true, value: undefined } as const;
    return {
      next: async () => {
        const value = await this.#untilClosed(this.receive());
        return value === undefined ? done : { done: false, value };
      },
      return: async () => {
        await this.unsubscribe();
        return done;
      },
    };
  }

  /** For loops: that the client was closed here is no error. */
  async #untilClosed(taken: Promise<Delivery | undefined>): Promise<Delivery | undefined> {
    try {
      return await taken;
    } catch (e) {
      if (this.#end?.own === true && e instanceof ClosedError) return undefined;
      throw e;
    }
  }

  /**
   * Ends the subscription. Messages that were not received yet go back to the queue; with noAck they can
   * still be received. Those that were may still be acknowledged.
   */
  async unsubscribe({ signal }: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    if (this.#end === undefined) await this.#supply.unsubscribe(this, signal);
  }

  // What is below is for the package alone.

  /** Whether no more comes. @internal */
  get ended(): boolean {
    return this.#end !== undefined;
  }

  /** The request on a new connection. Its credit is the prefetch, less what is buffered still. @internal */
  get fields(): Fields<"subscribe"> {
    return { ...this.#asked, queue: this.queue, credit: this.prefetch - this.#buffer.length };
  }

  /** @internal */
  deliver(d: Delivery): void {
    if (this.#end !== undefined) return this.#supply.giveBack([d]);
    for (const waiter of this.#waiters) {
      this.#waiters.delete(waiter);
      if (this.noAck) this.processed();
      return waiter.resolve(d);
    }
    this.#buffer.push(d);
  }

  /** A delivery was settled or, with noAck, received. @internal */
  processed(): void {
    if (++this.#processed < this.#part || this.#end !== undefined) return;
    this.#supply.grant(this.id, this.#processed);
    this.#processed = 0;
  }

  /** The connection is lost. What nobody has received is delivered again; with noAck it is not. @internal */
  disconnected(): void {
    this.#processed = 0;
    if (!this.noAck) this.#buffer.drain();
  }

  /** Ends it: with an error, or quietly when it was unsubscribed. own: the client was closed here. @internal */
  finish(error: FireError | undefined, own = false): void {
    if (this.#end !== undefined) return;
    this.#end = { error, own };
    if (!this.noAck && !(error instanceof CancelledError)) this.#supply.giveBack(this.#buffer.drain());
    for (const waiter of this.#waiters) {
      if (error === undefined) waiter.resolve(undefined);
      else waiter.reject(error);
    }
    this.#waiters.clear();
  }
}
