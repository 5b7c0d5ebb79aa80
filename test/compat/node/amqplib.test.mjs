// The amqplib suite: what a Node.js application sees of an AMQP 0-9-1 broker. It runs against any
// broker: set AMQP_URL, or nothing for one on localhost.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { afterEach, beforeEach, test } from "node:test";

import amqp from "amqplib";

const URL_ = process.env.AMQP_URL ?? "amqp://guest:guest@localhost:5672";
const VHOST = decodeURIComponent(new URL(URL_).pathname.slice(1)) || "/";
const CONTROL = process.env.BROKER_CONTROL;
const options = { timeout: 30_000 };
const controlled = { ...options, skip: CONTROL ? false : "nothing here restarts the broker or raises its alarm" };

let conn;
let ch; // with confirms
let opened;

// connect opens a connection that is closed after the test. Errors of a connection or channel
// reach the test through the rejected call.
async function connect(url = URL_, socket = {}) {
  const c = await amqp.connect(url, socket);
  c.on("error", () => {});
  opened.push(c);
  return c;
}

async function channel(c = conn) {
  const opened = await c.createChannel();
  opened.on("error", () => {});
  return opened;
}

beforeEach(async () => {
  opened = [];
  conn = await connect();
  ch = await conn.createConfirmChannel();
  ch.on("error", () => {});
});

afterEach(async () => {
  await Promise.all(opened.map((c) => c.close().catch(() => {}))); // some tests end theirs
});

// control restarts the broker, or raises or clears its alarm, and resolves when that is done.
async function control(what) {
  const answer = await fetch(`${CONTROL}/${what}`, { method: "POST" });
  assert.ok(answer.ok, await answer.text());
}

// eventually polls a condition of the broker until it holds; the test's own limit ends it.
async function eventually(condition) {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 10));
}

const unique = (name) => `${name}-${randomUUID().slice(0, 8)}`;

async function exclusiveQueue(c = ch, args = {}) {
  return (await c.assertQueue("", { exclusive: true, arguments: args })).queue;
}

const ready = async (queue, c = ch) => (await c.checkQueue(queue)).messageCount;

// publish resolves when the broker confirms, and rejects when it nacks.
const publish = (exchange, key, body = "m", properties = {}) =>
  new Promise((resolve, reject) => ch.publish(exchange, key, Buffer.from(body), properties, (err) => (err ? reject(err) : resolve())));

// collect consumes and resolves with the first n messages.
function collect(c, queue, n, opts = {}) {
  const got = [];
  return new Promise((resolve, reject) => {
    c.consume(queue, (msg) => {
      got.push(msg);
      if (got.length === n) resolve(got);
    }, opts).catch(reject);
  });
}

// refused is what the broker's channel.close says to a call.
async function refused(call, c) {
  const target = c ?? (await channel());
  let closed;
  target.on("error", (err) => (closed = err));
  await assert.rejects(call(target));
  assert.ok(closed, "the channel was closed by the broker");
  return { code: closed.code, text: closed.message.replace(/^.*with message "/s, "").replace(/"$/, "") };
}

test("a wrong password is 403", options, async () => {
  const url = new URL(URL_);
  url.password = "wrong";
  await assert.rejects(connect(url.href), /403 \(ACCESS-REFUSED\).*ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN/);
});

test("an unknown vhost is 530", options, async () => {
  const url = new URL(URL_);
  url.pathname = "/nowhere";
  await assert.rejects(connect(url.href), /Expected ConnectionOpenOk; got <ConnectionClose/); // all that amqplib tells
});

test("heartbeats keep an idle connection", options, async () => {
  const url = new URL(URL_);
  url.searchParams.set("heartbeat", "1");
  const c = await connect(url.href);
  let lost;
  c.on("close", (err) => (lost = err ?? new Error("closed")));
  await new Promise((resolve) => setTimeout(resolve, 4000)); // four intervals
  assert.equal(lost, undefined);
  await channel(c);
});

test("a missing queue is 404 and closes the channel alone", options, async () => {
  const name = unique("missing");
  for (const call of [(c) => c.checkQueue(name), (c) => c.get(name), (c) => c.purgeQueue(name), (c) => c.consume(name, () => {})]) {
    assert.deepEqual(await refused(call), { code: 404, text: `NOT_FOUND - no queue '${name}' in vhost '${VHOST}'` });
  }
  await exclusiveQueue();
});

