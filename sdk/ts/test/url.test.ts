import assert from "node:assert/strict";
import { test } from "node:test";

import { InvalidError } from "../src/errors.js";
import { parseURL } from "../src/url.js";
import { socketURL } from "../src/websocket.js";

const guest = { user: "guest", password: "guest", vhost: "/", path: "" };
const good: [string, object][] = [
  ["fire://localhost", { scheme: "fire", host: "localhost", port: 5673, ...guest }],
  ["FIRE://LOCALHOST/", { scheme: "fire", host: "LOCALHOST", port: 5673, ...guest }],
  ["fires://h", { scheme: "fires", host: "h", port: 5674, ...guest }],
  ["ws://h", { scheme: "ws", host: "h", port: 15672, ...guest, path: "/fire" }],
  ["ws://h/?vhost=", { scheme: "ws", host: "h", port: 15672, ...guest, path: "/fire" }],
  ["wss://h:443/mq?vhost=a%2Fb+c", { scheme: "wss", host: "h", port: 443, ...guest, path: "/mq", vhost: "a/b c" }],
  ["fire://u:p%40%3A@h:1/a%20b%25%C3%A9", { scheme: "fire", host: "h", port: 1, user: "u", password: "p@:", vhost: "a b%é", path: "" }],
  ["fire://u@h/%2F", { scheme: "fire", host: "h", port: 5673, user: "u", password: "guest", vhost: "/", path: "" }],
  ["fire://h/a/b", { scheme: "fire", host: "h", port: 5673, ...guest, vhost: "a/b" }],
  ["fire://[::1]:99", { scheme: "fire", host: "::1", port: 99, ...guest }],
  ["ws://127.0.0.1:80/fire", { scheme: "ws", host: "127.0.0.1", port: 80, ...guest, path: "/fire" }],
];
for (const [url, want] of good) test(`read: ${url}`, () => assert.deepEqual({ ...parseURL(url) }, want));

const bad = [
  "", "localhost", "fire:", "fire://", "fire:///v", "http://localhost", "amqp://localhost", "fire://h:0", "fire://h:65536", "fire://h:x",
  "fire://h?vhost=a", "fire://h/v#f", "ws://h?vhost=a&x=b", "ws://h?x=b", "ws://h?vhost=a&vhost=b", "fire://h/%zz", "fire://%zz@h", "fire://a b",
  "fire://[::1", "fire://::1",
];
for (const url of bad) test(`refused: ${url}`, () => assert.throws(() => parseURL(url), InvalidError));

test("an error does not have the password", () => {
  for (const url of ["fire://u:secret@h:99999", "fire://u:sec/ret@h", "fire://u:secret%zz@h", "ws://u:secret@h?x=1"]) {
    assert.throws(
      () => parseURL(url),
      (e: Error) => !/sec/.test(e.message),
    );
  }
});

test("the URL of a WebSocket tells no secrets", () => {
  assert.equal(socketURL(parseURL("wss://u:p@[::1]:1/fire?vhost=v")), "wss://[::1]:1/fire");
});
