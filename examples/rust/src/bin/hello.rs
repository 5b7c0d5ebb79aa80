//! Publishes one message and receives it.

use firemq_client::{Client, Error, QueueOptions, SubscribeOptions};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("FIREMQ_URL").unwrap_or_else(|_| "fire://localhost".into());
    let client = Client::connect(&url).await?;
    client
        .declare_queue("hello.rust", QueueOptions::default())
        .await?;
    client.publish("", "hello.rust", "Hello World!").await?;
    println!(" [x] Sent 'Hello World!'");

    let mut messages = client
        .subscribe("hello.rust", SubscribeOptions::default())
        .await?;
    if let Some(message) = messages.next().await {
        println!(" [x] Received '{}'", message.body_str().unwrap_or_default());
        message.ack()?;
    }
    client.close().await
}