test("properties must be equal", options, async () => {
  const name = unique("durable");
  await ch.assertQueue(name, { durable: true, autoDelete: true });
  await ch.assertQueue(name, { durable: true, autoDelete: true });
  assert.deepEqual(await refused((c) => c.assertQueue(name, { durable: false, autoDelete: true })), {
    code: 406,
    text: `PRECONDITION_FAILED - inequivalent arg 'durable' for queue '${name}' in vhost '${VHOST}': received 'false' but current is 'true'`,
  });
  assert.deepEqual(await refused((c) => c.assertQueue(name, { durable: true, autoDelete: true, maxLength: 5 })), {
    code: 406,
    text: `PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue '${name}' in vhost '${VHOST}': received the value '5' of type 'byte' but current is none`,
  });
  await ch.deleteQueue(name);
});

test("publishing to a missing exchange closes the channel", options, async () => {
  const c = await channel();
  const closed = new Promise((resolve) => c.on("error", resolve));
  c.publish("nowhere", "", Buffer.from(""));
  const err = await closed;
  assert.equal(err.code, 404);
  assert.match(err.message, new RegExp(`NOT_FOUND - no exchange 'nowhere' in vhost '${VHOST}'`));
});

test("an unknown delivery tag is 406", options, async () => {
  const c = await channel();
  const closed = new Promise((resolve) => c.on("error", resolve));
  c.ack({ fields: { deliveryTag: 42 } });
  const err = await closed;
  assert.equal(err.code, 406);
  assert.match(err.message, /PRECONDITION_FAILED - unknown delivery tag 42/);
});

test("every publish is confirmed", options, async () => {
  const queue = await exclusiveQueue();
  await Promise.all(Array.from({ length: 1000 }, (_, n) => publish("", queue, String(n))));
  assert.equal(await ready(queue), 1000);
});

test("persistent publishes to a durable queue are confirmed", options, async () => {
  const queue = unique("persistent");
  await ch.assertQueue(queue, { durable: true });
  for (let n = 0; n < 200; n++) ch.sendToQueue(queue, Buffer.from(String(n)), { persistent: true });
  await ch.waitForConfirms();
  assert.equal((await ch.deleteQueue(queue)).messageCount, 200);
});

test("a full queue that rejects nacks", options, async () => {
  const queue = await exclusiveQueue(ch, { "x-max-length": 1, "x-overflow": "reject-publish" });
  await publish("", queue, "fits");
  await assert.rejects(publish("", queue, "too many"), /nack/);
});

test("a mandatory unroutable message comes back before its confirm", options, async () => {
  const events = [];
  ch.on("return", (msg) => events.push(["return", msg.fields.replyCode, msg.fields.replyText, msg.fields.routingKey, String(msg.content), msg.properties.headers.k]));
  await publish("amq.direct", "nowhere", "come back", { mandatory: true, headers: { k: "v" } });
  events.push(["confirm"]);
  assert.deepEqual(events, [["return", 312, "NO_ROUTE", "nowhere", "come back", "v"], ["confirm"]]);
});

test("messages arrive in order with rising tags", options, async () => {
  const queue = await exclusiveQueue();
  for (let n = 0; n < 500; n++) ch.sendToQueue(queue, Buffer.from(String(n)));
  const got = await collect(await channel(), queue, 500, { noAck: true });
  assert.deepEqual(got.map((msg) => Number(msg.content)), Array.from({ length: 500 }, (_, n) => n));
  assert.deepEqual(got.map((msg) => msg.fields.deliveryTag), Array.from({ length: 500 }, (_, n) => n + 1));
});

test("prefetch of each consumer holds deliveries back until an ack", options, async () => {
  const queue = await exclusiveQueue();
  await Promise.all([1, 2, 3, 4, 5].map((n) => publish("", queue, String(n))));
  const c = await channel();
  await c.prefetch(2);
  const got = [];
  let arrived = () => {};
  await c.consume(queue, (msg) => {
    got.push(msg);
    arrived();
  });
  const until = (n) => new Promise((resolve) => (arrived = () => got.length >= n && resolve()) && arrived());
  await until(2);
  assert.equal(await ready(queue), 3);
  c.ack(got[1], true);
  await until(4);
  assert.equal(await ready(queue), 1);
  assert.deepEqual(got.map((msg) => String(msg.content)), ["1", "2", "3", "4"]);
});

test("a global prefetch limits the channel", options, async () => {
  const queue = await exclusiveQueue();
  await Promise.all([1, 2, 3, 4, 5, 6].map((n) => publish("", queue, String(n))));
  const c = await channel();
  await c.prefetch(3, true);
  let count = 0;
  const three = new Promise((resolve) => {
    for (let i = 0; i < 2; i++) c.consume(queue, () => ++count === 3 && resolve());
  });
  await three;
  assert.equal(await ready(queue), 3);
});

