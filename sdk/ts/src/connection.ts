// One connection: hello and welcome, requests and their answers, heartbeats, the goodbye. It knows nothing
// of publishes and subscriptions but their frames, and does not come back once it is lost.
import { ClosedError, FireError, FullError, ServerError, TimeoutError } from "./errors.js";
import { appendFrame, decodeFrame, type Fields, type Frame, type Header, type OpName, ProtocolError, Splitter } from "./frames.js";
import { Writer } from "./msgpack.js";
import { type Dial, highWater, type Transport } from "./transport.js";
import type { Address } from "./url.js";
import { version } from "./version.js";

/** The answer to a request; get_ok is one to get alone. Its payload is to be used at once. */
export type Answer = Extract<Frame, { op: "ok" | "get_ok" }>;

export type Request =
  | "declare_exchange"
  | "delete_exchange"
  | "declare_queue"
  | "delete_queue"
  | "purge_queue"
  | "bind"
  | "unbind"
  | "subscribe"
  | "unsubscribe"
  | "get";

/** Who hears of what comes without having been asked for. */
export interface Handler {
  frame(frame: Frame): void;
  /** More may be published. */
  drained(): void;
  /** The connection is over, for whatever reason but destroy; comes once, after welcome. */
  lost(error: FireError): void;
}

export interface Hello {
  readonly name: string;
  readonly heartbeat: number; // seconds, 0 for none
  readonly timeout: number; // milliseconds until welcome
}

const maxRequests = 65_536; // that wait for an answer; beyond it the caller gets a FullError
const goodbyeMillis = 5_000;
const language = "typescript";

/** small is a number that has to be one: no broker counts to 2^53. */
export function small(n: number | bigint): number {
  if (typeof n === "bigint") throw new ProtocolError(`the number ${n} is too large`);
  return n;
}

export class Connection {
  readonly #transport: Transport;
  readonly #handler: Handler;
  readonly #splitter = new Splitter();
  readonly #writer = new Writer();
  readonly #requests = new Map<number, { op: Request; done: (a: Answer) => void; fail: (e: Error) => void }>();
  #rid = 0;
  #welcome: Header<"welcome"> | undefined;
  #opening: { resolve: () => void; reject: (e: FireError) => void } | undefined;
  #over: FireError | undefined; // why nothing can be sent any more
  #failure: FireError | undefined; // what a fatal error or a close said
  #leaving: (() => void) | undefined; // close waits
  #ended = false; // the transport closes by itself
  #sentAt = 0; // milliseconds
  #receivedAt = 0;
  #heart: ReturnType<typeof setInterval> | undefined;

  /** open connects and says hello. */
  static async open(dial: Dial, address: Address, hello: Hello, handler: Handler, signal?: AbortSignal): Promise<Connection> {
    signal?.throwIfAborted();
    let connection: Connection | undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let abort: (() => void) | undefined;
    try {
      await new Promise<void>((resolve, reject) => {
        const c = (connection = new Connection(dial, address, hello, handler, { resolve, reject }));
        timer = setTimeout(() => c.#fail(new TimeoutError(`the broker did not answer in ${hello.timeout} ms`)), hello.timeout);
        abort = () => {
          c.destroy();
          reject(signal!.reason);
        };
        signal?.addEventListener("abort", abort, { once: true });
      });
      return connection!;
    } finally {
      clearTimeout(timer);
      if (abort !== undefined) signal?.removeEventListener("abort", abort);
    }
  }

  private constructor(dial: Dial, address: Address, hello: Hello, handler: Handler, opening: { resolve: () => void; reject: (e: FireError) => void }) {
    this.#handler = handler;
    this.#opening = opening;
    this.#transport = dial(address, {
      opened: () => {
        const client: Record<string, string> = { name: "firemq-ts", version, lang: language };
        if (hello.name !== "") client["connection_name"] = hello.name;
        this.send("hello", {
          ver: 1,
          vhost: address.vhost,
          auth: { mech: "plain", user: address.user, pass: address.password },
          heartbeat: hello.heartbeat,
          client,
        });
      },
      received: (bytes) => this.#guarded(() => this.#receive(bytes)),
      drained: () => {
        if (this.#over === undefined) this.#guarded(() => handler.drained());
      },
      closed: (reason, cause) => this.#fail(new ClosedError(reason, cause)),
    });
  }

