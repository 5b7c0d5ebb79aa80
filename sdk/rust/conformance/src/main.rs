//! The driver of the Rust SDK for the conformance suite: it reads commands on stdin and writes replies on stdout, as
//! docs/conformance.md says.

use std::collections::HashMap;
use std::env;
use std::io::{self, BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::engine::{general_purpose::STANDARD as BASE64, Engine};
use firemq_client::{
    Client, ConnectOptions, DeleteOptions, Error, Event, ExchangeOptions, Map, Message, Properties, PublishOptions,
    QueueOptions, Reconnect, SubscribeOptions, Subscription, Value,
};
use serde_json::{json, Value as Json};

type Object = serde_json::Map<String, Json>;

/// How many messages publish_many keeps in flight.
const WINDOW: u32 = 1000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let (tx, mut lines) = tokio::sync::mpsc::channel(1);
    // Reading stdin blocks: the client lives on while the runner is silent.
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if tx.blocking_send(line).is_err() {
                break;
            }
        }
    });
    let mut driver = Driver::default();
    while let Some(line) = lines.recv().await {
        let command = Command(serde_json::from_str(&line)?);
        let id = &command.0["id"];
        let reply = match driver.run(&command).await {
            Ok(result) => json!({"id": id, "ok": true, "result": result}),
            Err(e) => json!({"id": id, "ok": false, "error": describe(&e)}),
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{reply}")?;
        out.flush()?;
    }
    if let Some(client) = driver.client {
        let _ = client.close().await; // it is over in any case
    }
    Ok(())
}

/// An error with its kind.
fn describe(e: &Error) -> Json {
    let (kind, code, message) = match e {
        Error::Unroutable => ("unroutable", 312, e.to_string()),
        Error::Nacked { code, message } => ("nacked", *code, message.clone()),
        Error::Server { code, message, .. } | Error::Cancelled { code, message } => ("server", *code, message.clone()),
        Error::Invalid(text) => ("invalid", 0, text.clone()),
        other => ("closed", 0, other.to_string()),
    };
    json!({"kind": kind, "code": code, "message": message})
}

/// A command; the runner sends every field of its op.
struct Command(Object);

impl Command {
    fn str(&self, field: &str) -> &str {
        self.0.get(field).and_then(Json::as_str).unwrap_or_default()
    }

    fn bool(&self, field: &str) -> bool {
        self.0.get(field).and_then(Json::as_bool).unwrap_or_default()
    }

    fn uint(&self, field: &str) -> u64 {
        self.0.get(field).and_then(Json::as_u64).unwrap_or_default()
    }

    fn map(&self, field: &str) -> Map {
        self.0.get(field).and_then(Json::as_object).map(of_object).unwrap_or_default()
    }

    fn publish_options(&self) -> PublishOptions {
        let p = self.0.get("properties").cloned().unwrap_or_default();
        let text = |key: &str| p[key].as_str().map(str::to_owned);
        PublishOptions {
            persistent: self.bool("persistent"),
            mandatory: self.bool("mandatory"),
            properties: Properties {
                content_type: text("content_type"),
                content_encoding: text("content_encoding"),
                correlation_id: text("correlation_id"),
                reply_to: text("reply_to"),
                expiration: p["expiration"].as_u64().map(Duration::from_millis),
                message_id: text("message_id"),
                timestamp: p["timestamp"].as_u64(),
                kind: text("type"),
                user_id: text("user_id"),
                app_id: text("app_id"),
                priority: p["priority"].as_u64().map(|p| u8::try_from(p).unwrap_or(u8::MAX)),
            },
            headers: self.map("headers"),
        }
    }
}

fn of_object(o: &Object) -> Map {
    o.iter().map(|(k, v)| (k.clone(), of_json(v))).collect()
}

fn of_json(v: &Json) -> Value {
    match v {
        Json::Null => Value::Nil,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => n.as_i64().map_or_else(|| Value::Float(n.as_f64().unwrap_or(f64::NAN)), Value::Int),
        Json::String(s) => Value::Str(s.clone()),
        Json::Array(a) => Value::Array(a.iter().map(of_json).collect()),
        Json::Object(o) => Value::Map(of_object(o)),
    }
}

fn to_object(m: &Map) -> Json {
    m.iter().map(|(k, v)| (k.clone(), to_json(v))).collect::<Object>().into()
}