test("requeued messages return to their place as redelivered", options, async () => {
  const queue = await exclusiveQueue();
  for (const body of ["1", "2", "3", "4"]) await publish("", queue, body);
  const [one, two, three] = [await ch.get(queue), await ch.get(queue), await ch.get(queue)];
  ch.nack(three);
  ch.reject(one, true);
  ch.nack(two);
  const got = [];
  for (let n = 0; n < 4; n++) got.push(await ch.get(queue));
  assert.deepEqual(got.map((msg) => [String(msg.content), msg.fields.redelivered]), [["1", true], ["2", true], ["3", true], ["4", false]]);
});

test("rejected and acked messages are gone", options, async () => {
  const queue = await exclusiveQueue();
  for (const body of ["1", "2", "3"]) await publish("", queue, body);
  const c = await channel();
  c.nack(await c.get(queue), false, false);
  c.reject(await c.get(queue), false);
  c.ack(await c.get(queue));
  await c.close();
  assert.equal(await ready(queue), 0);
  assert.equal(await ch.get(queue), false);
});

test("get reports what remains", options, async () => {
  const queue = await exclusiveQueue();
  await publish("", queue, "1");
  await publish("", queue, "2");
  const msg = await ch.get(queue, { noAck: true });
  assert.deepEqual([String(msg.content), msg.fields.messageCount, msg.fields.exchange, msg.fields.routingKey], ["1", 1, "", queue]);
});

test("a consumer is told when its queue is deleted", options, async () => {
  const queue = await exclusiveQueue();
  const c = await channel();
  const cancelled = new Promise((resolve) => c.consume(queue, resolve));
  await c.checkQueue(queue);
  await ch.deleteQueue(queue);
  assert.equal(await cancelled, null);
});

test("cancel stops deliveries", options, async () => {
  const queue = await exclusiveQueue();
  const { consumerTag } = await ch.consume(queue, () => assert.fail("delivered after cancel"));
  await ch.cancel(consumerTag);
  await publish("", queue);
  assert.equal(await ready(queue), 1);
});

test("an exclusive queue is locked and dies with its connection", options, async () => {
  const owner = await connect();
  const { queue } = await (await channel(owner)).assertQueue("", { exclusive: true });
  const { code, text } = await refused((c) => c.checkQueue(queue));
  assert.equal(code, 405);
  assert.match(text, /^RESOURCE_LOCKED - cannot obtain exclusive access to locked queue/);
  await owner.close();
  assert.equal((await refused((c) => c.checkQueue(queue))).code, 404);
});

test("an auto-delete queue dies with its last consumer", options, async () => {
  const queue = unique("auto-delete");
  await ch.assertQueue(queue, { durable: false, autoDelete: true });
  const { consumerTag } = await ch.consume(queue, () => {});
  await ch.cancel(consumerTag);
  assert.equal((await refused((c) => c.checkQueue(queue))).code, 404);
});

test("topic, headers, fanout and exchange bindings route", options, async () => {
  const [topic, headers, fanout] = ["topic", "headers", "fanout"].map(unique);
  await ch.assertExchange(topic, "topic", { durable: false, autoDelete: true });
  await ch.assertExchange(headers, "headers", { durable: false, autoDelete: true });
  await ch.assertExchange(fanout, "fanout", { durable: false, autoDelete: true, alternateExchange: "amq.fanout" });
  const queue = await exclusiveQueue();
  await ch.bindExchange(headers, topic, "order.*");
  await ch.bindExchange(fanout, headers, "", { "x-match": "any", region: "eu", urgent: true });
  await ch.bindQueue(queue, fanout, "");
  await publish(topic, "order.paid", "routed", { headers: { region: "eu" } });
  await publish(topic, "order.paid", "wrong header", { headers: { region: "us" } });
  await publish(topic, "invoice.paid", "wrong key", { headers: { region: "eu" } });
  assert.equal(await ready(queue), 1);
  assert.equal(String((await ch.get(queue, { noAck: true })).content), "routed");
});

