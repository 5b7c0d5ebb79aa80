// RPC: a request carries replyTo and correlationId; the server answers there.
import { randomUUID } from "node:crypto";

import amqp from "amqplib";

const url = process.env.AMQP_URL ?? "amqp://localhost";

// The server squares numbers.
const serverConn = await amqp.connect(url);
const server = await serverConn.createChannel();
await server.assertQueue("rpc_queue", { durable: false });
await server.consume("rpc_queue", (msg) => {
  const n = Number(msg.content);
  server.sendToQueue(msg.properties.replyTo, Buffer.from(String(n * n)), { correlationId: msg.properties.correlationId });
  server.ack(msg);
});

// The client sends a request and waits for the matching reply.
const conn = await amqp.connect(url);
const ch = await conn.createChannel();
const { queue } = await ch.assertQueue("", { exclusive: true });
const correlationId = randomUUID();
ch.sendToQueue("rpc_queue", Buffer.from("7"), { replyTo: queue, correlationId });
await new Promise((resolve) =>
  ch.consume(queue, (msg) => {
    if (msg.properties.correlationId !== correlationId) return;
    console.log(` [.] square(7) = ${msg.content}`);
    resolve();
  }, { noAck: true }),
);
await conn.close();
await serverConn.close();
