// Topics: route with word patterns; * matches one word, # matches zero or more.
import { connect } from "firemq-client";

const client = await connect(process.env.FIREMQ_URL ?? "fire://localhost");
await client.declareExchange("topic_logs.ts", "topic");
const critical = await client.declareQueue("", { exclusive: true });
await client.bindQueue(critical.name, "topic_logs.ts", "*.critical");

for (const key of ["kern.critical", "kern.info", "app.critical"]) await client.publish("topic_logs.ts", key, key);

let received = 0;
for await (const message of await client.subscribe(critical.name)) {
  console.log(` [x] ${message.text()}`);
  message.ack();
  if (++received === 2) break;
}
await client.close();
