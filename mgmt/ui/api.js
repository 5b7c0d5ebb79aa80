// Calls of the management API with the credentials of the login form. They are kept for the tab's session, go
// into a header of each call, and are never a cookie: no other page can make the browser send them.

const KEY = "firemq.login";

export class ApiError extends Error {
  constructor(status, error, reason) {
    super(typeof reason === "string" ? reason.trim() : reason === undefined ? `The broker answered ${status}.` : JSON.stringify(reason));
    this.status = status;
    this.error = error;
  }
}

// Unreachable is a call that got no answer.
export class Unreachable extends Error {}

let onLogout = () => {};

// watchLogout sets what is called when the broker no longer knows the user.
export const watchLogout = (f) => (onLogout = f);

export const loggedIn = () => sessionStorage.getItem(KEY) !== null;

export function login(name, password) {
  const utf8 = new TextEncoder().encode(`${name}:${password}`);
  sessionStorage.setItem(KEY, btoa(String.fromCharCode(...utf8)));
}

export const logout = () => sessionStorage.removeItem(KEY);

// path makes "/queues/%2F/orders" of its parts. The default exchange has a name there.
export const path = (...parts) => parts.map((p) => `/${encodeURIComponent(p)}`).join("");

export const exchangeName = (name) => (name === "" ? "amq.default" : name);

// call sends one request and gives the decoded answer. Errors: ApiError, Unreachable, AbortError.
export async function call(method, where, { query, body, headers, signal } = {}) {
  const search = query ? `?${new URLSearchParams(Object.entries(query).filter(([, v]) => v !== undefined && v !== ""))}` : "";
  let answer;
  try {
    answer = await fetch(`/api${where}${search}`, {
      method, signal,
      headers: {
        Authorization: `Basic ${sessionStorage.getItem(KEY)}`,
        ...(body !== undefined && { "Content-Type": "application/json" }),
        ...headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit", // and so no login window of the browser's either
      cache: "no-store",
    });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Unreachable("The broker can't be reached.");
  }
  const text = await answer.text();
  let value;
  try {
    value = text === "" ? undefined : JSON.parse(text);
  } catch {
    value = { reason: text.slice(0, 500) };
  }
  if (answer.ok) return value;
  const e = new ApiError(answer.status, value?.error, value?.reason);
  e.value = value;
  if (answer.status === 401 && (value?.error === "not_authorized" || value?.reason === "Not management user")) onLogout(e);
  throw e;
}

export const get = (where, query, signal) => call("GET", where, { query, signal });
export const put = (where, body) => call("PUT", where, { body });
export const post = (where, body) => call("POST", where, { body });
export const del = (where, query, headers) => call("DELETE", where, { query, headers });
