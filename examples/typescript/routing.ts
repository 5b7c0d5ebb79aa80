// Routing: a direct exchange delivers by exact routing key.
import { connect } from "firemq-client";

const client = await connect(process.env.FIREMQ_URL ?? "fire://localhost");
await client.declareExchange("direct_logs.ts", "direct");
const errors = await client.declareQueue("", { exclusive: true });
await client.bindQueue(errors.name, "direct_logs.ts", "error");

for (const severity of ["info", "warning", "error"]) await client.publish("direct_logs.ts", severity, `${severity} event`);

for await (const message of await client.subscribe(errors.name)) {
  console.log(` [x] ${message.key}: ${message.text()}`); // only the error event arrives
  message.ack();
  break;
}
await client.close();
