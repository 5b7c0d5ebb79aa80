//! Routing: a direct exchange delivers by exact routing key.

use firemq_client::{Client, Error, ExchangeOptions, QueueOptions, SubscribeOptions};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("FIREMQ_URL").unwrap_or_else(|_| "fire://localhost".into());
    let client = Client::connect(&url).await?;
    client
        .declare_exchange("direct_logs.rust", "direct", ExchangeOptions::default())
        .await?;
    let queue = client.declare_queue("", QueueOptions::temporary()).await?;
    client
        .bind_queue(&queue.name, "direct_logs.rust", "error")
        .await?;
    let mut errors = client
        .subscribe(&queue.name, SubscribeOptions::default())
        .await?;

    for severity in ["info", "warning", "error"] {
        client
            .publish("direct_logs.rust", severity, format!("{severity} event"))
            .await?;
    }
    if let Some(message) = errors.next().await {
        // Only the error event arrives.
        println!(
            " [x] {}: {}",
            message.routing_key,
            message.body_str().unwrap_or_default()
        );
        message.ack()?;
    }
    client.close().await
}
