//! What a Rust application sees of an AMQP 0-9-1 broker that goes on running.

mod common;

use std::time::Duration;

use common::*;
use futures_lite::StreamExt;
use lapin::{
    BasicProperties, Confirmation, Connection, ConnectionProperties, ExchangeKind,
    options::*,
    types::{AMQPValue, FieldTable},
};

fn none() -> FieldTable {
    FieldTable::default()
}

#[tokio::test]
async fn a_wrong_password_is_403() {
    let wrong = url().replace(":guest@", ":wrong@");
    let (code, text) = refusal(&Connection::connect(&wrong, ConnectionProperties::default()).await.unwrap_err());
    assert_eq!(code, 403);
    assert!(text.starts_with("ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN"), "{text}");
}

#[tokio::test]
async fn an_unknown_vhost_is_530() {
    let result = Connection::connect(&(url() + "/nowhere"), ConnectionProperties::default()).await;
    assert_refused(result.map(|_| ()), 530, "NOT_ALLOWED - vhost nowhere not found");
}

#[tokio::test]
async fn heartbeats_keep_an_idle_connection() {
    let connection = Connection::connect(&(url() + "/%2f?heartbeat=1"), ConnectionProperties::default()).await.unwrap();
    assert_eq!(connection.configuration().heartbeat(), 1);
    let mut events = connection.events_listener();
    let lost = tokio::time::timeout(Duration::from_secs(4), async {
        while let Some(event) = events.next().await {
            if let lapin::Event::Error(error) = event {
                return error;
            }
        }
        unreachable!()
    });
    assert!(lost.await.is_err());
    connection.create_channel().await.unwrap();
}

#[tokio::test]
async fn what_is_missing_is_404() {
    let (connection, channel) = open().await;
    let options = QueueDeclareOptions { passive: true, ..Default::default() };
    let text = "NOT_FOUND - no queue 'missing' in vhost '/'";
    assert_refused(channel.queue_declare("missing".into(), options, none()).await, 404, text);
    let channel = connection.create_channel().await.unwrap();
    assert_refused(channel.basic_get("missing".into(), BasicGetOptions::default()).await, 404, text);
    let channel = connection.create_channel().await.unwrap();
    let confirm = channel.confirm_select(ConfirmSelectOptions::default()).await;
    confirm.unwrap();
    let publish = channel.basic_publish("missing".into(), "k".into(), BasicPublishOptions::default(), b"m", BasicProperties::default());
    assert_refused(within(publish.await.unwrap()).await, 404, "NOT_FOUND - no exchange 'missing' in vhost '/'");
    assert!(connection.status().connected());
}

