use std::fmt;
use std::io;
use std::sync::Arc;

/// What can go wrong. Clones are cheap.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No queue received a message that was published as mandatory.
    Unroutable,
    /// The broker refused a published message: with code 506 a full queue, with 404 and 403 an exchange that is
    /// missing or may not be written to, with 406 a property that it does not accept.
    Nacked {
        /// An AMQP reply code.
        code: u16,
        /// The broker's words.
        message: String,
    },
    /// The broker refused a request, or when `fatal` the whole connection.
    Server {
        /// An AMQP reply code.
        code: u16,
        /// The broker's words, such as "NOT_FOUND - no queue 'q' in vhost '/'".
        message: String,
        /// The connection ended with this.
        fatal: bool,
    },
    /// The broker ended a subscription, for example because its queue was deleted.
    Cancelled {
        /// An AMQP reply code.
        code: u16,
        /// The broker's words.
        message: String,
    },
    /// The subscription was ended by [`unsubscribe`](crate::Subscription::unsubscribe).
    Unsubscribed,
    /// The client is closed, or there was no connection for [`Reconnect::wait`](crate::Reconnect::wait); the text
    /// says why.
    Closed(String),
    /// An argument or a URL is wrong: nothing was sent.
    Invalid(String),
    /// The network, or a peer that does not speak the protocol. Only connecting fails with it; a connection that is
    /// lost later is made again, or [`Closed`](Error::Closed).
    Io(Arc<io::Error>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unroutable => f.write_str("no queue received the message"),
            Error::Nacked { message, .. } => write!(f, "message refused: {message}"),
            Error::Server { message, .. } => f.write_str(message),
            Error::Cancelled { message, .. } => write!(f, "subscription cancelled: {message}"),
            Error::Unsubscribed => f.write_str("unsubscribed"),
            Error::Closed(why) if why.is_empty() => f.write_str("connection closed"),
            Error::Closed(why) => write!(f, "connection closed: {why}"),
            Error::Invalid(text) => f.write_str(text),
            Error::Io(e) => write!(f, "connect: {e}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(e) => Some(e),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        Error::Io(Arc::new(e))
    }
}

impl Error {
    /// `Closed` because of this.
    pub(crate) fn closed(self) -> Error {
        match self {
            Error::Closed(_) => self,
            Error::Io(e) => Error::Closed(e.to_string()),
            other => Error::Closed(other.to_string()),
        }
    }

    /// What the peer sent is not the protocol.
    pub(crate) fn protocol(text: impl Into<String>) -> Error {
        io::Error::new(io::ErrorKind::InvalidData, text.into()).into()
    }
}
