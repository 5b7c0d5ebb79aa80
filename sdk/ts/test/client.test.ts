import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { type TestContext, test } from "node:test";

import {
  CancelledError,
  type Client,
  ClosedError,
  connect,
  type FireError,
  FullError,
  InvalidError,
  NackedError,
  type NodeConnectOptions,
  ServerError,
  TimeoutError,
  UnroutableError,
  version,
} from "../src/node.js";
import { FakeBroker, type Peer } from "./fake.js";

async function broker(t: TestContext): Promise<FakeBroker> {
  const b = await FakeBroker.listen();
  t.after(() => b.close());
  return b;
}

const quick = { minDelay: 1, maxDelay: 4 };

async function connected(t: TestContext, options: NodeConnectOptions = {}): Promise<{ b: FakeBroker; c: Client; p: Peer; errors: FireError[] }> {
  const b = await broker(t);
  const errors: FireError[] = [];
  const c = await connect(b.url, { reconnect: quick, onError: (e) => errors.push(e), ...options });
  t.after(async () => {
    const closing = c.close();
    await b.close().catch(() => {});
    await closing;
  });
  return { b, c, p: await b.accept(), errors };
}

const server = (code: number) => (e: unknown): boolean => e instanceof ServerError && e.code === code;

test("the version is the package's", () => {
  const pkg = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")) as { version: string };
  assert.equal(version, pkg.version);
});

// ---- Connecting

test("hello says who connects", async (t) => {
  const { p, c } = await connected(t, { name: "orders", heartbeat: 7 });
  const { ver, vhost, auth, heartbeat, client } = p.hello!;
  assert.deepEqual({ ver, vhost, auth, heartbeat }, { ver: 1, vhost: "/", auth: { mech: "plain", user: "guest", pass: "guest" }, heartbeat: 7 });
  assert.deepEqual(client, { name: "firemq-ts", version, lang: "typescript", connection_name: "orders" });
  assert.equal(c.connectionId, "here");
});

test("a broker that does not answer is given up", async (t) => {
  const b = await broker(t);
  b.welcome = { ver: 2 };
  await assert.rejects(connect(b.url), (e: Error) => e instanceof ClosedError && /version 2/.test(e.message));
  await assert.rejects(connect("fire://127.0.0.1:1"), ClosedError);
  await assert.rejects(connect(b.url, { signal: AbortSignal.abort(new Error("given up")) }), /given up/);
});

test("connecting takes no longer than its timeout", async (t) => {
  const { createServer } = await import("node:net");
  const mute = createServer(() => {});
  await new Promise<void>((resolve) => mute.listen(0, "127.0.0.1", resolve));
  t.after(() => mute.close());
  const { port } = mute.address() as { port: number };
  await assert.rejects(connect(`fire://127.0.0.1:${port}`, { timeout: 20 }), TimeoutError);
  const stop = new AbortController();
  const attempt = connect(`fire://127.0.0.1:${port}`, { signal: stop.signal });
  stop.abort();
  await assert.rejects(attempt, { name: "AbortError" });
});

test("a silent connection is lost", async (t) => {
  const b = await broker(t);
  b.welcome = { ver: 1, max_frame: 1 << 20, heartbeat: 1 };
  const c = await connect(b.url, { reconnect: false });
  const p = await b.accept();
  await p.expect("ping"); // sent nothing for half an interval
  const error = await c.closed;
  assert.match(error!.message, /silent for 2 seconds/);
});

test("pings are answered, and what breaks the protocol ends the connection", async (t) => {
  const { b, p } = await connected(t);
  await p.settled();
  p.send("deliver", { sub: 99, tag: 1 }, "for nobody");
  await p.gone;
  const p2 = await b.accept();
  p2.raw(new Uint8Array([0, 0, 0, 4, 1, 2, 3, 4]));
  await p2.gone;
  const p3 = await b.accept();
  p3.send("ok", { rid: 5 });
  await p3.gone;
  const p4 = await b.accept();
  p4.raw(new Uint8Array([0, 0, 0, 6, 0x39, 0, 0, 0, 0, 7])); // an op of a later version
  await p4.settled();
});

