// Routing: a direct exchange delivers by exact routing key.
import amqp from "amqplib";

const conn = await amqp.connect(process.env.AMQP_URL ?? "amqp://localhost");
const ch = await conn.createChannel();
await ch.assertExchange("direct_logs", "direct", { durable: false });
const { queue } = await ch.assertQueue("", { exclusive: true });
await ch.bindQueue(queue, "direct_logs", "error");
for (const severity of ["info", "warning", "error"]) ch.publish("direct_logs", severity, Buffer.from(`${severity} event`));

await new Promise((resolve) =>
  ch.consume(queue, (msg) => {
    console.log(` [x] ${msg.fields.routingKey}: ${msg.content}`); // only the error event arrives
    resolve();
  }, { noAck: true }),
);
await conn.close();