  /** The longest frame that the broker takes. */
  get maxFrame(): number {
    return small(this.#welcome!.max_frame);
  }

  /** The name of the connection in the broker's management. */
  get id(): string {
    return this.#welcome!.conn_id;
  }

  /** The heartbeat that was agreed on, in seconds. */
  get heartbeat(): number {
    return small(this.#welcome!.heartbeat);
  }

  /** Whether a publish may be sent now. */
  get writable(): boolean {
    return this.#over === undefined && this.#transport.buffered < highWater;
  }

  get stream(): boolean {
    return this.#transport.stream;
  }

  /** Sends a frame that has no answer. On a connection that is over it does nothing. */
  send<N extends OpName>(op: N, fields: Fields<N>): void {
    if (this.#over !== undefined) return;
    this.#writer.reset();
    appendFrame(this.#writer, op, fields, undefined, this.stream);
    this.write(this.#writer.written());
  }

  /** Sends bytes that are a whole frame. */
  write(frame: Uint8Array): void {
    if (this.#over !== undefined) return;
    this.#sentAt = Date.now();
    this.#transport.write(frame);
  }

  /**
   * Sends a request, before it returns, so that requests and publishes keep their order. done gets its
   * answer before any other frame is handled; fail gets a ServerError, or Lost when the connection is.
   */
  request<N extends Request>(op: N, fields: Omit<Fields<N>, "rid">, done: (a: Answer) => void, fail: (e: Error) => void): void {
    if (this.#over !== undefined) return fail(new Lost(this.#over));
    if (this.#requests.size >= maxRequests) return fail(new FullError(`${maxRequests} requests wait for their answers`));
    const rid = ++this.#rid;
    this.send(op, { ...fields, rid } as Fields<N>);
    this.#requests.set(rid, { op, done, fail });
  }

  /** Says goodbye and waits until the broker has said it too, or for five seconds. */
  async close(): Promise<void> {
    if (this.#over !== undefined) return;
    this.send("close", { code: 200, msg: "" });
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, goodbyeMillis);
      this.#leaving = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.destroy();
  }

  /** Closes at once and tells nobody but those who wait for an answer. */
  destroy(): void {
    if (this.#over !== undefined) return;
    this.#opening = undefined;
    this.#end(new ClosedError(), () => {});
  }

  #guarded(work: () => void): void {
    try {
      work();
    } catch (e) {
      if (!(e instanceof ProtocolError)) throw e;
      this.#fail(new ClosedError(`the broker broke the protocol: ${e.message}`, e));
    }
  }

  #receive(bytes: Uint8Array): void {
    this.#receivedAt = Date.now();
    if (this.stream) {
      this.#splitter.push(bytes, (frame) => this.#frame(frame));
      return;
    }
    if (bytes.length > this.#splitter.limit) throw new ProtocolError(`a frame of ${bytes.length} bytes, with a limit of ${this.#splitter.limit}`);
    this.#frame(bytes);
  }

  #frame(bytes: Uint8Array): void {
    if (this.#over !== undefined) return;
    const frame = decodeFrame(bytes);
    if (frame === undefined) return; // of a later version
    switch (frame.op) {
      case "welcome":
        return this.#welcomed(frame.header);
      case "ping":
        return this.send("pong", {});
      case "pong":
        return;
      case "close":
        return this.#goodbye(frame.header);
      case "ok":
      case "get_ok":
        return this.#answer(frame);
      case "error": {
        const { rid, code, msg, fatal } = frame.header;
        const error = new ServerError(msg, small(code), fatal);
        if (fatal) return this.#fail((this.#failure = error));
        const request = this.#requests.get(small(rid));
        if (request === undefined) return this.#handler.frame(frame);
        this.#requests.delete(small(rid));
        return request.fail(error);
      }
      default:
        if (this.#welcome === undefined) throw new ProtocolError(`a ${frame.op} frame before welcome`);
        if (this.#leaving === undefined) this.#handler.frame(frame);
    }
  }

  #welcomed(welcome: Header<"welcome">): void {
    if (this.#welcome !== undefined) throw new ProtocolError("a second welcome");
    if (welcome.ver !== 1) throw new ProtocolError(`the broker speaks version ${welcome.ver}`);
    this.#welcome = welcome;
    this.#splitter.limit = this.maxFrame;
    const h = this.heartbeat * 1000;
    if (h > 0) this.#heart = setInterval(() => this.#beat(h), h / 4);
    this.#opening?.resolve();
    this.#opening = undefined;
  }

  #beat(h: number): void {
    const now = Date.now();
    if (now - this.#receivedAt >= 2 * h) this.#fail(new ClosedError(`the broker was silent for ${(2 * h) / 1000} seconds`));
    else if (now - this.#sentAt >= h / 2) this.send("ping", {});
  }

  #goodbye({ code, msg }: Header<"close">): void {
    if (this.#leaving !== undefined) return this.#leaving();
    this.send("close", { code: 200, msg: "" });
    this.#ended = true;
    this.#transport.end();
    this.#fail(new ClosedError(msg === "" ? "the broker closed the connection" : msg, new ServerError(msg, small(code), true)));
  }

  #answer(answer: Answer): void {
    const rid = small(answer.header.rid);
    const request = this.#requests.get(rid);
    if (request === undefined) throw new ProtocolError(`an answer to request ${rid}, which there is not`);
    if (answer.op === "get_ok" && request.op !== "get") throw new ProtocolError(`get_ok answers ${request.op}`);
    this.#requests.delete(rid);
    request.done(answer);
  }

  /** The connection is lost. The first reason counts. */
  #fail(error: FireError): void {
    if (this.#over !== undefined) return;
    const opening = this.#opening;
    this.#opening = undefined;
    this.#end(this.#failure ?? error, (e) => {
      if (opening !== undefined) opening.reject(e);
      else if (this.#leaving !== undefined) this.#leaving();
      else this.#handler.lost(e);
    });
  }

  /** Ends it, and tells those who wait for an answer last: they may ask for another connection at once. */
  #end(error: FireError, tell: (e: FireError) => void): void {
    this.#over = error;
    clearInterval(this.#heart);
    if (!this.#ended) this.#transport.destroy();
    tell(error);
    const requests = [...this.#requests.values()];
    this.#requests.clear();
    for (const { fail } of requests) fail(new Lost(error));
  }
}

/** Lost is what requests get whose answer can't come any more. It never leaves the package. */
export class Lost extends Error {
  constructor(override readonly cause: FireError) {
    super(cause.message);
  }
}