test("close says goodbye, and everything that waits is told", async (t) => {
  const { c, p } = await connected(t);
  const publish = assert.rejects(c.publish("", "q", "m"), ClosedError);
  await p.expect("publish");
  const subscribing = c.subscribe("q");
  await p.grant("subscribe");
  const s = await subscribing;
  const loop = (async () => {
    for await (const m of s) m.ack();
    return "ended";
  })();
  const receive = assert.rejects(s.receive(), ClosedError);
  const closing = c.close();
  assert.equal((await p.expect("close")).header.code, 200);
  p.send("close", { code: 200 });
  await Promise.all([
    closing,
    publish,
    receive,
    assert.rejects(c.declareQueue("q"), ClosedError),
    assert.rejects(c.publish("", "q", "m"), ClosedError),
    assert.rejects(s.receive(), ClosedError),
  ]);
  assert.equal(await loop, "ended");
  assert.throws(() => c.ack(1), ClosedError);
  assert.equal(await c.closed, undefined);
  await c.close();
  await s.unsubscribe();
});

test("the broker's goodbye is answered", async (t) => {
  const { c, p } = await connected(t, { reconnect: false });
  p.send("close", { code: 320, msg: "CONNECTION_FORCED - stopping" });
  await p.expect("close");
  const error = (await c.closed)!;
  assert.match(error.message, /CONNECTION_FORCED - stopping/);
  await assert.rejects(c.get("q"), (e: Error) => e instanceof ClosedError && (e.cause as Error).message.includes("CONNECTION_FORCED"));
});

// ---- Publishing

test("publishes are numbered, safe by default, and confirmed in runs", async (t) => {
  const { c, p } = await connected(t);
  const all = [c.publish("x", "k", "1"), c.publish("", "q", new Uint8Array([50]), { persistent: false, mandatory: true }), c.publish("", "q", new ArrayBuffer(0))];
  const first = await p.expect("publish");
  assert.deepEqual(first.header, { seq: 1, exchange: "x", key: "k", mandatory: false, persistent: true, props: {}, headers: {} });
  const second = await p.expect("publish");
  assert.deepEqual({ ...second.header, payload: Buffer.from(second.payload).toString() }, { seq: 2, exchange: "", key: "q", mandatory: true, persistent: false, props: {}, headers: {}, payload: "2" });
  assert.equal((await p.expect("publish")).payload.length, 0);
  p.send("return", { seq: 2, code: 312, msg: "NO_ROUTE", key: "q" }, "2");
  p.send("confirm", { seq: 3, nack: true, code: 506, msg: "full" });
  await assert.rejects(all[2]!, (e: Error) => e instanceof NackedError && e.code === 506);
  p.send("confirm", { upto: 2 });
  await all[0];
  await assert.rejects(all[1]!, (e: Error) => e instanceof UnroutableError && e.code === 312);
  const next = c.publish("", "q", "4");
  assert.equal((await p.expect("publish")).header.seq, 4);
  p.send("confirm", { upto: 4 });
  await next;
});

test("properties and headers arrive as they are", async (t) => {
  const { c, p } = await connected(t);
  const properties = {
    contentType: "a", contentEncoding: "b", correlationId: "c", replyTo: "d", expiration: 0, messageId: "e", timestamp: 2n ** 60n, type: "f", userId: "g", appId: "h", priority: 0,
  };
  const headers = { big: 2n ** 62n, small: -1, float: 1.5, text: "é", bin: new Uint8Array([1]), list: [null, true, { a: 1 }], nothing: undefined };
  const publish = c.publish("", "q", "m", { properties, headers });
  const { header } = await p.expect("publish");
  const { nothing: _, ...sent } = headers;
  assert.deepEqual(header.headers, sent);
  p.send("confirm", { upto: 1 });
  await publish;
  const got = c.get("q");
  const { rid } = (await p.expect("get")).header;
  p.send("get_ok", { rid, tag: 1, props: { ...header.props, later: 1 }, headers: header.headers, remaining: 7 }, "m");
  const { message, remaining } = await got;
  assert.deepEqual({ ...message!.properties }, properties);
  assert.deepEqual(message!.headers, sent);
  assert.equal(message!.text(), "m");
  assert.equal(remaining, 7);
});

