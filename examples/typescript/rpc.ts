// RPC: a request carries replyTo and correlationId; the server answers there.
import { randomUUID } from "node:crypto";

import { connect } from "firemq-client";

const url = process.env.FIREMQ_URL ?? "fire://localhost";

// The server squares numbers.
const server = await connect(url);
await server.declareQueue("rpc_queue.ts");
const requests = await server.subscribe("rpc_queue.ts");
const serving = requests.handle(async (request) => {
  const { replyTo = "", correlationId } = request.properties;
  const n = Number(request.text());
  await server.publish("", replyTo, String(n * n), { persistent: false, properties: { correlationId } });
  request.ack();
});

// The client sends a request and waits for the matching answer.
const client = await connect(url);
const answers = await client.declareQueue("", { exclusive: true });
const subscription = await client.subscribe(answers.name, { noAck: true });
const correlationId = randomUUID();
await client.publish("", "rpc_queue.ts", "7", { properties: { replyTo: answers.name, correlationId } });
for await (const answer of subscription) {
  if (answer.properties.correlationId !== correlationId) continue;
  console.log(` [.] square(7) = ${answer.text()}`);
  break;
}
await client.close();
await requests.unsubscribe(); // what is being handled is finished
await serving;
await server.close();
