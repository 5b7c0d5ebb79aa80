// A broker whose every frame the test decides.
import { once } from "node:events";
import net from "node:net";

import { appendFrame, decodeFrame, type Fields, type Frame, type Header, type OpName, Splitter } from "../src/frames.js";
import { Writer } from "../src/msgpack.js";

type Of<N extends OpName> = Extract<Frame, { op: N }>;

const patience = 5_000; // milliseconds until a frame that does not come fails the test

/** Events that are awaited one after the other, whether they have come already or not. */
class Line<T> {
  #items: T[] = [];
  #waiter: ((item: T) => void) | undefined;

  put(item: T): void {
    if (this.#waiter === undefined) this.#items.push(item);
    else this.#waiter(item);
    this.#waiter = undefined;
  }

  async take(what: string): Promise<T> {
    if (this.#items.length > 0) return this.#items.shift()!;
    return await new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`not within ${patience} ms: ${what}`)), patience);
      this.#waiter = (item) => {
        clearTimeout(timer);
        resolve(item);
      };
    });
  }

  get length(): number {
    return this.#items.length;
  }
}

export class FakeBroker {
  readonly #server: net.Server;
  readonly #peers = new Line<Peer>();
  readonly #sockets = new Set<net.Socket>();
  /** What welcome says; undefined: connections are closed at once. */
  welcome: Fields<"welcome"> | undefined = { ver: 1, conn_id: "here", max_frame: 1 << 20, heartbeat: 0 };

  static async listen(): Promise<FakeBroker> {
    const b = new FakeBroker();
    b.#server.listen(0, "127.0.0.1");
    await once(b.#server, "listening");
    return b;
  }

  private constructor() {
    this.#server = net.createServer((socket) => {
      if (this.welcome === undefined) return socket.destroy();
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket));
      const peer = new Peer(socket);
      void peer.expect("hello").then(
        (hello) => {
          peer.hello = hello.header;
          peer.send("welcome", this.welcome!);
          this.#peers.put(peer);
        },
        () => socket.destroy(), // the client went away again
      );
      return undefined;
    });
  }

  get url(): string {
    return `fire://127.0.0.1:${(this.#server.address() as net.AddressInfo).port}`;
  }

  /** The next connection that has said hello. */
  accept(): Promise<Peer> {
    return this.#peers.take("a connection");
  }

  async close(): Promise<void> {
    for (const s of this.#sockets) s.destroy();
    this.#server.close();
    await once(this.#server, "close");
  }
}

export class Peer {
  hello: Of<"hello">["header"] | undefined;
  readonly #socket: net.Socket;
  readonly #frames = new Line<Frame>();
  #tag = 0;

  constructor(socket: net.Socket) {
    this.#socket = socket;
    const splitter = new Splitter();
    splitter.limit = 1 << 24;
    let preface = 4;
    socket.on("error", () => {});
    socket.on("data", (chunk) => {
      const bytes = new Uint8Array(chunk);
      const skip = Math.min(preface, bytes.length);
      preface -= skip;
      splitter.push(bytes.subarray(skip), (f) => this.#frames.put(decodeFrame(f)!));
    });
  }

  /** The next frame, which must be of an op. */
  async expect<N extends OpName>(op: N): Promise<Of<N>> {
    const frame = await this.#frames.take(`a frame ${op}`);
    if (frame.op !== op) throw new Error(`got a frame ${frame.op} ${JSON.stringify(frame.header)}, want ${op}`);
    return frame as Of<N>;
  }

  /** Answers the next request, which must be of an op, with ok. */
  async grant<N extends OpName>(op: N, fields: Fields<"ok"> = {}): Promise<Header<N>> {
    const header = (await this.expect(op)).header as Header<N>;
    this.send("ok", { rid: (header as { rid: number }).rid, ...fields });
    return header;
  }

  /** Frames that came and were not expected yet. */
  get waiting(): number {
    return this.#frames.length;
  }

  send<N extends OpName>(op: N, fields: Fields<N>, payload?: string): void {
    const w = new Writer();
    appendFrame(w, op, fields, payload === undefined ? undefined : new TextEncoder().encode(payload));
    this.#socket.write(w.written());
  }

  /** Delivers messages with tags from 1. */
  deliver(sub: number | bigint, ...bodies: string[]): void {
    for (const body of bodies) this.send("deliver", { sub, tag: ++this.#tag, key: "q" }, body);
  }

  /** All that was sent before has been handled by the client. */
  async settled(): Promise<void> {
    this.send("ping", {});
    await this.expect("pong");
  }

  raw(bytes: Uint8Array): void {
    this.#socket.write(bytes);
  }

  drop(): void {
    this.#socket.destroy();
  }

  get gone(): Promise<unknown> {
    return this.#socket.destroyed ? Promise.resolve() : once(this.#socket, "close");
  }
}
