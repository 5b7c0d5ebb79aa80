//! The client for [FireMQ](https://github.com/firemq/firemq), a message broker: its own protocol over TCP, TLS and
//! WebSocket.
//!
//! ```no_run
//! use firemq_client::{Client, QueueOptions, SubscribeOptions};
//!
//! # async fn run() -> Result<(), firemq_client::Error> {
//! let client = Client::connect("fire://localhost").await?;
//! client.declare_queue("jobs", QueueOptions::default()).await?;
//! client.publish("", "jobs", "hello").await?; // the broker has it on disk
//!
//! let mut jobs = client.subscribe("jobs", SubscribeOptions::default()).await?;
//! while let Some(job) = jobs.next().await {
//!     println!("{}", job.body_str().unwrap_or_default());
//!     job.ack()?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Defaults favour safety: queues and exchanges are durable, messages persistent, publishing waits for the broker's
//! confirm, deliveries have to be acknowledged.
//!
//! When the connection is lost, the client makes another: it declares exchanges, queues and bindings again, resumes
//! subscriptions, and sends messages again that waited for their confirm (see [`Reconnect`]). A queue declared with an
//! empty name gets a new name then, to which its bindings and subscriptions move; its first name goes on to mean it in
//! every call but those that publish.
//!
//! What is bounded: messages without a confirm by the window of a [`Publisher`] and 64 MiB in all, bytes that wait for
//! the socket by 1 MiB (publishers wait), deliveries that wait for [`Subscription::next`] by the prefetch (the broker
//! waits).

mod client;
mod error;
mod link;
mod message;
mod options;
mod publish;
mod state;
mod subscription;
mod topology;
mod transport;
mod value;
mod wire;

#[cfg(test)]
mod tests;

pub use bytes::Bytes;
pub use client::{Client, Queue};
pub use error::Error;
pub use message::{Message, Properties, PublishOptions};
pub use options::{
    ConnectOptions, DeleteOptions, Event, EventHandler, ExchangeOptions, QueueOptions, Reconnect, SubscribeOptions,
    Transport,
};
pub use publish::{Confirm, Publisher};
pub use subscription::Subscription;
pub use tokio_rustls::rustls;
pub use value::{Map, Value};

/// This client's version, shown to the broker.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
