// Work queues: share tasks between workers, one unacknowledged task each.
import { connect } from "firemq-client";

const client = await connect(process.env.FIREMQ_URL ?? "fire://localhost");
await client.declareQueue("task_queue.ts"); // durable, and its messages are persistent
for (let n = 1; n <= 3; n++) await client.publish("", "task_queue.ts", `task ${n}`);

let done = 0;
for await (const task of await client.subscribe("task_queue.ts", { prefetch: 1 })) {
  console.log(` [x] Done ${task.text()}`);
  task.ack(); // only now: if this worker had died, another one would have got the task
  if (++done === 3) break;
}
await client.close();
