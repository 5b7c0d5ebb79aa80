//! Publish/subscribe: a fanout exchange copies each message to every bound queue.

use firemq_client::{Client, Error, ExchangeOptions, QueueOptions, SubscribeOptions};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("FIREMQ_URL").unwrap_or_else(|_| "fire://localhost".into());
    let client = Client::connect(&url).await?;
    client
        .declare_exchange("logs.rust", "fanout", ExchangeOptions::default())
        .await?;

    // Each subscriber gets a temporary queue of its own, which the broker names.
    let mut subscribers = Vec::new();
    for _ in 0..2 {
        let queue = client.declare_queue("", QueueOptions::temporary()).await?;
        client.bind_queue(&queue.name, "logs.rust", "").await?;
        subscribers.push(
            client
                .subscribe(&queue.name, SubscribeOptions::default())
                .await?,
        );
    }

    client
        .publish("logs.rust", "", "info: hello subscribers")
        .await?;
    for subscriber in &mut subscribers {
        let Some(message) = subscriber.next().await else {
            break;
        };
        let queue = subscriber.queue();
        println!(
            " [{}] {}",
            &queue[queue.len() - 6..],
            message.body_str().unwrap_or_default()
        );
        message.ack()?;
    }
    client.close().await
}
