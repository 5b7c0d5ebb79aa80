//! What the tests share: connections, and ways to wait.
//!
//! The suite runs against any broker: set AMQP_URL, or nothing for one on localhost. Names are unique to
//! a test, so a run leaves nothing that disturbs the next.
#![allow(dead_code)] // each test program uses its part

use std::{
    env,
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures_lite::StreamExt;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer, Error, ErrorKind,
    message::Delivery,
    options::*,
    types::{AMQPValue, FieldTable},
};
use tokio::time::timeout;

/// For any single answer.
pub const LIMIT: Duration = Duration::from_secs(20);

pub fn url() -> String {
    env::var("AMQP_URL").unwrap_or_else(|_| "amqp://guest:guest@localhost:5672".into())
}

pub async fn connect() -> Connection {
    Connection::connect(&url(), ConnectionProperties::default()).await.unwrap()
}

/// A connection with a channel that confirms.
pub async fn open() -> (Connection, Channel) {
    let connection = connect().await;
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    (connection, channel)
}

pub fn unique(name: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("lapin-{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn table(entries: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (key, value) in entries {
        table.insert((*key).into(), value.clone());
    }
    table
}

pub fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// Declares an exclusive queue.
pub async fn queue(channel: &Channel, arguments: FieldTable) -> String {
    let name = unique("queue");
    channel.queue_declare(name.as_str().into(), QueueDeclareOptions::exclusive(), arguments).await.unwrap();
    name
}

/// Publishes to a queue and waits for the confirm.
pub async fn publish_with(channel: &Channel, queue: &str, body: &[u8], properties: BasicProperties) -> Confirmation {
    let confirm = channel.basic_publish("".into(), queue.into(), BasicPublishOptions::default(), body, properties);
    within(async { confirm.await.unwrap().await }).await.unwrap()
}

pub async fn publish(channel: &Channel, queue: &str, body: &str) {
    let confirmation = publish_with(channel, queue, body.as_bytes(), BasicProperties::default()).await;
    assert!(confirmation.is_ack(), "{confirmation:?}");
}

/// Takes a message, acknowledged by its delivery.
pub async fn take(channel: &Channel, queue: &str) -> Option<Delivery> {
    let got = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap();
    got.map(|message| message.delivery)
}

pub async fn body(channel: &Channel, queue: &str) -> Option<String> {
    take(channel, queue).await.map(|delivery| string(&delivery))
}

pub fn string(delivery: &Delivery) -> String {
    String::from_utf8(delivery.data.clone()).unwrap()
}

pub async fn ready(channel: &Channel, queue: &str) -> u32 {
    let options = QueueDeclareOptions { passive: true, ..Default::default() };
    channel.queue_declare(queue.into(), options, FieldTable::default()).await.unwrap().message_count()
}

pub async fn consume(channel: &Channel, queue: &str, no_ack: bool, arguments: FieldTable) -> Consumer {
    let options = BasicConsumeOptions { no_ack, ..Default::default() };
    channel.basic_consume(queue.into(), "".into(), options, arguments).await.unwrap()
}

pub async fn next(consumer: &mut Consumer) -> Delivery {
    within(consumer.next()).await.expect("the consumer has ended").unwrap()
}

/// That nothing more is on its way: a round trip of the channel came back before it.
pub async fn assert_idle(channel: &Channel, queue: &str, consumer: &mut Consumer) {
    ready(channel, queue).await;
    let more = timeout(Duration::from_millis(50), consumer.next()).await;
    assert!(more.is_err(), "{more:?}");
}

/// Waits for an answer, but not for ever.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.expect("no answer")
}

/// Polls the number of ready messages until it is so many.
pub async fn until_ready(channel: &Channel, queue: &str, n: u32) {
    within(async {
        while ready(channel, queue).await != n {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The code and the text of the error that a broker closed a channel or a connection with.
pub fn refusal(error: &Error) -> (u16, String) {
    match error.kind() {
        ErrorKind::ProtocolError(error) => (error.get_id(), error.get_message().as_str().to_owned()),
        other => panic!("no error of the broker: {other:?}"),
    }
}

pub fn assert_refused<T: std::fmt::Debug>(result: lapin::Result<T>, code: u16, text: &str) {
    assert_eq!(refusal(&result.expect_err("the broker did not refuse")), (code, text.to_owned()));
}
