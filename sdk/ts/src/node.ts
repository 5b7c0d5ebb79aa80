// The entry point for Node.js: fire://, fires://, ws:// and wss://.
import type { ConnectionOptions } from "node:tls";
import { WebSocket } from "ws";

import { Client, type ConnectOptions } from "./client.js";
import { StreamTransport } from "./stream.js";
import type { Dial } from "./transport.js";
import { type Socket, socketURL, WebSocketTransport } from "./websocket.js";

export * from "./shared.js";

export interface NodeConnectOptions extends ConnectOptions {
  /** For fires:// and wss://, such as { ca: readFileSync("ca.pem") }. */
  tls?: ConnectionOptions | undefined;
}

/**
 * Connects to a broker.
 *
 *     const client = await connect("fire://localhost");
 *
 * Rejects with a ServerError when the broker refuses the user or the vhost, and with a ClosedError or a
 * TimeoutError when it can't be reached.
 */
export function connect(url: string, options: NodeConnectOptions = {}): Promise<Client> {
  const dial: Dial = (address, receiver) => {
    if (address.scheme === "fire" || address.scheme === "fires") return new StreamTransport(address, receiver, options.tls);
    // The largest frame is agreed on later; the connection checks it.
    const socket = new WebSocket(socketURL(address), { ...options.tls, perMessageDeflate: false, maxPayload: 0 });
    return new WebSocketTransport(socket as Socket, receiver, () => socket.terminate());
  };
  return Client.connect(dial, url, options);
}
