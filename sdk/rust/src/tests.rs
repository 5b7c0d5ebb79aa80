//! The client against a broker that does what a test tells it to.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::wire::{next_frame, op, Encoder, Frame, Header, MAX_BEFORE_WELCOME, PREFACE};
use crate::{Client, ConnectOptions, Error, Event, Message, QueueOptions, Reconnect, SubscribeOptions};

/// How long what has to happen may take.
const LIMIT: Duration = Duration::from_secs(20);

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(LIMIT, what).await.expect("it did not happen")
}

struct Broker(TcpListener);

/// The broker's side of a connection.
struct Peer {
    io: TcpStream,
    buf: BytesMut,
}

impl Broker {
    async fn new() -> Broker {
        Broker(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn options(&self) -> ConnectOptions {
        ConnectOptions::from_url(&format!("fire://{}", self.0.local_addr().unwrap())).unwrap()
    }

    async fn accept(&self) -> Peer {
        self.accept_with(0).await
    }

    async fn accept_with(&self, heartbeat: u64) -> Peer {
        let (mut io, _) = soon(self.0.accept()).await.unwrap();
        let mut preface = [0; 4];
        soon(io.read_exact(&mut preface)).await.unwrap();
        assert_eq!(preface, PREFACE);
        let mut peer = Peer { io, buf: BytesMut::new() };
        peer.expect(op::HELLO).await;
        peer.send(op::WELCOME, |e| {
            e.uint("ver", 1).str("conn_id", "it").uint("heartbeat", heartbeat).uint("max_frame", 1 << 20)
        })
        .await;
        peer
    }

    async fn client(&self, options: ConnectOptions) -> (Client, Peer) {
        let (client, peer) = tokio::join!(Client::connect_with(options), self.accept());
        (client.unwrap(), peer)
    }
}

impl Peer {
    /// The next frame; none at the end.
    async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(f) = next_frame(&mut self.buf, 2 * MAX_BEFORE_WELCOME).unwrap() {
                return Some(f);
            }
            if soon(self.io.read_buf(&mut self.buf)).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    async fn expect(&mut self, op: u8) -> (Header, Frame) {
        let f = self.frame().await.expect("the client ended the connection");
        assert_eq!(f.op, op, "{f:?}");
        // subscribe has a tag that is text, where the broker's headers have numbers.
        let header = if op == op::SUBSCRIBE { Header::default() } else { Header::decode(&f.header).unwrap() };
        (header, f)
    }

    async fn send(&mut self, op: u8, fields: impl FnOnce(Encoder<'_>) -> Encoder<'_>) {
        self.send_body(op, fields, b"").await;
    }

    async fn send_body(&mut self, op: u8, fields: impl FnOnce(Encoder<'_>) -> Encoder<'_>, body: &[u8]) {
        let mut out = Vec::new();
        fields(Encoder::new(&mut out, op)).end(body);
        self.io.write_all(&out).await.unwrap();
    }

    async fn ok(&mut self, rid: u64) {
        self.send(op::OK, |e| e.uint("rid", rid).str("name", "q")).await;
    }

    async fn deliver(&mut self, tag: u64, body: &str) {
        self.send_body(op::DELIVER, |e| e.uint("sub", 1).uint("tag", tag), body.as_bytes()).await;
    }

    async fn publish(&mut self, seq: u64, body: &str) {
        let (h, f) = self.expect(op::PUBLISH).await;
        assert_eq!((h.seq, &f.payload[..]), (seq, body.as_bytes()));
    }

    /// Answers the subscription of `subscribe`.
    async fn subscribed(&mut self, rid: u64) {
        self.expect(op::SUBSCRIBE).await;
        self.ok(rid).await;
    }

    async fn settled(&mut self, op: u8, tag: u64) {
        assert_eq!(self.expect(op).await.0.tag, tag);
    }
}

fn prefetch(prefetch: u32) -> SubscribeOptions {
    SubscribeOptions { prefetch, ..Default::default() }
}

/// A message is text here.
fn text(m: Option<Message>) -> String {
    m.expect("the subscription ended").body_str().unwrap().to_owned()
}

#[tokio::test]
async fn unconfirmed_publishes_are_sent_again_in_order() {
    let broker = Broker::new().await;
    let (client, mut peer) = broker.client(broker.options()).await;
    let publisher = client.publisher(10);
    let mut confirms = Vec::new();
    for body in ["one", "two", "three", "four"] {
        confirms.push(publisher.publish("", "q", body).await.unwrap());
    }
    for (i, body) in ["one", "two", "three", "four"].iter().enumerate() {
        peer.publish(i as u64 + 1, body).await;
    }
    peer.send(op::CONFIRM, |e| e.uint("upto", 1)).await;
    peer.send(op::CONFIRM, |e| e.uint("seq", 3).bool("nack", true).uint("code", 506).str("msg", "full")).await;
    soon(confirms.remove(0)).await.unwrap();
    assert!(matches!(soon(confirms.remove(1)).await, Err(Error::Nacked { code: 506, .. })));
    drop(peer);

    let mut peer = broker.accept().await;
    peer.publish(1, "two").await;
    peer.publish(2, "four").await;
    assert_eq!(publisher.in_flight(), 2);
    peer.send(op::CONFIRM, |e| e.uint("upto", 2)).await;
    assert!(matches!(soon(publisher.flush()).await, Err(Error::Nacked { .. }))); // the first error since the last flush
    soon(publisher.flush()).await.unwrap();
    for confirm in confirms {
        soon(confirm).await.unwrap();
    }
}

#[tokio::test]
async fn what_came_back_is_unroutable() {
    let broker = Broker::new().await;
    let (client, mut peer) = broker.client(broker.options()).await;
    let answer = async {
        peer.publish(1, "x").await;
        peer.send_body(op::RETURN, |e| e.uint("seq", 1).uint("code", 312), b"x").await;
        peer.send(op::CONFIRM, |e| e.uint("upto", 1)).await;
    };
    let (result, ()) = tokio::join!(soon(client.publish("", "q", "x")), answer);
    assert!(matches!(result, Err(Error::Unroutable)));
}

#[tokio::test]
async fn tags_of_an_earlier_connection_are_not_sent() {
    let broker = Broker::new().await;
    let (client, mut peer) = broker.client(broker.options()).await;
    let (sub, ()) = tokio::join!(client.subscribe("q", prefetch(10)), peer.subscribed(1));
    let mut sub = sub.unwrap();
    for (tag, body) in [(1, "a"), (2, "b"), (3, "c")] {
        peer.deliver(tag, body).await;
    }
    let old = soon(sub.next()).await.unwrap();
    drop(peer);

    let mut peer = broker.accept().await;
    peer.subscribed(2).await;
    peer.deliver(1, "a again").await;
    let new = soon(sub.next()).await.unwrap(); // b and c were dropped
    assert_eq!(new.body_str().unwrap(), "a again");
    assert!(new.tag > old.tag);
    old.ack().unwrap();
    client.ack(old.tag, false).unwrap();
    new.nack(true).unwrap();
    new.ack().unwrap(); // it is settled
    client.ack(new.tag, false).unwrap(); // that is the broker's to say
    peer.settled(op::NACK, 1).await;
    peer.settled(op::ACK, 1).await;
}

#[tokio::test]
async fn credit_is_granted_by_eighths() {
    let broker = Broker::new().await;
    let (client, mut peer) = broker.client(broker.options()).await;
    let (sub, ()) = tokio::join!(client.subscribe("q", prefetch(16)), peer.subscribed(1));
    let mut sub = sub.unwrap();
    for tag in 1..=4 {
        peer.deliver(tag, "m").await;
    }
    let mut messages = Vec::new();
    for _ in 0..4 {
        messages.push(soon(sub.next()).await.unwrap());
    }
    messages[0].ack().unwrap();
    peer.settled(op::ACK, 1).await;
    messages[3].ack_up_to().unwrap();
    peer.settled(op::ACK, 4).await;
    for _ in 0..2 {
        assert_eq!(peer.expect(op::CREDIT).await.0.sub, 1);
    }
    client.ack(0, true).unwrap();
    peer.settled(op::ACK, 0).await;
}

#[tokio::test]
async fn a_dropped_subscription_gives_back_what_it_had() {
    let broker = Broker::new().await;
    let (client, mut peer) = broker.client(broker.options()).await;
    let (sub, ()) = tokio::join!(client.subscribe("q", prefetch(40)), peer.subscribed(1));
    let mut sub = sub.unwrap();
    peer.deliver(1, "kept").await;
    peer.deliver(2, "back").await;
    assert_eq!(text(soon(sub.next()).await), "kept");
    // The second has come too when a later answer has.
    let (purged, ()) = tokio::join!(client.purge_queue("q"), async {
        peer.expect(op::PURGE_QUEUE).await;
        peer.ok(2).await;
    });
    purged.unwrap();
    drop(sub);
    peer.settled(op::NACK, 2).await;
    assert_eq!(peer.expect(op::UNSUBSCRIBE).await.0.sub, 1);
    peer.deliver(3, "late").await; // before the broker knew
    peer.ok(3).await;
    peer.settled(op::NACK, 3).await;
    let (purged, ()) = tokio::join!(client.purge_queue("q"), async {
        peer.expect(op::PURGE_QUEUE).await;
        peer.ok(4).await;
    });
    purged.unwrap();
    assert!(client.shared().lock().subs.is_empty());
}

#[tokio::test]
async fn calls_that_are_given_up_are_undone() {
    let broker = Broker::new().await;
    let (client, mut peer) = broker.client(broker.options()).await;
    // Polled once, which sends the request, and dropped.
    assert!(timeout(Duration::ZERO, client.get("q", false)).await.is_err());
    peer.expect(op::GET).await;
    peer.send_body(op::GET_OK, |e| e.uint("rid", 1).uint("tag", 1), b"m").await;
    peer.settled(op::NACK, 1).await;

    assert!(timeout(Duration::ZERO, client.subscribe("q", prefetch(1))).await.is_err());
    peer.expect(op::SUBSCRIBE).await;
    peer.expect(op::UNSUBSCRIBE).await;
    peer.ok(2).await;
    peer.deliver(2, "m").await;
    peer.settled(op::NACK, 2).await;
    peer.ok(3).await;
}

#[tokio::test]
async fn publishes_wait_while_the_broker_says_pause() {
    let broker = Broker::new().await;
    let mut options = broker.options();
    let (paused, mut is_paused) = tokio::sync::mpsc::unbounded_channel();
    options.on_event = Some(Arc::new(move |e| {
        if let Event::Flow { paused: p } = e {
            paused.send(p).unwrap();
        }
    }));
    let (client, mut peer) = broker.client(options).await;
    peer.send(op::FLOW, |e| e.bool("pause", true)).await;
    assert_eq!(soon(is_paused.recv()).await, Some(true));
    let scenario = async {
        // A request goes through, and nothing before it.
        let (purged, ()) = tokio::join!(client.purge_queue("q"), async {
            peer.expect(op::PURGE_QUEUE).await;
            peer.ok(1).await;
        });
        purged.unwrap();
        peer.send(op::FLOW, |e| e).await;
        peer.publish(1, "x").await;
        peer.send(op::CONFIRM, |e| e.uint("upto", 1)).await;
    };
    let (result, ()) = tokio::join!(soon(client.publish("", "q", "x")), scenario);
    result.unwrap();
}

#[tokio::test]
async fn what_is_exclusive_and_still_locked_is_tried_again() {
    let broker = Broker::new().await;
    let (client, mut peer) = broker.client(broker.options()).await;
    let (queue, ()) = tokio::join!(client.declare_queue("", QueueOptions::temporary()), async {
        peer.expect(op::DECLARE_QUEUE).await;
        peer.send(op::OK, |e| e.uint("rid", 1).str("name", "amq.gen-1")).await;
    });
    assert_eq!(queue.unwrap().name, "amq.gen-1");
    drop(peer);

    let mut peer = broker.accept().await;
    assert_eq!(peer.expect(op::DECLARE_QUEUE).await.0.name, "");
    peer.send(op::ERROR, |e| e.uint("rid", 1).uint("code", 405).str("msg", "RESOURCE_LOCKED")).await;
    let mut peer = broker.accept().await;
    peer.expect(op::DECLARE_QUEUE).await;
    peer.send(op::OK, |e| e.uint("rid", 1).str("name", "amq.gen-2")).await;
    let (purged, ()) = tokio::join!(client.purge_queue("amq.gen-1"), async {
        let (h, _) = peer.expect(op::PURGE_QUEUE).await;
        assert_eq!(h.name, "amq.gen-2"); // its first name goes on to mean it
        peer.ok(h.rid).await;
    });
    purged.unwrap();
}

#[tokio::test]
async fn calls_give_up_when_there_is_no_connection_for_long() {
    let broker = Broker::new().await;
    let mut options = broker.options();
    options.reconnect = Some(Reconnect { wait: Duration::from_millis(50), ..Default::default() });
    let (client, mut peer) = broker.client(options).await;
    let gone = async {
        peer.publish(1, "x").await;
        drop((peer, broker)); // nobody listens
    };
    let (sent, ()) = tokio::join!(soon(client.publish("", "q", "x")), gone);
    for result in [sent, soon(client.publish("", "q", "y")).await] {
        match result {
            Err(Error::Closed(why)) => assert!(why.starts_with("no connection within 50ms"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    soon(client.close()).await.unwrap();
    assert!(matches!(client.publish("", "q", "z").await, Err(Error::Closed(_))));
}

#[tokio::test]
async fn attempts_have_a_limit() {
    let broker = Broker::new().await;
    let mut options = broker.options();
    let events = Arc::new(Mutex::new(0));
    let disconnected = events.clone();
    options.on_event = Some(Arc::new(move |e| {
        if let Event::Disconnected(_) = e {
            *disconnected.lock().unwrap() += 1;
        }
    }));
    options.reconnect =
        Some(Reconnect { max_attempts: Some(2), min_delay: Duration::from_millis(1), ..Default::default() });
    let (client, peer) = broker.client(options).await;
    drop((peer, broker));
    match soon(client.closed()).await {
        Error::Closed(why) => assert!(why.starts_with("2 attempts to reconnect failed"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(*events.lock().unwrap(), 1);
}

#[tokio::test]
async fn a_close_of_the_broker_is_answered() {
    let broker = Broker::new().await;
    let mut options = broker.options();
    options.reconnect = None;
    let (client, mut peer) = broker.client(options).await;
    peer.send(op::CLOSE, |e| e.uint("code", 320).str("msg", "CONNECTION_FORCED - bye")).await;
    assert_eq!(peer.expect(op::CLOSE).await.0.code, 200);
    assert!(peer.frame().await.is_none());
    match soon(client.closed()).await {
        Error::Closed(why) => assert_eq!(why, "CONNECTION_FORCED - bye"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_not_the_protocol_ends_the_connection() {
    for bytes in [&[0, 0, 0, 1, 6][..], &[0xff; 16], &[0, 0, 0, 8, op::OK, 0, 0, 0, 3, 0xff, 1, 2], b"AMQP\0\0\x09\x01"]
    {
        let broker = Broker::new().await;
        let mut options = broker.options();
        options.reconnect = None;
        let (client, mut peer) = broker.client(options).await;
        peer.io.write_all(bytes).await.unwrap();
        assert!(matches!(soon(client.closed()).await, Error::Closed(_)), "{bytes:?}");
        assert!(peer.frame().await.is_none(), "{bytes:?}");
    }
}

#[tokio::test]
async fn a_silent_broker_is_lost() {
    let broker = Broker::new().await;
    let mut options = broker.options();
    options.reconnect = None;
    let (client, mut peer) = tokio::join!(Client::connect_with(options), broker.accept_with(1));
    peer.expect(op::PING).await; // the client has sent nothing for half an interval
    match soon(client.unwrap().closed()).await {
        Error::Closed(why) => assert_eq!(why, "no heartbeat from the broker"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_dropped_client_closes_its_connection() {
    let broker = Broker::new().await;
    let (client, mut peer) = broker.client(broker.options()).await;
    let publisher = client.publisher(1);
    drop(client);
    drop(publisher.publish("", "q", "x").await.unwrap()); // a publisher keeps it open
    peer.publish(1, "x").await;
    drop(publisher);
    peer.expect(op::CLOSE).await;
    peer.send(op::CLOSE, |e| e.uint("code", 200)).await;
    assert!(peer.frame().await.is_none());
}

#[tokio::test]
async fn large_messages_are_refused_before_they_are_sent() {
    let broker = Broker::new().await;
    let (client, mut peer) = broker.client(broker.options()).await;
    assert!(matches!(client.publish("", "q", vec![0; 1 << 20]).await, Err(Error::Invalid(_))));
    assert!(matches!(client.publish("", &"k".repeat(256), "x").await, Err(Error::Invalid(_))));
    let publish = async {
        let (h, f) = peer.expect(op::PUBLISH).await;
        assert_eq!((h.seq, f.payload.len()), (1, 100_000));
        peer.send(op::CONFIRM, |e| e.uint("upto", 1)).await;
    };
    tokio::join!(client.publish("", "q", vec![0; 100_000]), publish).0.unwrap();
}

#[test]
fn the_end_of_the_runtime_closes_the_client() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (client, _peer, _broker) = first.block_on(async {
        let broker = Broker::new().await;
        let (client, peer) = broker.client(broker.options()).await;
        (client, peer, broker)
    });
    drop(first);
    runtime().block_on(async {
        assert!(matches!(soon(client.publish("", "q", "x")).await, Err(Error::Closed(_))));
        soon(client.close()).await.unwrap();
    });
}
