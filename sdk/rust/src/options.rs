use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls;

use crate::error::Error;
use crate::value::Map;

/// How frames travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP: `fire://`
    Tcp,
    /// TLS: `fires://`
    Tls,
    /// WebSocket: `ws://`
    WebSocket,
    /// WebSocket in TLS: `wss://`
    SecureWebSocket,
}

impl Transport {
    fn of_scheme(scheme: &str) -> Option<Transport> {
        Some(match scheme {
            "fire" => Transport::Tcp,
            "fires" => Transport::Tls,
            "ws" => Transport::WebSocket,
            "wss" => Transport::SecureWebSocket,
            _ => return None,
        })
    }

    fn default_port(self) -> u16 {
        match self {
            Transport::Tcp => 5673,
            Transport::Tls => 5674,
            Transport::WebSocket => 15672,
            Transport::SecureWebSocket => 15671,
        }
    }

    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Transport::Tls | Transport::SecureWebSocket)
    }

    pub(crate) fn is_web_socket(self) -> bool {
        matches!(self, Transport::WebSocket | Transport::SecureWebSocket)
    }
}

/// Something that happened to a client and belongs to no call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The broker reported an error that is no answer, such as an unknown delivery tag, or refused what the client
    /// declared again.
    Error(Error),
    /// The connection was lost and will be made again.
    Disconnected(Error),
    /// It is there again.
    Reconnected,
    /// The broker asks publishers to pause, and to go on. The client obeys by itself.
    Flow {
        /// Whether publishers wait.
        paused: bool,
    },
}

/// Is told of events. It is called by the client's task and must not block.
pub type EventHandler = Arc<dyn Fn(Event) + Send + Sync>;

/// Where and how to connect.
#[derive(Clone)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// How frames travel.
    pub transport: Transport,
    /// A name or an address; one of IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Of the WebSocket endpoint.
    pub path: String,
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
    /// The virtual host.
    pub vhost: String,
    /// The interval to ask for, in whole seconds, 30 by default; zero is none. The broker may choose a shorter one. A
    /// connection that is silent for two intervals is lost.
    pub heartbeat: Duration,
    /// What operators see.
    pub name: String,
    /// How long an attempt to connect may take, 10 s by default.
    pub timeout: Duration,
    /// What happens when the connection is lost; `None`: the client is closed.
    pub reconnect: Option<Reconnect>,
    /// A PEM file with certificates that the broker's is verified with, besides the system's: its own if it signed
    /// itself.
    pub ca_file: Option<PathBuf>,
    /// Replaces the default configuration of TLS, and `ca_file` with it.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Is told of what belongs to no call.
    pub on_event: Option<EventHandler>,
}

impl fmt::Debug for ConnectOptions {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("transport", &self.transport)
            .field("host", &self.host)
            .field("port", &self.port)
            .field("path", &self.path)
            .field("user", &self.user)
            .field("vhost", &self.vhost)
            .field("heartbeat", &self.heartbeat)
            .field("name", &self.name)
            .field("timeout", &self.timeout)
            .field("reconnect", &self.reconnect)
            .field("ca_file", &self.ca_file)
            .finish_non_exhaustive()
    }
}

/// What a client does when it loses its connection.
#[derive(Clone, Debug)]
pub struct Reconnect {
    /// After how many attempts in a row that failed the client is closed; `None`, the default: it goes on until it is
    /// closed.
    pub max_attempts: Option<u32>,
    /// How long calls wait for a connection before they fail with [`Error::Closed`]; 30 s.
    pub wait: Duration,
    /// The pause before the first attempt, which doubles up to `max_delay`; 100 ms.
    pub min_delay: Duration,
    /// The longest pause; 5 s.
    pub max_delay: Duration,
}

impl Default for Reconnect {
    fn default() -> Self {
        Reconnect {
            max_attempts: None,
            wait: Duration::from_secs(30),
            min_delay: Duration::from_millis(100),
            max_delay: Duration::from_secs(5),
        }
    }
}

fn invalid<T>(text: impl Into<String>) -> Result<T, Error> {
    Err(Error::Invalid(text.into()))
}

