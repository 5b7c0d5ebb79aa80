// A transport over TCP or TLS, for Node.js.
import net from "node:net";
import tls from "node:tls";

import type { Receiver, Transport } from "./transport.js";
import type { Address } from "./url.js";

const preface = Buffer.from("FMQ1");
const chunkSize = 64 << 10;
const lingerMillis = 5_000; // how long the broker may take to read the rest and close

export class StreamTransport implements Transport {
  readonly stream = true;
  readonly #socket: net.Socket;
  // What is written in one turn of the event loop leaves together.
  #staged = Buffer.allocUnsafe(chunkSize);
  #length = 0;
  #flush: NodeJS.Immediate | undefined;

  constructor(address: Address, receiver: Receiver, options: tls.ConnectionOptions = {}) {
    const { host, port } = address;
    if (address.scheme === "fires") {
      // The name that the certificate must have; an IP address is no server name.
      const name = net.isIP(host) === 0 ? { servername: host } : {};
      this.#socket = tls.connect({ minVersion: "TLSv1.2", ...name, ...options, host, port });
    } else this.#socket = net.connect({ host, port });
    const socket = this.#socket;
    socket.setNoDelay(true);
    let failure: Error | undefined;
    socket.once(address.scheme === "fires" ? "secureConnect" : "connect", () => {
      socket.write(preface);
      receiver.opened();
    });
    // Not as a Buffer, whose slice is no copy.
    socket.on("data", (chunk) => receiver.received(new Uint8Array(chunk.buffer, chunk.byteOffset, chunk.byteLength)));
    socket.on("drain", () => receiver.drained());
    socket.on("error", (e) => {
      failure = e;
    });
    socket.on("close", () => receiver.closed(failure?.message ?? "the broker closed the connection", failure));
  }

  get buffered(): number {
    return this.#length + this.#socket.writableLength;
  }

  write(bytes: Uint8Array): void {
    if (bytes.length > chunkSize - this.#length) this.#send();
    if (bytes.length > chunkSize) {
      this.#socket.write(Buffer.from(bytes));
      return;
    }
    this.#staged.set(bytes, this.#length);
    this.#length += bytes.length;
    this.#flush ??= setImmediate(() => this.#send());
  }

  #send(): void {
    clearImmediate(this.#flush);
    this.#flush = undefined;
    if (this.#length === 0) return;
    this.#socket.write(Buffer.from(this.#staged.subarray(0, this.#length)));
    this.#length = 0;
  }

  end(): void {
    this.#send();
    this.#silence();
    this.#socket.setTimeout(lingerMillis, () => this.#socket.destroy());
    this.#socket.resume(); // what still comes is not for anybody, but has to be read for the end to be seen
    this.#socket.end();
  }

  destroy(): void {
    clearImmediate(this.#flush);
    this.#length = 0;
    this.#silence();
    this.#socket.destroy();
  }

  #silence(): void {
    for (const event of ["connect", "secureConnect", "data", "drain", "close", "error"]) this.#socket.removeAllListeners(event);
    this.#socket.on("error", () => {}); // nobody is left to hear of it
  }
}
