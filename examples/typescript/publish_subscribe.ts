// Publish/subscribe: a fanout exchange copies each message to every bound queue.
import { connect } from "firemq-client";

const client = await connect(process.env.FIREMQ_URL ?? "fire://localhost");
await client.declareExchange("logs.ts", "fanout");

// Each subscriber gets its own temporary queue.
const subscriptions = [];
for (let i = 0; i < 2; i++) {
  const queue = await client.declareQueue("", { exclusive: true });
  await client.bindQueue(queue.name, "logs.ts");
  subscriptions.push(await client.subscribe(queue.name, { noAck: true }));
}

await client.publish("logs.ts", "", "info: hello subscribers");
for (const subscription of subscriptions) {
  const message = await subscription.receive();
  console.log(` [${subscription.queue.slice(-6)}] ${message?.text()}`);
}
await client.close();