test("what can't be sent is refused before it is", async (t) => {
  const { c, p } = await connected(t);
  const long = "x".repeat(256);
  for (const bad of [
    c.publish(long, "k", ""),
    c.publish("", "é".repeat(128), ""),
    c.publish("", "q", new Uint8Array(1 << 20)),
    c.publish("", "q", 5 as unknown as string),
    c.publish("", "q", "", { headers: { d: new Date() as unknown as string } }),
    c.publish("", "q", "", { headers: { n: 2n ** 64n } }),
    c.publish("", "q", "", { properties: { priority: 0.5 } }),
    c.publish("", "q", "", { properties: { expiration: -1 } }),
    c.publish("", "q", "", { properties: { replyTo: long } }),
    c.publish("", "q", "", { headers: { h: "x".repeat(140_000) } }),
    c.declareQueue(long),
    c.declareQueue("q", { args: { n: 2n ** 70n } }),
    c.subscribe("q", { prefetch: 0 }),
    c.publishAll([], { window: 0 }),
  ]) {
    await assert.rejects(bad, InvalidError);
  }
  await p.settled();
  const publish = c.publish("", "é".repeat(127), "");
  assert.equal((await p.expect("publish")).header.seq, 1, "refused ones take no number");
  p.send("confirm", { upto: 1 });
  await publish;
});

test("too many publishes are refused", async (t) => {
  const { c, p } = await connected(t, { maxPendingMessages: 2, maxPendingBytes: 100 });
  const first = c.publish("", "q", "x".repeat(200)); // one may be larger
  await assert.rejects(c.publish("", "q", "x"), FullError);
  await p.expect("publish");
  p.send("confirm", { upto: 1 });
  await first;
  const two = [c.publish("", "q", "1"), c.publish("", "q", "2")];
  await assert.rejects(c.publish("", "q", "3"), FullError);
  p.send("confirm", { upto: 3 });
  await Promise.all(two);
});

test("a publish that is given up is not sent if it waits, and leaves its place if it was", async (t) => {
  const { c, p } = await connected(t);
  const stop = new AbortController();
  const sent = c.publish("", "q", "sent", { signal: stop.signal });
  await p.expect("publish");
  p.send("flow", { pause: true });
  await p.settled();
  assert.equal(c.paused, true);
  const waiting = c.publish("", "q", "waiting", { signal: stop.signal });
  const other = c.publish("", "q", "other");
  stop.abort();
  await assert.rejects(sent, { name: "AbortError" });
  await assert.rejects(waiting, { name: "AbortError" });
  await assert.rejects(c.publish("", "q", "late", { signal: stop.signal }), { name: "AbortError" });
  await p.settled();
  assert.equal(p.waiting, 0, "nothing is published while paused");
  p.send("flow", { pause: false });
  const { header, payload } = await p.expect("publish");
  assert.deepEqual([header.seq, Buffer.from(payload).toString()], [2, "other"]);
  p.send("confirm", { upto: 2 });
  await other;
});

test("publishAll keeps a window in flight and stops at a failure", async (t) => {
  const { c, p } = await connected(t);
  let taken = 0;
  async function* messages(): AsyncGenerator<{ key: string; body: string }> {
    for (let i = 1; i <= 10; i++) {
      taken = i;
      yield { key: "q", body: `${i}` };
    }
  }
  const all = c.publishAll(messages(), { window: 3 });
  for (let i = 1; i <= 3; i++) await p.expect("publish");
  await p.settled();
  assert.equal(p.waiting, 0);
  assert.equal(taken, 4, "the fourth waits for a place");
  for (let i = 4; i <= 10; i++) {
    p.send("confirm", { upto: i - 3 });
    await p.expect("publish");
  }
  p.send("confirm", { upto: 10 });
  assert.equal(await all, 10);

  const failing = c.publishAll(messages(), { window: 2 });
  await p.expect("publish");
  await p.expect("publish");
  p.send("confirm", { seq: 11, nack: true, code: 506, msg: "full" });
  await p.settled();
  p.send("confirm", { upto: 12 });
  await assert.rejects(failing, NackedError);
  await p.settled();
  assert.equal(p.waiting, 0);

  const stop = new AbortController();
  const stopped = c.publishAll(messages(), { window: 2, signal: stop.signal });
  await p.expect("publish");
  await p.expect("publish");
  stop.abort();
  await assert.rejects(stopped, { name: "AbortError" });
  p.send("confirm", { upto: 14 });
  await p.settled();
  assert.equal(p.waiting, 0);
});