impl ConnectOptions {
    /// Reads a URL:
    ///
    /// ```text
    /// fire://user:password@host:5673/vhost         over TCP
    /// fires://user:password@host:5674/vhost        over TLS
    /// ws://user:password@host:15672/fire?vhost=v   over WebSocket
    /// wss://user:password@host:15671/fire?vhost=v  over WebSocket in TLS
    /// ```
    ///
    /// User and password default to guest, the port to the one above, the path of a WebSocket to `/fire` and the vhost
    /// to `/`. The vhost of `fire` and `fires` is the path without its leading slash, percent-decoded, so that `/` is
    /// written `%2F` or left out. Errors are [`Error::Invalid`] and never contain the password.
    pub fn from_url(url: &str) -> Result<ConnectOptions, Error> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return invalid("the URL must start with fire:// or fires://, ws:// or wss://");
        };
        let scheme = scheme.to_ascii_lowercase();
        let Some(transport) = Transport::of_scheme(&scheme) else {
            if scheme == "amqp" || scheme == "amqps" {
                return invalid(format!(
                    "{scheme}:// is for AMQP clients; this one needs fire:// or fires://, ws:// or wss://"
                ));
            }
            return invalid("the URL must start with fire:// or fires://, ws:// or wss://");
        };
        if url.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return invalid("the URL has a space or a control character: percent-encode it");
        }
        if rest.contains('#') {
            return invalid(format!("a {scheme}:// URL has no fragment: write # in a vhost as %23"));
        }
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (login, address) = match authority.rsplit_once('@') {
            Some((login, address)) => (login, address),
            None => ("", authority),
        };
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (host, port) = host_and_port(address)?;
        let mut o = ConnectOptions {
            transport,
            host,
            port: port.unwrap_or(transport.default_port()),
            path: String::new(),
            user: or(decode(user, "user")?, "guest"),
            password: or(decode(password, "password")?, "guest"),
            vhost: String::new(),
            heartbeat: Duration::from_secs(30),
            name: "firemq-rust".into(),
            timeout: Duration::from_secs(10),
            reconnect: Some(Reconnect::default()),
            ca_file: None,
            tls: None,
            on_event: None,
        };
        if transport.is_web_socket() {
            o.path = if path.is_empty() || path == "/" { "/fire".into() } else { path.into() };
            decode(path, "path")?;
            if let Some(query) = query {
                match query.split_once('=') {
                    Some(("vhost", vhost)) if !vhost.contains('&') => {
                        o.vhost = decode(&vhost.replace('+', " "), "vhost")?
                    }
                    _ => return invalid(format!("the query of a {scheme}:// URL is one vhost=name, and nothing else")),
                }
            }
        } else if query.is_some() {
            return invalid(format!("a {scheme}:// URL has no query: the vhost is its path"));
        } else {
            o.vhost = decode(path.strip_prefix('/').unwrap_or(path), "vhost")?;
        }
        o.vhost = or(o.vhost, "/");
        Ok(o)
    }
}

impl FromStr for ConnectOptions {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        ConnectOptions::from_url(url)
    }
}

fn or(s: String, default: &str) -> String {
    if s.is_empty() {
        default.into()
    } else {
        s
    }
}

fn host_and_port(address: &str) -> Result<(String, Option<u16>), Error> {
    let (host, port) = if let Some(rest) = address.strip_prefix('[') {
        let Some((host, after)) = rest.split_once(']') else {
            return invalid("the address of the host is not closed with ]");
        };
        match after.strip_prefix(':') {
            Some(port) => (host, port),
            None if after.is_empty() => (host, ""),
            None => return invalid("only a port may follow the host"),
        }
    } else {
        address.split_once(':').unwrap_or((address, ""))
    };
    if host.is_empty() {
        return invalid("the URL has no host");
    }
    let port = match port {
        "" => None,
        digits => match digits.parse() {
            Ok(port) if port != 0 && digits.bytes().all(|b| b.is_ascii_digit()) => Some(port),
            _ => return invalid("the port is not between 1 and 65535"),
        },
    };
    Ok((decode(host, "host")?, port))
}

/// Percent-decodes a part of a URL.
fn decode(s: &str, what: &str) -> Result<String, Error> {
    let mut out = Vec::with_capacity(s.len());
    let mut bytes = s.bytes();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let mut digit = || bytes.next().and_then(|b| (b as char).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
            _ => return invalid(format!("a % in the {what} of the URL is not followed by two hexadecimal digits")),
        }
    }
    String::from_utf8(out).or_else(|_| invalid(format!("the {what} in the URL is not UTF-8")))
}