#[tokio::test]
async fn what_is_forbidden_is_403() {
    let (connection, channel) = open().await;
    let result = channel.queue_declare("amq.mine".into(), QueueDeclareOptions::default(), none()).await;
    assert_refused(result, 403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'");
    let channel = connection.create_channel().await.unwrap();
    let result = channel.exchange_delete("amq.direct".into(), ExchangeDeleteOptions::default()).await;
    assert_refused(result, 403, "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed");
}

#[tokio::test]
async fn another_connections_exclusive_queue_is_405() {
    let (_owner, channel) = open().await;
    let queue = queue(&channel, none()).await;
    let (_other, channel) = open().await;
    let (code, text) = refusal(&channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap_err());
    assert_eq!(code, 405);
    assert!(text.starts_with(&format!("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}'")), "{text}");
}

#[tokio::test]
async fn other_properties_are_406() {
    let (connection, channel) = open().await;
    let queue = queue(&channel, table(&[("x-message-ttl", AMQPValue::LongInt(1000))])).await;
    let channel = connection.create_channel().await.unwrap();
    let result = channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::exclusive(), table(&[("x-message-ttl", AMQPValue::LongInt(2000))])).await;
    let text = format!("PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue '{queue}' in vhost '/': received '2000' but current is '1000'");
    assert_refused(result, 406, &text);
    let channel = connection.create_channel().await.unwrap();
    channel.tx_select().await.unwrap();
    let result = channel.confirm_select(ConfirmSelectOptions::default()).await;
    assert_refused(result, 406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode");
}

#[tokio::test]
async fn a_consumer_tag_used_twice_is_530_and_ends_the_connection() {
    let (connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    let consume = || channel.basic_consume(queue.as_str().into(), "tag".into(), BasicConsumeOptions::default(), none());
    let _first = consume().await.unwrap();
    let result = within(consume()).await.map(|_| ());
    assert_refused(result, 530, "NOT_ALLOWED - attempt to reuse consumer tag 'tag'");
    assert!(!connection.status().connected());
}

#[tokio::test]
async fn an_immediate_publish_is_540_and_ends_the_connection() {
    let (_connection, channel) = open().await;
    let options = BasicPublishOptions { immediate: true, ..Default::default() };
    let confirm = channel.basic_publish("".into(), "k".into(), options, b"m", BasicProperties::default()).await.unwrap();
    assert_refused(within(confirm).await, 540, "NOT_IMPLEMENTED - immediate=true");
}

#[tokio::test]
async fn every_publish_is_confirmed() {
    let (_connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    let mut confirms = Vec::new();
    for n in 0..1000 {
        let body = n.to_string();
        let confirm = channel.basic_publish("".into(), queue.as_str().into(), BasicPublishOptions::default(), body.as_bytes(), BasicProperties::default());
        confirms.push(confirm.await.unwrap());
    }
    for confirm in confirms {
        assert_eq!(within(confirm).await.unwrap(), Confirmation::Ack(None));
    }
    assert_eq!(ready(&channel, &queue).await, 1000);
}

#[tokio::test]
async fn persistent_messages_are_confirmed() {
    let (_connection, channel) = open().await;
    let queue = unique("durable");
    channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::durable(), none()).await.unwrap();
    for _ in 0..50 {
        let confirmation = publish_with(&channel, &queue, b"m", BasicProperties::default().with_delivery_mode(2)).await;
        assert_eq!(confirmation, Confirmation::Ack(None));
    }
    assert_eq!(channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap(), 50);
}

#[tokio::test]
async fn a_mandatory_message_comes_back_with_its_confirm() {
    let (_connection, channel) = open().await;
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let confirm = channel.basic_publish("amq.direct".into(), "nowhere".into(), options, b"back", BasicProperties::default());
    let Confirmation::Ack(Some(back)) = within(confirm.await.unwrap()).await.unwrap() else { panic!("nothing came back") };
    assert_eq!((back.reply_code, back.reply_text.as_str(), back.routing_key.as_str(), back.data.as_slice()), (312, "NO_ROUTE", "nowhere", b"back".as_slice()));
}

#[tokio::test]
async fn a_full_queue_that_rejects_nacks() {
    let (_connection, channel) = open().await;
    let queue = queue(&channel, table(&[("x-max-length", AMQPValue::LongInt(1)), ("x-overflow", text("reject-publish"))])).await;
    publish(&channel, &queue, "fits").await;
    assert!(publish_with(&channel, &queue, b"too many", BasicProperties::default()).await.is_nack());
}

#[tokio::test]
async fn messages_arrive_in_order_with_rising_tags() {
    let (_connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    for n in 0..200 {
        publish(&channel, &queue, &n.to_string()).await;
    }
    let mut consumer = consume(&channel, &queue, true, none()).await;
    for n in 0..200 {
        let delivery = next(&mut consumer).await;
        assert_eq!((string(&delivery), delivery.delivery_tag, delivery.redelivered), (n.to_string(), n + 1, false));
    }
}

#[tokio::test]
async fn get_reports_what_remains() {
    let (_connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    assert!(take(&channel, &queue).await.is_none());
    publish(&channel, &queue, "1").await;
    publish(&channel, &queue, "2").await;
    let got = channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap().unwrap();
    assert_eq!((string(&got.delivery), got.message_count), ("1".into(), 1));
    got.ack(BasicAckOptions::default()).await.unwrap();
    assert_eq!(body(&channel, &queue).await.unwrap(), "2");
}

#[tokio::test]
async fn requeued_messages_return_to_their_place() {
    let (_connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    let mut got = Vec::new();
    for n in 0..4 {
        publish(&channel, &queue, &n.to_string()).await;
    }
    for _ in 0..3 {
        got.push(channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap().unwrap());
    }
    got[2].nack(BasicNackOptions { requeue: true, ..Default::default() }).await.unwrap();
    got[0].reject(BasicRejectOptions { requeue: true }).await.unwrap();
    got[1].nack(BasicNackOptions { requeue: true, ..Default::default() }).await.unwrap();
    for n in 0..4 {
        let delivery = take(&channel, &queue).await.unwrap();
        assert_eq!((string(&delivery), delivery.redelivered), (n.to_string(), n < 3));
    }
}

#[tokio::test]
async fn prefetch_holds_deliveries_back() {
    let (connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    for n in 0..10 {
        publish(&channel, &queue, &n.to_string()).await;
    }
    let taker = connection.create_channel().await.unwrap();
    taker.basic_qos(3, BasicQosOptions::default()).await.unwrap();
    let mut consumer = consume(&taker, &queue, false, none()).await;
    next(&mut consumer).await;
    next(&mut consumer).await;
    let third = next(&mut consumer).await;
    assert_eq!(ready(&channel, &queue).await, 7);
    third.ack(BasicAckOptions { multiple: true }).await.unwrap();
    for n in 3..6 {
        assert_eq!(string(&next(&mut consumer).await), n.to_string());
    }
    assert_idle(&taker, &queue, &mut consumer).await;
}

#[tokio::test]
async fn a_global_prefetch_limits_the_channel() {
    let (connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    for n in 0..10 {
        publish(&channel, &queue, &n.to_string()).await;
    }
    let taker = connection.create_channel().await.unwrap();
    taker.basic_qos(4, BasicQosOptions { global: true }).await.unwrap();
    let _one = consume(&taker, &queue, false, none()).await;
    let _two = consume(&taker, &queue, false, none()).await;
    until_ready(&channel, &queue, 6).await;
    assert_eq!(ready(&taker, &queue).await, 6);
}

#[tokio::test]
async fn a_consumer_ends_when_its_queue_is_deleted() {
    let (connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    let mut consumer = consume(&channel, &queue, false, none()).await;
    let other = connection.create_channel().await.unwrap();
    other.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    assert!(within(consumer.next()).await.is_none());
}

#[tokio::test]
async fn cancel_stops_deliveries() {
    let (_connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    let consumer = consume(&channel, &queue, false, none()).await;
    channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await.unwrap();
    publish(&channel, &queue, "later").await;
    assert_eq!(ready(&channel, &queue).await, 1);
}

#[tokio::test]
async fn a_transaction_publishes_at_commit() {
    let (connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    let transactional = connection.create_channel().await.unwrap();
    transactional.tx_select().await.unwrap();
    let publish = || async {
        let sent = transactional.basic_publish("".into(), queue.as_str().into(), BasicPublishOptions::default(), b"m", BasicProperties::default()).await;
        assert_eq!(sent.unwrap().await.unwrap(), Confirmation::NotRequested);
    };
    publish().await;
    publish().await;
    assert_eq!(ready(&channel, &queue).await, 0);
    transactional.tx_commit().await.unwrap();
    assert_eq!(ready(&channel, &queue).await, 2);
    publish().await;
    transactional.tx_rollback().await.unwrap();
    assert_eq!(ready(&channel, &queue).await, 2);
}

#[tokio::test]
async fn direct_reply_to_answers_without_a_queue() {
    let (_client, channel) = open().await;
    let queue = queue(&channel, none()).await;
    let mut answers = consume(&channel, "amq.rabbitmq.reply-to", true, none()).await;
    let properties = BasicProperties::default().with_reply_to("amq.rabbitmq.reply-to".into()).with_correlation_id("c".into());
    publish_with(&channel, &queue, b"7", properties).await;
    let request = take(&channel, &queue).await.unwrap();
    let address = request.properties.reply_to().clone().unwrap();
    assert!(address.as_str().starts_with("amq.rabbitmq.reply-to."), "{address}");
    let (_server, server) = open().await;
    let properties = BasicProperties::default().with_correlation_id(request.properties.correlation_id().clone().unwrap());
    publish_with(&server, address.as_str(), b"49", properties).await;
    let answer = next(&mut answers).await;
    assert_eq!((string(&answer).as_str(), answer.properties.correlation_id().clone().unwrap().as_str()), ("49", "c"));
}

#[tokio::test]
async fn expired_messages_are_dead_lettered() {
    let (_connection, channel) = open().await;
    let dead = queue(&channel, none()).await;
    let short = queue(&channel, table(&[
        ("x-message-ttl", AMQPValue::LongInt(20)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(&dead)),
    ])).await;
    publish(&channel, &short, "m").await;
    until_ready(&channel, &dead, 1).await;
    let delivery = take(&channel, &dead).await.unwrap();
    let headers = delivery.properties.headers().clone().unwrap();
    let AMQPValue::FieldArray(deaths) = &headers.inner()["x-death"] else { panic!("{headers:?}") };
    let AMQPValue::FieldTable(death) = &deaths.as_slice()[0] else { panic!("{deaths:?}") };
    assert_eq!((&death.inner()["reason"], &death.inner()["queue"], &death.inner()["count"]), (&text("expired"), &text(&short), &AMQPValue::LongLongInt(1)));
    assert_eq!(headers.inner()["x-first-death-queue"], text(&short));
}

#[tokio::test]
async fn a_messages_own_expiration() {
    let (_connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    publish_with(&channel, &queue, b"m", BasicProperties::default().with_expiration("20".into())).await;
    until_ready(&channel, &queue, 0).await;
}

#[tokio::test]
async fn a_full_queue_drops_its_head() {
    let (_connection, channel) = open().await;
    let queue = queue(&channel, table(&[("x-max-length", AMQPValue::LongInt(2))])).await;
    for n in 0..4 {
        publish(&channel, &queue, &n.to_string()).await;
    }
    assert_eq!(body(&channel, &queue).await.unwrap(), "2");
    assert_eq!(body(&channel, &queue).await.unwrap(), "3");
    assert!(take(&channel, &queue).await.is_none());
}

#[tokio::test]
async fn higher_priorities_come_first() {
    let (_connection, channel) = open().await;
    let queue = queue(&channel, table(&[("x-max-priority", AMQPValue::LongInt(10))])).await;
    for (body, priority) in [("low", 1), ("high", 9), ("high too", 9)] {
        publish_with(&channel, &queue, body.as_bytes(), BasicProperties::default().with_priority(priority)).await;
    }
    for want in ["high", "high too", "low"] {
        assert_eq!(body(&channel, &queue).await.unwrap(), want);
    }
}

#[tokio::test]
async fn one_active_consumer_at_a_time() {
    let (connection, channel) = open().await;
    let queue = queue(&channel, table(&[("x-single-active-consumer", AMQPValue::Boolean(true))])).await;
    let first = connection.create_channel().await.unwrap();
    let mut active = consume(&first, &queue, false, none()).await;
    let mut standby = consume(&channel, &queue, false, none()).await;
    publish(&channel, &queue, "1").await;
    publish(&channel, &queue, "2").await;
    next(&mut active).await.ack(BasicAckOptions::default()).await.unwrap();
    next(&mut active).await;
    assert_idle(&channel, &queue, &mut standby).await;
    first.close(200, "OK".into()).await.unwrap();
    let again = next(&mut standby).await;
    assert_eq!((string(&again).as_str(), again.redelivered), ("2", true));
}

#[tokio::test]
async fn consumer_priorities() {
    let (_connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    let mut low = consume(&channel, &queue, true, table(&[("x-priority", AMQPValue::LongInt(-1))])).await;
    let mut high = consume(&channel, &queue, true, table(&[("x-priority", AMQPValue::LongInt(5))])).await;
    for n in 0..5 {
        publish(&channel, &queue, &n.to_string()).await;
        assert_eq!(string(&next(&mut high).await), n.to_string());
    }
    assert_idle(&channel, &queue, &mut low).await;
}

#[tokio::test]
async fn bodies_come_back_equal() {
    let (_connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    for size in [0, 1, 131_064, 131_065, 4 << 20] {
        let sent: Vec<u8> = (0..size).map(|n| (n * 31) as u8).collect();
        publish_with(&channel, &queue, &sent, BasicProperties::default()).await;
        let got = take(&channel, &queue).await.unwrap().data;
        assert!(got == sent, "{size} bytes came back as {}", got.len());
    }
}

#[tokio::test]
async fn properties_and_headers_come_back() {
    let (_connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    let headers = table(&[
        ("yes", AMQPValue::Boolean(true)),
        ("i8", AMQPValue::ShortShortInt(-8)),
        ("u8", AMQPValue::ShortShortUInt(8)),
        ("i16", AMQPValue::ShortInt(-16)),
        ("u16", AMQPValue::ShortUInt(16)),
        ("i32", AMQPValue::LongInt(-32)),
        ("u32", AMQPValue::LongUInt(32)),
        ("i64", AMQPValue::LongLongInt(-64)),
        ("f32", AMQPValue::Float(0.5)),
        ("f64", AMQPValue::Double(0.1)),
        ("text", text("grüße")),
        ("time", AMQPValue::Timestamp(1_700_000_000)),
        ("bytes", AMQPValue::ByteArray(vec![0, 255].into())),
        ("none", AMQPValue::Void),
        ("list", AMQPValue::FieldArray(vec![AMQPValue::LongInt(1), text("two")].into())),
        ("table", AMQPValue::FieldTable(table(&[("deep", AMQPValue::LongInt(1))]))),
    ]);
    let sent = BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_content_encoding("identity".into())
        .with_headers(headers)
        .with_delivery_mode(2)
        .with_priority(7)
        .with_correlation_id("c-1".into())
        .with_reply_to("answers".into())
        .with_expiration("60000".into())
        .with_message_id("m-1".into())
        .with_timestamp(1_700_000_000)
        .with_type("greeting".into())
        .with_user_id("guest".into())
        .with_app_id("suite".into());
    publish_with(&channel, &queue, b"m", sent.clone()).await;
    assert_eq!(take(&channel, &queue).await.unwrap().properties, sent);
}

#[tokio::test]
async fn exchanges_of_every_type_route() {
    let (_connection, channel) = open().await;
    let queue = queue(&channel, none()).await;
    let [topic, headers, fanout] = ["topic", "headers", "fanout"].map(unique);
    let options = ExchangeDeclareOptions { auto_delete: true, ..Default::default() };
    for (name, kind) in [(&topic, ExchangeKind::Topic), (&headers, ExchangeKind::Headers), (&fanout, ExchangeKind::Fanout)] {
        channel.exchange_declare(name.as_str().into(), kind, options, none()).await.unwrap();
    }
    let bind = |to: &str, from: &str, key: &str, arguments| channel.exchange_bind(to.into(), from.into(), key.into(), ExchangeBindOptions::default(), arguments);
    bind(&headers, &topic, "order.#", none()).await.unwrap();
    bind(&fanout, &headers, "", table(&[("x-match", text("all")), ("region", text("eu"))])).await.unwrap();
    channel.queue_bind(queue.as_str().into(), fanout.as_str().into(), "".into(), QueueBindOptions::default(), none()).await.unwrap();
    for (key, region) in [("order.paid.now", "eu"), ("order.paid", "us"), ("invoice", "eu")] {
        let properties = BasicProperties::default().with_headers(table(&[("region", text(region))]));
        let sent = channel.basic_publish(topic.as_str().into(), key.into(), BasicPublishOptions::default(), key.as_bytes(), properties).await;
        within(sent.unwrap()).await.unwrap();
    }
    assert_eq!(body(&channel, &queue).await.unwrap(), "order.paid.now");
    assert!(take(&channel, &queue).await.is_none());
}