// ---- Consuming

test("credit is granted by eighths, exactly", async (t) => {
  const { c, p } = await connected(t);
  const subscribing = c.subscribe("q", { prefetch: 20, exclusive: true, tag: "w", args: { "x-priority": 1 } });
  const { rid, ...asked } = await p.grant("subscribe");
  assert.deepEqual(asked, { sub: 1, queue: "q", credit: 20, no_ack: false, exclusive: true, tag: "w", args: { "x-priority": 1 } });
  const s = await subscribing;
  p.deliver(1, "a", "b", "c", "d", "e");
  const got = [];
  for (let i = 0; i < 5; i++) got.push((await s.receive())!);
  got[1]!.ack();
  got[1]!.ack(); // settled: nothing
  assert.deepEqual((await p.expect("ack")).header, { tag: 2, multiple: false });
  got[0]!.nack();
  assert.deepEqual((await p.expect("nack")).header, { tag: 1, multiple: false, requeue: true });
  await p.settled();
  got[3]!.ackUpTo();
  assert.deepEqual((await p.expect("ack")).header, { tag: 4, multiple: true });
  assert.deepEqual((await p.expect("credit")).header, { sub: 1, credit: 3 });
  got[4]!.reject();
  assert.deepEqual((await p.expect("nack")).header, { tag: 5, multiple: false, requeue: false });
  got[2]!.ack();
  await p.settled();
});

test("with noAck, credit is for what was received", async (t) => {
  const { c, p } = await connected(t);
  const subscribing = c.subscribe("q", { prefetch: 2, noAck: true });
  await p.grant("subscribe");
  const s = await subscribing;
  p.deliver(1, "a", "b");
  await p.settled();
  assert.equal(p.waiting, 0);
  const m = (await s.receive())!;
  assert.deepEqual((await p.expect("credit")).header, { sub: 1, credit: 1 });
  m.ack();
  assert.equal(m.tag, 0);
  const unsubscribing = s.unsubscribe();
  await p.grant("unsubscribe");
  await unsubscribing;
  assert.equal((await s.receive())!.text(), "b");
  assert.equal(await s.receive(), undefined);
});

test("leaving a loop unsubscribes and gives the rest back", async (t) => {
  const { c, p } = await connected(t);
  const subscribing = c.subscribe("q");
  await p.grant("subscribe");
  const s = await subscribing;
  p.deliver(1, "a", "b");
  const loop = (async () => {
    for await (const m of s) {
      m.ack();
      break;
    }
  })();
  await p.expect("ack");
  const { rid } = (await p.expect("unsubscribe")).header;
  assert.deepEqual((await p.expect("nack")).header, { tag: 2, multiple: false, requeue: true });
  p.deliver(1, "c"); // was on its way
  assert.deepEqual((await p.expect("nack")).header, { tag: 3, multiple: false, requeue: true });
  p.send("ok", { rid });
  await loop;
  assert.equal(await s.receive(), undefined);
});

test("handle works on several messages at a time, and stops at a failure", async (t) => {
  const { c, p } = await connected(t);
  const subscribing = c.subscribe("q");
  await p.grant("subscribe");
  const s = await subscribing;
  let running = 0;
  let release!: () => void;
  const gate = new Promise<void>((resolve) => (release = resolve));
  const handling = s.handle(
    async (m) => {
      if (++running === 2) release();
      await gate;
      if (m.text() === "b") throw new Error("b is bad");
      m.ack();
    },
    { concurrency: 2 },
  );
  p.deliver(1, "a", "b");
  await assert.rejects(handling, /b is bad/);
  assert.equal(running, 2);
  const stop = new AbortController();
  const again = s.handle(() => {}, { signal: stop.signal });
  stop.abort();
  await assert.rejects(again, { name: "AbortError" });
  p.send("cancelled", { sub: 1, code: 404, msg: "NOT_FOUND - gone" });
  await assert.rejects(s.handle(() => {}), (e: Error) => e instanceof CancelledError && e.code === 404);
  await assert.rejects(s.receive(), CancelledError);
});