/// What a queue is.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Survives a broker restart; the default.
    pub durable: bool,
    /// Used only by this connection and deleted with it.
    pub exclusive: bool,
    /// Deleted with its last subscription.
    pub auto_delete: bool,
    /// Only check that it exists.
    pub passive: bool,
    /// Arguments with RabbitMQ's names, such as `x-message-ttl`.
    pub args: Map,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions { durable: true, exclusive: false, auto_delete: false, passive: false, args: Map::new() }
    }
}

impl QueueOptions {
    /// A queue that lives as long as its connection.
    pub fn temporary() -> Self {
        QueueOptions { durable: false, exclusive: true, auto_delete: true, ..Default::default() }
    }

    /// Only checks that the queue exists.
    pub fn passive() -> Self {
        QueueOptions { passive: true, ..Default::default() }
    }
}

/// What an exchange is.
#[derive(Clone, Debug)]
pub struct ExchangeOptions {
    /// Survives a broker restart; the default.
    pub durable: bool,
    /// Deleted with its last binding.
    pub auto_delete: bool,
    /// Cannot be published to directly.
    pub internal: bool,
    /// Only check that it exists.
    pub passive: bool,
    /// Arguments, such as `alternate-exchange`.
    pub args: Map,
}

impl Default for ExchangeOptions {
    fn default() -> Self {
        ExchangeOptions { durable: true, auto_delete: false, internal: false, passive: false, args: Map::new() }
    }
}

/// When a queue may be deleted; otherwise the broker answers 406.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// Only when it has no consumers.
    pub if_unused: bool,
    /// Only when it has no messages.
    pub if_empty: bool,
}

/// How a subscription receives.
#[derive(Clone, Debug)]
pub struct SubscribeOptions {
    /// How many unacknowledged messages the broker may have sent, with `no_ack` how many unprocessed ones; 100. It
    /// bounds what the client buffers. 0 is 1.
    pub prefetch: u32,
    /// Messages count as acknowledged once sent.
    pub no_ack: bool,
    /// Refuse other consumers of the queue (405 when there are some).
    pub exclusive: bool,
    /// The consumer's name for operators; empty: the broker chooses one.
    pub tag: String,
    /// Arguments, such as `x-priority`.
    pub args: Map,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        SubscribeOptions { prefetch: 100, no_ack: false, exclusive: false, tag: String::new(), args: Map::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (url, transport, host, port, user, password, path, vhost) in [
            ("fire://localhost", Transport::Tcp, "localhost", 5673, "guest", "guest", "", "/"),
            ("fire://localhost/", Transport::Tcp, "localhost", 5673, "guest", "guest", "", "/"),
            ("fires://h/%2F", Transport::Tls, "h", 5674, "guest", "guest", "", "/"),
            ("fire://u:p%40w@h:1/a/b", Transport::Tcp, "h", 1, "u", "p@w", "", "a/b"),
            ("fire://[::1]:7/v", Transport::Tcp, "::1", 7, "guest", "guest", "", "v"),
            ("ws://h?vhost=a%20b", Transport::WebSocket, "h", 15672, "guest", "guest", "/fire", "a b"),
            ("wss://u@h/x", Transport::SecureWebSocket, "h", 15671, "u", "guest", "/x", "/"),
        ] {
            let o = ConnectOptions::from_url(url).unwrap();
            assert_eq!(
                (o.transport, &*o.host, o.port, &*o.user, &*o.password, &*o.path, &*o.vhost),
                (transport, host, port, user, password, path, vhost),
                "{url}"
            );
        }
    }

    #[test]
    fn urls_that_are_none() {
        for url in [
            "",
            "localhost",
            "http://h",
            "amqp://h",
            "fire://",
            "fire://:5673",
            "fire://h:0",
            "fire://h:65536",
            "fire://h:+1",
            "fire://u:secret@h:x",
            "fire://h/%zz",
            "fire://h/%f",
            "fire://h/v?x=1",
            "fire://h/a#b",
            "fire://h/a b",
            "ws://h/fire?x=1",
            "ws://h/fire?vhost=a&b=c",
            "fire://[::1",
        ] {
            match ConnectOptions::from_url(url) {
                Err(Error::Invalid(text)) => assert!(!text.contains("secret"), "{url}: {text}"),
                other => panic!("{url}: {other:?}"),
            }
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let o = ConnectOptions::from_url("fire://u:secret@h").unwrap();
        assert!(!format!("{o:?}").contains("secret"));
    }
}