test("properties and headers of every type come back", options, async () => {
  const queue = await exclusiveQueue();
  const properties = {
    contentType: "application/json",
    contentEncoding: "gzip",
    headers: { bool: true, int: -7, big: 2 ** 40, float: 0.1, text: "grüße", none: null, list: [1, "two", [true]], table: { deep: { n: 1 } } },
    deliveryMode: 2,
    priority: 9,
    correlationId: "c-1",
    replyTo: "answers",
    expiration: "60000",
    messageId: "m-1",
    timestamp: 1_700_000_000,
    type: "order.created",
    userId: "guest",
    appId: "suite",
  };
  await publish("", queue, "{}", properties);
  const msg = await ch.get(queue, { noAck: true });
  for (const [key, value] of Object.entries(properties)) assert.deepEqual(msg.properties[key], value, key);
});

test("a body of many frames comes back equal", options, async () => {
  const queue = await exclusiveQueue();
  const body = Buffer.alloc(3_000_000, "0123456789abcdef");
  await publish("", queue, body);
  const msg = await ch.get(queue, { noAck: true });
  assert.ok(msg.content.equals(body));
});

test("a small negotiated frame size is honoured both ways", options, async () => {
  const url = new URL(URL_);
  url.searchParams.set("frameMax", "4096");
  const c = await channel(await connect(url.href));
  const queue = await exclusiveQueue(c);
  const body = Buffer.alloc(100_000, "x");
  c.sendToQueue(queue, body);
  const [msg] = await collect(c, queue, 1, { noAck: true });
  assert.ok(msg.content.equals(body));
});

// What RabbitMQ's users have plugins or quorum queues for.

const needsFireMQ = (t) => {
  if (conn.connection.serverProperties.product === "FireMQ") return false;
  t.skip("needs plugins");
  return true;
};

test("a consistent hash exchange keeps a key on one queue", async (t) => {
  if (needsFireMQ(t)) return;
  const exchange = unique("hash");
  await ch.assertExchange(exchange, "x-consistent-hash", { autoDelete: true, durable: false });
  const queues = await Promise.all([1, 2, 3].map(() => exclusiveQueue()));
  for (const queue of queues) await ch.bindQueue(queue, exchange, "1");
  for (let i = 0; i < 10; i++) await publish(exchange, "one key");
  const counts = await Promise.all(queues.map((queue) => ready(queue)));
  assert.deepEqual(counts.sort(), [0, 0, 10]);
});

test("a queue that de-duplicates confirms a repetition and does not take it", async (t) => {
  if (needsFireMQ(t)) return;
  const queue = await exclusiveQueue(ch, { "x-message-deduplication": true });
  const headers = { "x-deduplication-header": "k" };
  for (let i = 0; i < 3; i++) await publish("", queue, "m", { headers, persistent: true });
  assert.equal(await ready(queue), 1);
});

test("a delivery limit ends a message that always comes back", async (t) => {
  if (needsFireMQ(t)) return;
  const queue = await exclusiveQueue(ch, { "x-delivery-limit": 1 });
  await publish("", queue);
  const counts = [];
  for (let msg; (msg = await ch.get(queue)); ) {
    counts.push(msg.properties.headers?.["x-delivery-count"]);
    ch.nack(msg);
  }
  assert.deepEqual(counts, [undefined, 1]);
});

test("what is reserved is 403, and so is an exclusive consumer's queue", options, async () => {
  assert.deepEqual(await refused((c) => c.assertQueue("amq.mine")), {
    code: 403,
    text: "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
  });
  const queue = await exclusiveQueue();
  await ch.consume(queue, () => {}, { exclusive: true });
  assert.deepEqual(await refused((c) => c.consume(queue, () => {})), {
    code: 403,
    text: `ACCESS_REFUSED - queue '${queue}' in vhost '${VHOST}' in exclusive use`,
  });
});

test("a consumer tag used twice is 530 and ends the connection", options, async () => {
  const c = await connect();
  const closed = new Promise((resolve) => c.on("error", resolve));
  const own = await channel(c);
  const queue = await exclusiveQueue(own);
  await own.consume(queue, () => {}, { consumerTag: "tag" });
  await assert.rejects(own.consume(queue, () => {}, { consumerTag: "tag" }));
  const err = await closed;
  assert.equal(err.code, 530);
  assert.match(err.message, /NOT_ALLOWED - attempt to reuse consumer tag 'tag'/);
});

test("expired messages are dead-lettered", options, async () => {
  const dead = await exclusiveQueue();
  const short = await exclusiveQueue(ch, { "x-message-ttl": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead });
  await publish("", short, "expired by its queue");
  await eventually(async () => (await ready(dead)) === 1);
  const { headers } = (await ch.get(dead, { noAck: true })).properties;
  assert.deepEqual([headers["x-death"][0].reason, headers["x-death"][0].queue, headers["x-death"][0].count, headers["x-first-death-queue"]], ["expired", short, 1, short]);
  const queue = await exclusiveQueue();
  await publish("", queue, "expired by itself", { expiration: "20" });
  await eventually(async () => (await ready(queue)) === 0);
});