fn to_json(v: &Value) -> Json {
    match v {
        Value::Bool(b) => (*b).into(),
        Value::Int(i) => (*i).into(),
        Value::Float(f) => (*f).into(),
        Value::Str(s) => s.clone().into(),
        Value::Bytes(b) => BASE64.encode(b).into(),
        Value::Array(a) => a.iter().map(to_json).collect(),
        Value::Map(m) => to_object(m),
        _ => Json::Null,
    }
}

/// A message as the runner reads it.
fn show(m: &Message, no_ack: bool) -> Json {
    let p = &m.properties;
    let mut properties = Object::new();
    for (key, text) in [
        ("content_type", &p.content_type),
        ("content_encoding", &p.content_encoding),
        ("correlation_id", &p.correlation_id),
        ("reply_to", &p.reply_to),
        ("message_id", &p.message_id),
        ("type", &p.kind),
        ("user_id", &p.user_id),
        ("app_id", &p.app_id),
    ] {
        if let Some(text) = text {
            properties.insert(key.into(), text.clone().into());
        }
    }
    let expiration = p.expiration.map(|d| d.as_millis() as u64);
    for (key, number) in
        [("expiration", expiration), ("timestamp", p.timestamp), ("priority", p.priority.map(u64::from))]
    {
        if let Some(number) = number {
            properties.insert(key.into(), number.into());
        }
    }
    json!({
        "body": m.body_str().ok(), "body_base64": BASE64.encode(&m.body), "exchange": m.exchange,
        "routing_key": m.routing_key, "redelivered": m.redelivered,
        "tag": if no_ack { String::new() } else { m.tag.to_string() },
        "properties": properties, "headers": to_object(&m.headers),
    })
}

/// The state between commands.
#[derive(Default)]
struct Driver {
    client: Option<Client>,
    subs: HashMap<String, (Subscription, bool)>, // and whether it is no_ack
    errors: Arc<Mutex<Vec<Json>>>,               // not told yet
}

impl Driver {
    async fn run(&mut self, c: &Command) -> Result<Json, Error> {
        match c.str("op") {
            "connect" => return self.connect(c).await,
            "close" => {
                if let Some(client) = &self.client {
                    client.close().await?;
                }
                return Ok(json!({}));
            }
            "errors" => {
                let errors = std::mem::take(&mut *self.errors.lock().unwrap_or_else(PoisonError::into_inner));
                return Ok(json!({"errors": errors}));
            }
            "info" => return Ok(json!({"name": "firemq-rust", "version": firemq_client::VERSION, "lang": "rust"})),
            _ => {}
        }
        let client = self.client.clone().ok_or_else(|| Error::Closed("not connected".into()))?;
        match c.str("op") {
            "declare_exchange" => {
                let options = ExchangeOptions {
                    durable: c.bool("durable"),
                    auto_delete: c.bool("auto_delete"),
                    internal: c.bool("internal"),
                    passive: c.bool("passive"),
                    args: c.map("args"),
                };
                client.declare_exchange(c.str("name"), c.str("type"), options).await?;
            }
            "delete_exchange" => client.delete_exchange(c.str("name"), c.bool("if_unused")).await?,
            "declare_queue" => {
                let options = QueueOptions {
                    durable: c.bool("durable"),
                    exclusive: c.bool("exclusive"),
                    auto_delete: c.bool("auto_delete"),
                    passive: c.bool("passive"),
                    args: c.map("args"),
                };
                let q = client.declare_queue(c.str("name"), options).await?;
                return Ok(json!({"name": q.name, "messages": q.messages, "consumers": q.consumers}));
            }
            "delete_queue" => {
                let options = DeleteOptions { if_unused: c.bool("if_unused"), if_empty: c.bool("if_empty") };
                return Ok(json!({"messages": client.delete_queue(c.str("name"), options).await?}));
            }
            "purge_queue" => return Ok(json!({"messages": client.purge_queue(c.str("name")).await?})),
            op @ ("bind" | "unbind") => {
                let (queue, to, from, key, args) =
                    (c.str("queue"), c.str("to_exchange"), c.str("exchange"), c.str("key"), c.map("args"));
                match (op, queue) {
                    ("bind", "") => client.bind_exchange_with(to, from, key, args).await?,
                    ("bind", _) => client.bind_queue_with(queue, from, key, args).await?,
                    (_, "") => client.unbind_exchange_with(to, from, key, args).await?,
                    _ => client.unbind_queue_with(queue, from, key, args).await?,
                }
            }
            "publish" => {
                client.publish_with(c.str("exchange"), c.str("key"), c.str("body"), c.publish_options()).await?
            }
            "publish_bytes" => {
                let body = BASE64.decode(c.str("body_base64")).map_err(|e| Error::Invalid(e.to_string()))?;
                client.publish_with(c.str("exchange"), c.str("key"), body, c.publish_options()).await?;
            }
            "publish_many" => return publish_many(&client, c).await,
            "subscribe" => {
                let options = SubscribeOptions {
                    prefetch: c.uint("prefetch") as u32,
                    no_ack: c.bool("no_ack"),
                    exclusive: c.bool("exclusive"),
                    tag: c.str("tag").into(),
                    args: c.map("args"),
                };
                let sub = client.subscribe(c.str("queue"), options).await?;
                self.subs.insert(c.str("sub").into(), (sub, c.bool("no_ack")));
            }
            "next" => return self.next(c).await,
            "unsubscribe" => self.sub(c)?.0.unsubscribe().await?,
            op @ ("ack" | "nack") => {
                let tag =
                    c.str("tag").parse().map_err(|_| Error::Invalid(format!("the tag is none: {}", c.str("tag"))))?;
                if op == "ack" {
                    client.ack(tag, c.bool("multiple"))?;
                } else {
                    client.nack(tag, c.bool("multiple"), c.bool("requeue"))?;
                }
            }
            "get" => {
                let no_ack = c.bool("no_ack");
                let m = client.get(c.str("queue"), no_ack).await?;
                let remaining = m.as_ref().map_or(0, |m| m.remaining);
                return Ok(json!({"message": m.map(|m| show(&m, no_ack)), "remaining": remaining}));
            }
            op => return Err(Error::Invalid(format!("unknown op {op}"))),
        }
        Ok(json!({}))
    }

