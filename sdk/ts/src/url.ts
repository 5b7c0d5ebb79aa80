// Connection URLs.
import { InvalidError } from "./errors.js";

/** Where to connect, and as whom. */
export interface Address {
  readonly scheme: "fire" | "fires" | "ws" | "wss";
  readonly host: string; // an IPv6 address without its brackets
  readonly port: number;
  readonly path: string; // of the WebSocket endpoint; "" for fire and fires
  readonly user: string;
  readonly password: string;
  readonly vhost: string;
}

const ports = { fire: 5673, fires: 5674, ws: 15672, wss: 15671 };

// The URL class reads only known schemes the same everywhere, and leaves out a default port of its own
// (80, 443): scheme and authority are taken apart here.
const shape = /^([a-z][a-z0-9+.-]*):\/\/(?:([^/?#@]*)@)?(\[[0-9a-f:.]+\]|[^/?#@:[\]]*)(?::([^/?#]*))?([^?#]*)(\?[^#]*)?(#.*)?$/is;

/**
 * parseURL reads a connection URL:
 *
 *     fire://user:password@host:5673/vhost         over TCP
 *     fires://user:password@host:5674/vhost        over TLS
 *     ws://user:password@host:15672/fire?vhost=v   over WebSocket
 *     wss://user:password@host:15671/fire?vhost=v  over WebSocket and TLS
 *
 * User and password default to guest, the port to the one above, the path of a WebSocket to /fire and the
 * vhost to "/". Errors never contain the password.
 */
export function parseURL(url: string): Address {
  const parts = shape.exec(url);
  if (parts === null) throw new InvalidError("the URL can't be read: percent-encode what is special in its user and password");
  const [, given = "", login, host = "", portText, path = "", query = "", fragment] = parts;
  const scheme = given.toLowerCase();
  if (scheme === "amqp" || scheme === "amqps") {
    throw new InvalidError(`${scheme}:// is for AMQP clients; this one needs fire://, fires://, ws:// or wss://`);
  }
  if (scheme !== "fire" && scheme !== "fires" && scheme !== "ws" && scheme !== "wss") {
    throw new InvalidError("the URL must start with fire://, fires://, ws:// or wss://");
  }
  if (host === "" || !/^(\[[0-9a-f:.]+\]|[a-z0-9._~%-]+)$/i.test(host)) throw new InvalidError("the URL has no host that can be used");
  if (fragment !== undefined) throw new InvalidError(`a ${scheme}:// URL has no fragment: write # in a vhost as %23`);
  let port = ports[scheme];
  if (portText !== undefined && portText !== "") {
    port = /^\d{1,5}$/.test(portText) ? Number(portText) : 0;
    if (port < 1 || port > 65535) throw new InvalidError("the port is not between 1 and 65535");
  }
  const [user, password] = credentials(login ?? "");
  const webSocket = scheme === "ws" || scheme === "wss";
  return {
    scheme,
    host: host.replace(/^\[|\]$/g, ""),
    port,
    path: !webSocket ? "" : path === "" || path === "/" ? "/fire" : path,
    user: user === "" ? "guest" : user,
    password: password === "" ? "guest" : password,
    vhost: (webSocket ? vhostOfQuery(scheme, query) : vhostOfPath(scheme, path, query)) || "/",
  };
}

function credentials(login: string): [string, string] {
  const colon = login.indexOf(":");
  return colon < 0 ? [decoded(login), ""] : [decoded(login.slice(0, colon)), decoded(login.slice(colon + 1))];
}

function vhostOfPath(scheme: string, path: string, query: string): string {
  if (query !== "") throw new InvalidError(`a ${scheme}:// URL has no query: the vhost is its path`);
  return decoded(path.slice(1));
}

function vhostOfQuery(scheme: string, query: string): string {
  const parameters = [...new URLSearchParams(query)];
  if (parameters.length > 1 || (parameters.length === 1 && parameters[0]![0] !== "vhost")) {
    throw new InvalidError(`the query of a ${scheme}:// URL is one vhost=name, and nothing else`);
  }
  return parameters[0]?.[1] ?? "";
}

function decoded(s: string): string {
  try {
    return decodeURIComponent(s);
  } catch {
    throw new InvalidError("the URL has a % that begins no percent-encoded character");
  }
}
