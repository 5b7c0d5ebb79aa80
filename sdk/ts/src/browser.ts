// The entry point for browsers: ws:// and wss://.
import { Client, type ConnectOptions } from "./client.js";
import { InvalidError } from "./errors.js";
import type { Dial } from "./transport.js";
import { type Socket, socketURL, WebSocketTransport } from "./websocket.js";

export * from "./shared.js";

/**
 * Connects to a broker.
 *
 *     const client = await connect(`ws://${location.host}/fire`);
 *
 * Rejects with a ServerError when the broker refuses the user or the vhost, and with a ClosedError or a
 * TimeoutError when it can't be reached, or does not let this page in.
 */
export function connect(url: string, options: ConnectOptions = {}): Promise<Client> {
  const dial: Dial = (address, receiver) => {
    if (address.scheme === "fire" || address.scheme === "fires") throw new InvalidError("browsers can only connect to ws:// and wss://");
    return new WebSocketTransport(new WebSocket(socketURL(address)) as Socket, receiver);
  };
  return Client.connect(dial, url, options);
}
