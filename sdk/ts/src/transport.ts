// What a connection needs of the network. Node.js has streams and WebSockets, browsers WebSockets alone.
import type { Address } from "./url.js";

/** One open, or opening, way to the broker. */
export interface Transport {
  /** Whether frames carry their length, and the bytes that come may be cut anywhere. */
  readonly stream: boolean;
  /** Sends bytes, one frame at a time. They may be overwritten afterwards. */
  write(bytes: Uint8Array): void;
  /** Bytes that were written and have not left. */
  readonly buffered: number;
  /** Closes once everything has left. Nothing is reported after it. */
  end(): void;
  /** Closes at once. Nothing is reported after it. */
  destroy(): void;
}

/** Who hears of a transport. */
export interface Receiver {
  /** Bytes may be written from now on. */
  opened(): void;
  /** Bytes of a stream, or one message. They may be overwritten after the call. */
  received(bytes: Uint8Array): void;
  /** Fewer bytes are buffered than highWater, after there were more. */
  drained(): void;
  /** It is over; comes once, also when it never opened. */
  closed(reason: string, cause?: unknown): void;
}

export type Dial = (address: Address, receiver: Receiver) => Transport;

/** Publishes wait while a transport buffers more than this. */
export const highWater = 1 << 20;