test("receive may be given up without losing a message", async (t) => {
  const { c, p } = await connected(t);
  const subscribing = c.subscribe("q");
  await p.grant("subscribe");
  const s = await subscribing;
  const stop = new AbortController();
  const given = s.receive({ signal: stop.signal });
  const kept = s.receive({ signal: new AbortController().signal });
  stop.abort();
  await assert.rejects(given, { name: "AbortError" });
  p.deliver(1, "a");
  assert.equal((await kept)!.text(), "a");
});

test("calls that are given up are undone", async (t) => {
  const { c, p } = await connected(t);
  const stop = new AbortController();
  const { signal } = stop;
  const calls = [c.get("q", { signal }), c.subscribe("q", { signal }), c.declareQueue("q", { signal })];
  const get = (await p.expect("get")).header;
  const subscribe = (await p.expect("subscribe")).header;
  const declare = (await p.expect("declare_queue")).header;
  stop.abort();
  for (const call of calls) await assert.rejects(call, { name: "AbortError" });
  p.send("get_ok", { rid: get.rid, tag: 1 }, "m");
  p.send("ok", { rid: subscribe.rid });
  p.send("deliver", { sub: subscribe.sub, tag: 2 }, "n");
  p.send("ok", { rid: declare.rid, name: "q" });
  assert.deepEqual((await p.expect("nack")).header, { tag: 1, multiple: false, requeue: true });
  assert.equal((await p.expect("unsubscribe")).header.sub, subscribe.sub);
  assert.deepEqual((await p.expect("nack")).header, { tag: 2, multiple: false, requeue: true });
});

test("errors that are no call's are told", async (t) => {
  const { c, p, errors } = await connected(t);
  c.ack(42);
  await p.expect("ack");
  p.send("error", { code: 406, msg: "PRECONDITION_FAILED - unknown delivery tag 42" });
  await p.settled();
  assert.equal(errors.length, 1);
  assert.ok(server(406)(errors[0]));
  const bad = c.purgeQueue("q");
  const { rid } = (await p.expect("purge_queue")).header;
  p.send("error", { rid, code: 404, msg: "NOT_FOUND" });
  await assert.rejects(bad, server(404));
});

// ---- Reconnecting

test("topology and subscriptions come back before anything else", async (t) => {
  const { b, c, p, errors } = await connected(t);
  const work = (async () => {
    await c.declareExchange("logs", "fanout");
    await c.declareExchange("gone", "fanout");
    const named = await c.declareQueue("named", { args: { "x-max-length": 5 } });
    const given = await c.declareQueue("", { exclusive: true });
    await c.bindQueue(given.name, "logs");
    await c.bindQueue("named", "gone");
    await c.bindQueue("named", "logs", "k");
    await c.unbindQueue("named", "logs", "k");
    await c.bindExchange("gone", "logs");
    await c.deleteExchange("gone");
    await c.declareQueue("passive", { passive: true });
    return { named, given, s: await c.subscribe(given.name, { prefetch: 2 }) };
  })();
  await p.grant("declare_exchange");
  await p.grant("declare_exchange");
  assert.equal((await p.grant("declare_queue", { name: "named" })).durable, true);
  const exclusive = await p.grant("declare_queue", { name: "amq.gen-1" });
  assert.deepEqual([exclusive.name, exclusive.durable, exclusive.exclusive], ["", false, true]);
  for (let i = 0; i < 3; i++) await p.grant("bind");
  await p.grant("unbind");
  await p.grant("bind");
  await p.grant("delete_exchange");
  await p.grant("declare_queue", { name: "passive" });
  await p.grant("subscribe");
  const { named, given, s } = await work;
  p.deliver(1, "old 1", "old 2");
  const old = (await s.receive())!;
  p.drop();
  const meanwhile = [c.publish("", "q", "meanwhile"), c.purgeQueue(given.name)];

  const p2 = await b.accept();
  assert.equal((await p2.grant("declare_exchange")).name, "logs");
  const again = await p2.grant("declare_queue", { name: "named" });
  assert.deepEqual([again.name, again.durable, again.args], ["named", true, { "x-max-length": 5 }]);
  assert.equal((await p2.grant("declare_queue", { name: "amq.gen-2" })).name, "");
  const bind = await p2.grant("bind");
  assert.deepEqual([bind.exchange, bind.queue], ["logs", "amq.gen-2"]);
  const { sub, queue, credit } = await p2.grant("subscribe");
  assert.deepEqual({ sub, queue, credit }, { sub: 1, queue: "amq.gen-2", credit: 2 });
  assert.deepEqual([named.name, given.name, s.queue], ["named", "amq.gen-2", "amq.gen-2"]);
  assert.equal((await p2.grant("purge_queue", { messages: 3 })).name, "amq.gen-2");
  await p2.expect("publish");
  p2.send("confirm", { upto: 1 });
  assert.deepEqual(await Promise.all(meanwhile), [undefined, 3]);

  old.ack(); // of the lost connection
  c.ack(old.tag);
  c.nack(old.tag, { multiple: true });
  p2.deliver(1, "old 1");
  const fresh = (await s.receive())!;
  assert.equal(fresh.text(), "old 1");
  assert.ok(fresh.tag > old.tag);
  fresh.ack();
  assert.deepEqual((await p2.expect("ack")).header, { tag: 1, multiple: false });
  assert.deepEqual((await p2.expect("credit")).header, { sub: 1, credit: 1 });
  c.ack(0, { multiple: true });
  assert.deepEqual((await p2.expect("ack")).header, { tag: 0, multiple: true });
  const unbinding = c.unbindQueue("amq.gen-1", "logs"); // by its first name
  assert.equal((await p2.grant("unbind")).queue, "amq.gen-2");
  await unbinding;
  assert.deepEqual(errors, []);
  p2.drop();
  const p3 = await b.accept();
  await p3.grant("declare_exchange");
  await p3.grant("declare_queue", { name: "named" });
  await p3.grant("declare_queue", { name: "amq.gen-3" });
  await p3.grant("subscribe"); // and no binding
});