    async fn connect(&mut self, c: &Command) -> Result<Json, Error> {
        let mut options = ConnectOptions::from_url(c.str("url"))?;
        if let Some(client) = self.client.take() {
            client.close().await?;
        }
        self.subs.clear();
        self.errors = Arc::default();
        options.ca_file = env::var_os("FIREMQ_CA_FILE").map(Into::into);
        options.reconnect = c.bool("reconnect").then(Reconnect::default);
        let errors = self.errors.clone();
        options.on_event = Some(Arc::new(move |event| {
            if let Event::Error(Error::Server { code, message, .. }) = event {
                let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
                errors.push(json!({"code": code, "message": message}));
            }
        }));
        let client = Client::connect_with(options).await?;
        let conn_id = client.conn_id();
        self.client = Some(client);
        Ok(json!({"conn_id": conn_id}))
    }

    fn sub(&mut self, c: &Command) -> Result<&mut (Subscription, bool), Error> {
        let name = c.str("sub");
        self.subs.get_mut(name).ok_or_else(|| Error::Invalid(format!("no subscription {name}")))
    }

    async fn next(&mut self, c: &Command) -> Result<Json, Error> {
        let limit = Duration::from_millis(c.uint("timeout_ms"));
        let (sub, no_ack) = self.sub(c)?;
        match tokio::time::timeout(limit, sub.next()).await {
            Err(_) => Ok(json!({"message": null})),
            Ok(Some(m)) => Ok(json!({"message": show(&m, *no_ack)})),
            Ok(None) => match sub.error() {
                Some(e @ Error::Closed(_)) => Err(e.clone()),
                _ => Ok(json!({"message": null, "cancelled": true})),
            },
        }
    }
}

/// Keeps many messages in flight and counts those that are confirmed.
async fn publish_many(client: &Client, c: &Command) -> Result<Json, Error> {
    let publisher = client.publisher(WINDOW);
    let options = PublishOptions { persistent: c.bool("persistent"), ..Default::default() };
    let mut confirms = Vec::new();
    for i in 0..c.uint("count") {
        let body = format!("{}-{i}", c.str("body"));
        confirms.push(publisher.publish_with(c.str("exchange"), c.str("key"), body, &options).await?);
    }
    let mut confirmed = 0;
    for confirm in confirms {
        match confirm.await {
            Ok(()) => confirmed += 1,
            Err(e @ Error::Closed(_)) => return Err(e),
            Err(_) => {}
        }
    }
    Ok(json!({"confirmed": confirmed}))
}
