//! Work queues: shares tasks between workers, one unacknowledged task each.

use firemq_client::{Client, Error, QueueOptions, SubscribeOptions};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("FIREMQ_URL").unwrap_or_else(|_| "fire://localhost".into());
    let client = Client::connect(&url).await?;
    client
        .declare_queue("task_queue.rust", QueueOptions::default())
        .await?; // durable, and its messages are persistent
    for n in 1..=3 {
        client
            .publish("", "task_queue.rust", format!("task {n}"))
            .await?;
    }

    let options = SubscribeOptions {
        prefetch: 1,
        ..Default::default()
    };
    let mut tasks = client.subscribe("task_queue.rust", options).await?;
    for _ in 1..=3 {
        let Some(task) = tasks.next().await else {
            break;
        };
        println!(" [x] Done {}", task.body_str().unwrap_or_default());
        task.ack()?; // only now: if this worker had died, another one would have got the task
    }
    client.close().await
}