test("publishes without a confirm are sent again, in order, with new numbers", async (t) => {
  const { b, c, p } = await connected(t);
  const all = ["1", "2", "3", "4"].map((body) => c.publish("", "q", body, { mandatory: true }));
  for (let i = 0; i < 4; i++) await p.expect("publish");
  p.send("confirm", { upto: 1 });
  p.send("return", { seq: 2, code: 312 });
  p.send("confirm", { seq: 3, nack: true, code: 506, msg: "full" });
  await assert.rejects(all[2]!, NackedError);
  p.drop();
  const late = c.publish("", "q", "5");
  const p2 = await b.accept();
  for (const [seq, body] of [[1, "2"], [2, "4"], [3, "5"]] as const) {
    const { header, payload } = await p2.expect("publish");
    assert.deepEqual([header.seq, Buffer.from(payload).toString()], [seq, body]);
  }
  p2.send("confirm", { upto: 3 });
  await Promise.all([all[0], all[1], all[3], late]); // what was returned before counts no more
});

test("a connection that is lost while it is restored is tried again", async (t) => {
  const { b, c, p } = await connected(t);
  const declaring = c.declareQueue("q");
  await p.grant("declare_queue", { name: "q" });
  await declaring;
  p.drop();
  const publish = c.publish("", "q", "m");
  const p2 = await b.accept();
  await p2.expect("declare_queue");
  p2.drop();
  const p3 = await b.accept();
  const { rid } = (await p3.expect("declare_queue")).header;
  p3.send("error", { rid, code: 541, msg: "INTERNAL_ERROR", fatal: true });
  await p3.gone;
  const p4 = await b.accept();
  await p4.grant("declare_queue", { name: "q" });
  await p4.expect("publish");
  p4.send("confirm", { upto: 1 });
  await publish;
});

test("what can't be declared again is told, and its subscription ends", async (t) => {
  const { b, c, p, errors } = await connected(t);
  const work = (async () => {
    await c.declareQueue("q");
    return await c.subscribe("q");
  })();
  await p.grant("declare_queue", { name: "q" });
  await p.grant("subscribe");
  const s = await work;
  p.drop();
  const p2 = await b.accept();
  const declare = (await p2.expect("declare_queue")).header;
  p2.send("error", { rid: declare.rid, code: 406, msg: "PRECONDITION_FAILED" });
  const subscribe = (await p2.expect("subscribe")).header;
  p2.send("error", { rid: subscribe.rid, code: 404, msg: "NOT_FOUND" });
  await assert.rejects(s.receive(), (e: Error) => e instanceof CancelledError && e.code === 404);
  await p2.settled();
  assert.deepEqual(errors.map((e) => e.code), [406, 404]);
});