test("a full queue drops its head", options, async () => {
  const queue = await exclusiveQueue(ch, { "x-max-length": 2 });
  for (const body of ["1", "2", "3", "4"]) await publish("", queue, body);
  assert.deepEqual([String((await ch.get(queue)).content), String((await ch.get(queue)).content), await ch.get(queue)], ["3", "4", false]);
});

test("higher priorities come first", options, async () => {
  const queue = await exclusiveQueue(ch, { "x-max-priority": 10 });
  for (const priority of [1, 9, 5]) await publish("", queue, String(priority), { priority });
  const got = [];
  for (let n = 0; n < 3; n++) got.push(String((await ch.get(queue)).content));
  assert.deepEqual(got, ["9", "5", "1"]);
});

test("one active consumer at a time, and consumers by their priority", options, async () => {
  const queue = await exclusiveQueue(ch, { "x-single-active-consumer": true });
  const first = await channel();
  const taken = collect(first, queue, 2);
  await first.checkQueue(queue); // the first consumer is there
  const again = collect(await channel(), queue, 1);
  await publish("", queue, "1");
  await publish("", queue, "2");
  const [one] = await taken;
  first.ack(one);
  await first.close();
  const [msg] = await again;
  assert.deepEqual([String(msg.content), msg.fields.redelivered], ["2", true]);

  const shared = await exclusiveQueue();
  const [low, high] = [await channel(), await channel()];
  await low.consume(shared, () => assert.fail("delivered to the lower priority"), { priority: -1, noAck: true });
  const got = collect(high, shared, 5, { priority: 5, noAck: true });
  await high.checkQueue(shared);
  await Promise.all([1, 2, 3, 4, 5].map((n) => publish("", shared, String(n))));
  assert.equal((await got).length, 5);
});

test("direct reply-to answers without a queue", options, async () => {
  const queue = await exclusiveQueue();
  const answer = collect(ch, "amq.rabbitmq.reply-to", 1, { noAck: true });
  await ch.checkQueue(queue);
  await publish("", queue, "7", { replyTo: "amq.rabbitmq.reply-to", correlationId: "c" });
  const request = await ch.get(queue, { noAck: true });
  assert.match(request.properties.replyTo, /^amq\.rabbitmq\.reply-to\./);
  const server = await channel(await connect());
  server.sendToQueue(request.properties.replyTo, Buffer.from("49"), { correlationId: request.properties.correlationId });
  const [msg] = await answer;
  assert.deepEqual([String(msg.content), msg.properties.correlationId], ["49", "c"]);
});

test("many channels work side by side", options, async () => {
  const queue = await exclusiveQueue();
  const channels = await Promise.all(Array.from({ length: 200 }, () => conn.createConfirmChannel()));
  for (const c of channels) c.sendToQueue(queue, Buffer.from("m"));
  await Promise.all(channels.map((c) => c.waitForConfirms()));
  assert.equal(await ready(queue), 200);
  await Promise.all(channels.map((c) => c.close()));
});

test("a publisher is told of an alarm", controlled, async () => {
  const told = [];
  conn.on("blocked", (reason) => told.push(reason));
  conn.on("unblocked", () => told.push("unblocked"));
  const queue = await exclusiveQueue();
  await publish("", queue);
  await control("alarm");
  const waiting = publish("", queue);
  try {
    await eventually(() => told.length === 1);
    assert.match(told[0], /^low on /);
  } finally {
    await control("clear");
  }
  await waiting;
  await eventually(() => told.length === 2);
  assert.equal(told[1], "unblocked");
  assert.equal(await ready(queue), 2);
});

test("a restart is 320, and what was confirmed is there on a new connection", controlled, async () => {
  const closed = new Promise((resolve) => conn.on("close", resolve));
  const queue = unique("durable");
  await ch.assertQueue(queue, { durable: true });
  for (let n = 0; n < 10; n++) await publish("", queue, String(n), { persistent: true });
  await control("restart");
  const reason = await closed;
  assert.match(String(reason?.message), /320|CONNECTION_FORCED|CONNECTION-FORCED/);
  const c = await channel(await connect());
  for (let n = 0; n < 10; n++) assert.equal(String((await c.get(queue, { noAck: true })).content), String(n));
  assert.equal((await c.deleteQueue(queue)).messageCount, 0);
});
