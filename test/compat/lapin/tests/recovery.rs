//! Alarms and restarts of the broker, and what lapin brings back by itself. These tests are in a program of
//! their own, one after the other, because they end the connections of all others.

mod common;

use std::{env, time::Duration};

use common::*;
use futures_lite::{Stream, StreamExt};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties, ErrorKind, Event, ExchangeKind, options::*, types::FieldTable};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Mutex,
};

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Restarts the broker or raises its alarm. Without what does that for the suite, it says so and gives false.
async fn control(what: &str) -> bool {
    let address = env::var("BROKER_CONTROL").unwrap_or_default();
    if address.is_empty() {
        println!("nothing here restarts the broker or raises its alarm");
        return false;
    }
    let mut stream = TcpStream::connect(address.trim_start_matches("http://")).await.unwrap();
    stream.write_all(format!("POST /{what} HTTP/1.0\r\nContent-Length: 0\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    true
}

async fn until(events: &mut (impl Stream<Item = Event> + Unpin), wanted: impl Fn(&Event) -> bool) -> Event {
    within(async {
        loop {
            let event = events.next().await.expect("the connection is gone");
            if wanted(&event) {
                return event;
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_publisher_is_told_of_an_alarm() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (connection, channel) = open().await;
    let mut events = Box::pin(connection.events_listener());
    let queue = queue(&channel, FieldTable::default()).await;
    publish(&channel, &queue, "m").await;
    if !control("alarm").await {
        return;
    }
    let sent = channel.basic_publish("".into(), queue.as_str().into(), BasicPublishOptions::default(), b"m", BasicProperties::default()).await.unwrap();
    let event = until(&mut events, |event| matches!(event, Event::ConnectionBlocked(_))).await;
    let Event::ConnectionBlocked(reason) = event else { unreachable!() };
    assert!(reason.starts_with("low on "), "{reason}");
    assert!(connection.status().blocked());
    control("clear").await;
    until(&mut events, |event| matches!(event, Event::ConnectionUnblocked)).await;
    assert!(within(sent).await.unwrap().is_ack());
    assert_eq!(ready(&channel, &queue).await, 2);
}

#[tokio::test]
async fn without_recovery_a_restart_is_320() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (connection, _channel) = open().await;
    let mut events = Box::pin(connection.events_listener());
    if !control("restart").await {
        return;
    }
    let Event::Error(error) = until(&mut events, |event| matches!(event, Event::Error(_))).await else { unreachable!() };
    match error.kind() {
        ErrorKind::IOError(_) => {} // RabbitMQ's reason may be lost in a reset of the connection
        _ => {
            let (code, text) = refusal(&error);
            assert_eq!(code, 320);
            assert!(text.starts_with("CONNECTION_FORCED"), "{text}");
        }
    }
}

#[tokio::test]
async fn topology_and_consumers_come_back() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let properties = ConnectionProperties::default().enable_auto_recover();
    let connection = Connection::connect(&url(), properties).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let (exchange, durable) = (unique("exchange"), unique("durable"));
    let options = ExchangeDeclareOptions { auto_delete: true, ..Default::default() };
    channel.exchange_declare(exchange.as_str().into(), ExchangeKind::Topic, options, FieldTable::default()).await.unwrap();
    let queue = queue(&channel, FieldTable::default()).await;
    channel.queue_bind(queue.as_str().into(), exchange.as_str().into(), "order.*".into(), QueueBindOptions::default(), FieldTable::default()).await.unwrap();
    channel.queue_declare(durable.as_str().into(), QueueDeclareOptions::durable(), FieldTable::default()).await.unwrap();
    let mut consumer = consume(&channel, &queue, true, FieldTable::default()).await;
    publish_with(&channel, &durable, b"kept", BasicProperties::default().with_delivery_mode(2)).await;

    for n in 0..2 {
        if !control("restart").await {
            break;
        }
        // Another connection sees when the binding is back; then the consumer soon is, too.
        within(async {
            while !routed(&exchange, &n.to_string()).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        let delivery = within(async {
            loop {
                match consumer.next().await.expect("the consumer has ended") {
                    Ok(delivery) => return delivery,
                    Err(error) => channel.wait_for_recovery(error).await.unwrap(),
                }
            }
        })
        .await;
        assert_eq!(string(&delivery), n.to_string());
    }
    assert_eq!(body(&channel, &durable).await.unwrap(), "kept");
    channel.queue_delete(durable.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
}

/// Publishes to the exchange on a connection of its own and says whether that reached a queue.
async fn routed(exchange: &str, body: &str) -> bool {
    let (_connection, channel) = open().await;
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let sent = channel.basic_publish(exchange.into(), "order.paid".into(), options, body.as_bytes(), BasicProperties::default());
    matches!(within(async { sent.await?.await }).await, Ok(Confirmation::Ack(None)))
}
