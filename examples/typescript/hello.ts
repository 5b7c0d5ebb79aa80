// Hello world: send one message to a queue and receive it.
import { connect } from "firemq-client";

const client = await connect(process.env.FIREMQ_URL ?? "fire://localhost");
await client.declareQueue("hello.ts");

await client.publish("", "hello.ts", "Hello World!"); // confirmed: it is on disk
console.log(" [x] Sent 'Hello World!'");

for await (const message of await client.subscribe("hello.ts")) {
  console.log(` [x] Received '${message.text()}'`);
  message.ack();
  break;
}
await client.close();
