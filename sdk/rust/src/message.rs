use std::fmt;
use std::str::Utf8Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::error::Error;
use crate::state::Shared;
use crate::value::Map;

/// What describes a message. `None` is absent, and so is empty text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// The MIME type of the body.
    pub content_type: Option<String>,
    /// The MIME encoding of the body.
    pub content_encoding: Option<String>,
    /// What an answer repeats of its request.
    pub correlation_id: Option<String>,
    /// The queue for an answer.
    pub reply_to: Option<String>,
    /// The time to live in a queue, in whole milliseconds; zero is at once.
    pub expiration: Option<Duration>,
    /// The application's name of the message.
    pub message_id: Option<String>,
    /// Seconds since 1970.
    pub timestamp: Option<u64>,
    /// The application's type of the message; the property `type`.
    pub kind: Option<String>,
    /// Has to be the user of the connection.
    pub user_id: Option<String>,
    /// The application.
    pub app_id: Option<String>,
    /// In a queue with `x-max-priority`, higher ones come first.
    pub priority: Option<u8>,
}

/// How a message is published.
#[derive(Clone, Debug)]
pub struct PublishOptions {
    /// Written to disk before it is confirmed; the default. The message survives a restart in a durable queue.
    pub persistent: bool,
    /// Asks for [`Error::Unroutable`] when no queue receives the message.
    pub mandatory: bool,
    /// What describes the message.
    pub properties: Properties,
    /// Application headers.
    pub headers: Map,
}

impl Default for PublishOptions {
    fn default() -> Self {
        PublishOptions { persistent: true, mandatory: false, properties: Properties::default(), headers: Map::new() }
    }
}

/// A message from a queue. Dropping it settles nothing: it stays unacknowledged until the connection ends.
pub struct Message {
    /// Unique on the connection, increasing, for [`Client::ack`](crate::Client::ack).
    pub tag: u64,
    /// It was delivered before and not acknowledged.
    pub redelivered: bool,
    /// The exchange that it was published to.
    pub exchange: String,
    /// The routing key that it was published with.
    pub routing_key: String,
    /// What describes it.
    pub properties: Properties,
    /// Application headers.
    pub headers: Map,
    /// The body.
    pub body: Bytes,
    /// How many are left in the queue; only of [`Client::get`](crate::Client::get).
    pub remaining: u64,
    pub(crate) no_ack: bool,
    pub(crate) shared: Arc<Shared>,
}

impl Message {
    /// The body as text.
    pub fn body_str(&self) -> Result<&str, Utf8Error> {
        std::str::from_utf8(&self.body)
    }

    /// Acknowledges the message.
    ///
    /// Like [`nack`](Message::nack) it does nothing on one that is settled, that counted as acknowledged when it was
    /// sent, or that came over a connection that was lost: the broker delivers that again. It does not wait for the
    /// broker. The error is [`Error::Closed`].
    pub fn ack(&self) -> Result<(), Error> {
        self.settle(false, true, false)
    }

    /// Acknowledges this message and every earlier one of the connection, of all its subscriptions.
    pub fn ack_up_to(&self) -> Result<(), Error> {
        self.settle(true, true, false)
    }

    /// Refuses the message: with `requeue` it is delivered again, else dead-lettered or dropped.
    pub fn nack(&self, requeue: bool) -> Result<(), Error> {
        self.settle(false, false, requeue)
    }

    /// [`nack`](Message::nack) without requeue.
    pub fn reject(&self) -> Result<(), Error> {
        self.nack(false)
    }

    fn settle(&self, multiple: bool, ack: bool, requeue: bool) -> Result<(), Error> {
        let mut st = self.shared.lock();
        if self.no_ack || st.closed.is_none() && !st.unacked.contains_key(&self.tag) {
            return Ok(());
        }
        st.settle(&self.shared, self.tag, multiple, ack, requeue)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("tag", &self.tag)
            .field("redelivered", &self.redelivered)
            .field("exchange", &self.exchange)
            .field("routing_key", &self.routing_key)
            .field("properties", &self.properties)
            .field("headers", &self.headers)
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}
