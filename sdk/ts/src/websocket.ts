// A transport over a WebSocket: the browser's, or package ws in Node.js, which has the same interface.
import { highWater, type Receiver, type Transport } from "./transport.js";
import type { Address } from "./url.js";

/** What is used of a WebSocket. */
export interface Socket {
  binaryType: string;
  readonly bufferedAmount: number;
  onopen: (() => void) | null;
  onmessage: ((event: { data: unknown }) => void) | null;
  onerror: ((event: { message?: string }) => void) | null;
  onclose: ((event: { code: number; reason: string }) => void) | null;
  send(bytes: Uint8Array): void;
  close(code?: number): void;
}

/** socketURL is where the WebSocket of a broker is. Who connects and to which vhost is said in hello alone. */
export function socketURL(a: Address): string {
  const host = a.host.includes(":") ? `[${a.host}]` : a.host;
  return `${a.scheme}://${host}:${a.port}${a.path}`;
}

const pollMillis = 5; // a WebSocket doesn't tell when it has drained

export class WebSocketTransport implements Transport {
  readonly stream = false;
  readonly #socket: Socket;
  readonly #receiver: Receiver;
  readonly #drop: () => void;
  #failure = ""; // what onerror told
  #poll: ReturnType<typeof setTimeout> | undefined;

  /** drop closes the socket at once, without a handshake, where that can be done. */
  constructor(socket: Socket, receiver: Receiver, drop = () => socket.close()) {
    this.#socket = socket;
    this.#receiver = receiver;
    this.#drop = drop;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => receiver.opened();
    socket.onmessage = ({ data }) => {
      if (data instanceof ArrayBuffer) receiver.received(new Uint8Array(data));
      else this.#fail("the broker sent a text message");
    };
    socket.onerror = ({ message }) => {
      this.#failure = message ?? "";
    };
    socket.onclose = ({ code, reason }) => {
      this.#silence();
      receiver.closed(this.#failure || `the WebSocket was closed with ${code}${reason === "" ? "" : ` (${reason})`}`);
    };
  }

  get buffered(): number {
    return this.#socket.bufferedAmount;
  }

  write(bytes: Uint8Array): void {
    this.#socket.send(bytes);
    if (this.#poll === undefined && this.buffered >= highWater) this.#watch();
  }

  end(): void {
    this.#silence();
    this.#socket.close(1000);
  }

  destroy(): void {
    this.#silence();
    this.#drop();
  }

  #watch(): void {
    this.#poll = setTimeout(() => {
      this.#poll = undefined;
      if (this.buffered >= highWater) this.#watch();
      else this.#receiver.drained();
    }, pollMillis);
  }

  #fail(reason: string): void {
    this.destroy();
    this.#receiver.closed(reason);
  }

  #silence(): void {
    clearTimeout(this.#poll);
    this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.onerror = () => {}; // a close while it connects is an error to it
  }
}