test("what is exclusive is waited for while the broker has not noticed the loss", async (t) => {
  const b = await broker(t);
  b.welcome = { ver: 1, max_frame: 1 << 20, heartbeat: 60 };
  const errors: FireError[] = [];
  const c = await connect(b.url, { reconnect: quick, onError: (e) => errors.push(e) });
  t.after(() => c.close());
  const p = await b.accept();
  const declaring = c.declareQueue("mine", { exclusive: true });
  await p.grant("declare_queue", { name: "mine" });
  await declaring;
  p.drop();
  for (let i = 0; i < 3; i++) {
    const again = await b.accept();
    const { rid } = (await again.expect("declare_queue")).header;
    again.send("error", { rid, code: 405, msg: "RESOURCE_LOCKED" });
    await again.gone;
  }
  const last = await b.accept();
  await last.grant("declare_queue", { name: "mine" });
  const purging = c.purgeQueue("mine");
  await last.grant("purge_queue");
  await purging;
  assert.deepEqual(errors, []);
  const closing = c.close();
  await last.expect("close");
  last.send("close", { code: 200 });
  await closing;
});

test("calls wait only so long for a connection", async (t) => {
  const { b, c, p } = await connected(t, { reconnect: { ...quick, wait: 60 } });
  const sent = c.publish("", "q", "sent");
  await p.expect("publish");
  b.welcome = undefined;
  p.drop();
  await assert.rejects(sent, (e: Error) => e instanceof ClosedError && /no connection for 60 ms/.test(e.message));
  await Promise.all([
    assert.rejects(c.publish("", "q", "late"), ClosedError),
    assert.rejects(c.declareQueue("q"), ClosedError),
    assert.rejects(c.subscribe("q"), ClosedError),
  ]);
  b.welcome = { ver: 1, max_frame: 1 << 20 };
  const p2 = await b.accept();
  const publish = c.publish("", "q", "after all");
  assert.equal(Buffer.from((await p2.expect("publish")).payload).toString(), "after all");
  p2.send("confirm", { upto: 1 });
  await publish;
});

test("attempts end at their number, and at close", async (t) => {
  const { b, c, p } = await connected(t, { reconnect: { ...quick, maxAttempts: 3 } });
  const waiting = assert.rejects(c.publish("", "q", "m"), ClosedError);
  await p.expect("publish");
  b.welcome = undefined;
  p.drop();
  await waiting;
  assert.match((await c.closed)!.message, /no connection after 3 attempts/);

  const other = await connected(t, { reconnect: { minDelay: 1e6 } });
  const call = assert.rejects(other.c.declareQueue("q"), ClosedError);
  await other.p.expect("declare_queue");
  other.p.drop();
  const publish = assert.rejects(other.c.publish("", "q", "m"), ClosedError);
  await other.p.gone;
  await other.c.close();
  await call;
  await publish;
});

test("callbacks tell of the loss and of the return, and may throw into nothing of ours", async (t) => {
  const told: string[] = [];
  let back!: () => void;
  const returned = new Promise<void>((resolve) => (back = resolve));
  const { b, p } = await connected(t, {
    onDisconnect: (e) => told.push(`lost: ${e.message}`),
    onReconnect: () => {
      told.push("back");
      back();
    },
    onFlow: (paused) => told.push(`paused: ${paused}`),
  });
  p.send("flow", { pause: true });
  p.send("flow", { pause: true });
  await p.settled();
  p.drop();
  await b.accept();
  await returned;
  assert.deepEqual(told, ["paused: true", "lost: the broker closed the connection", "back"]);
});

test("an auto-delete queue does not come back without its subscription", async (t) => {
  const { b, c, p } = await connected(t);
  const work = (async () => {
    await c.declareQueue("q", { autoDelete: true });
    const s = await c.subscribe("q");
    await s.unsubscribe();
    await c.declareQueue("stays");
  })();
  await p.grant("declare_queue", { name: "q" });
  await p.grant("subscribe");
  await p.grant("unsubscribe");
  await p.grant("declare_queue", { name: "stays" });
  await work;
  p.drop();
  const p2 = await b.accept();
  assert.equal((await p2.grant("declare_queue", { name: "stays" })).name, "stays");
});
