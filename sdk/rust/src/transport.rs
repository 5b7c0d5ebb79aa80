//! One connection to the broker, logged in: frames in, staged bytes out.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_util::sink::{Sink, SinkExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{verify_server_name, WebPkiServerVerifier};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{self, crypto, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::{self, protocol::WebSocketConfig};
use tokio_tungstenite::WebSocketStream;

use crate::error::Error;
use crate::options::ConnectOptions;
use crate::value::{Map, Value};
use crate::wire::{self, op, Encoder, Frame, Header};

/// What one read asks the system for.
const READ_BUFFER: usize = 64 << 10;
/// A WebSocket message is not larger: no broker may be told to send larger frames.
const MAX_MESSAGE: usize = 513 << 20;

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

type Io = Box<dyn Socket>;
type WebSocket = WebSocketStream<Io>;

/// A connection behind welcome.
pub(crate) struct Connection {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) id: String,
    pub(crate) server: String,
    pub(crate) max_frame: usize,
    pub(crate) heartbeat: Duration,
}

/// Gives received frames.
pub(crate) struct Reader {
    source: Source,
    /// The largest frame.
    limit: usize,
}

enum Source {
    Stream { io: ReadHalf<Io>, buf: BytesMut },
    WebSocket { messages: futures_util::stream::SplitStream<WebSocket>, next: Option<Bytes> },
}

/// Sends frames. What it has taken it keeps until it is sent, so that a call may be given up and made again.
pub(crate) struct Writer {
    sink: Destination,
    buf: Vec<u8>,
    sent: usize,
}

enum Destination {
    Stream(WriteHalf<Io>),
    WebSocket(futures_util::stream::SplitSink<WebSocket, tungstenite::Message>),
}

fn eof() -> Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the broker closed the connection").into()
}

fn of_web_socket(e: tungstenite::Error) -> Error {
    match e {
        tungstenite::Error::Io(e) => e.into(),
        tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed => eof(),
        e => io::Error::other(e.to_string()).into(),
    }
}

impl Reader {
    /// The next frame of those that came; none: fill has to bring more.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Error> {
        match &mut self.source {
            Source::Stream { buf, .. } => {
                if buf.starts_with(b"AMQP") {
                    // 0-9-1 4.2.2: the answer to a wrong header
                    return Err(Error::protocol(
                        "this is a port for AMQP 0-9-1; the FireMQ protocol has its own, 5673 by default",
                    ));
                }
                wire::next_frame(buf, self.limit)
            }
            Source::WebSocket { next, .. } => next.take().map(|b| wire::frame(b, self.limit)).transpose(),
        }
    }

    /// Waits for more to come. It may be given up and called again.
    pub(crate) async fn fill(&mut self) -> Result<(), Error> {
        match &mut self.source {
            Source::Stream { io, buf } => {
                if buf.capacity() - buf.len() < READ_BUFFER / 4 {
                    buf.reserve(READ_BUFFER); // grows with what comes, not with what a length promises
                }
                match io.read_buf(buf).await? {
                    0 => Err(eof()),
                    _ => Ok(()),
                }
            }
            Source::WebSocket { messages, next } => loop {
                let message = std::future::poll_fn(|cx| std::pin::Pin::new(&mut *messages).poll_next(cx)).await;
                match message {
                    Some(Ok(tungstenite::Message::Binary(b))) => {
                        *next = Some(b);
                        return Ok(());
                    }
                    Some(Ok(tungstenite::Message::Text(_))) => {
                        return Err(Error::protocol("a text message, where frames are binary"))
                    }
                    Some(Ok(tungstenite::Message::Close(_))) | None => return Err(eof()),
                    Some(Ok(_)) => {} // a ping or pong of WebSocket
                    Some(Err(e)) => return Err(of_web_socket(e)),
                }
            },
        }
    }

    async fn frame(&mut self) -> Result<Frame, Error> {
        loop {
            if let Some(frame) = self.next()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }
}

impl Writer {
    /// Takes what is staged, when everything before is sent; what is left in `staged` is empty memory.
    pub(crate) fn take(&mut self, staged: &mut Vec<u8>) {
        debug_assert!(self.is_idle(), "BUG: bytes are overtaken");
        self.sent = 0;
        self.buf.clear();
        if self.buf.capacity() > 2 * crate::state::MAX_STAGED {
            self.buf = Vec::new();
        }
        std::mem::swap(&mut self.buf, staged);
    }

    /// Everything that was taken is sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.sent == self.buf.len()
    }

    /// Sends what was taken.
    pub(crate) async fn send(&mut self) -> Result<(), Error> {
        match &mut self.sink {
            Destination::Stream(io) => {
                while self.sent < self.buf.len() {
                    self.sent += match io.write(&self.buf[self.sent..]).await? {
                        0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                        n => n,
                    };
                }
                io.flush().await?;
            }
            Destination::WebSocket(sink) => {
                while let Some(len) = self.buf[self.sent..].first_chunk::<4>() {
                    let at = self.sent + 4;
                    let end = at + u32::from_be_bytes(*len) as usize;
                    // Being ready is waited for first: given up behind it, the frame would be sent twice.
                    std::future::poll_fn(|cx| std::pin::Pin::new(&mut *sink).poll_ready(cx))
                        .await
                        .map_err(of_web_socket)?;
                    let message = tungstenite::Message::Binary(Bytes::copy_from_slice(&self.buf[at..end]));
                    sink.start_send_unpin(message).map_err(of_web_socket)?;
                    self.sent = end;
                }
                sink.flush().await.map_err(of_web_socket)?;
            }
        }
        Ok(())
    }

    async fn send_all(&mut self, staged: &mut Vec<u8>) -> Result<(), Error> {
        self.take(staged);
        self.send().await
    }

    /// Ends the connection in the way of its transport.
    pub(crate) async fn shutdown(&mut self) {
        // Best effort: it is over in any case.
        match &mut self.sink {
            Destination::Stream(io) => drop(io.shutdown().await),
            Destination::WebSocket(sink) => drop(sink.close().await),
        }
    }
}

/// Connects and logs in.
pub(crate) async fn open(o: &ConnectOptions) -> Result<Connection, Error> {
    match tokio::time::timeout(o.timeout, connect(o)).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {:?}", o.timeout)).into()),
    }
}

async fn connect(o: &ConnectOptions) -> Result<Connection, Error> {
    let tcp = TcpStream::connect((&*o.host, o.port)).await?;
    tcp.set_nodelay(true)?;
    let mut io: Io = Box::new(tcp);
    if o.transport.is_tls() {
        let name =
            ServerName::try_from(o.host.clone()).map_err(|_| Error::Invalid("the host is no name for TLS".into()))?;
        io = Box::new(TlsConnector::from(tls(o).await?).connect(name, io).await?);
    }
    let (source, sink) = if o.transport.is_web_socket() {
        let scheme = if o.transport.is_tls() { "wss" } else { "ws" };
        let host = if o.host.contains(':') { format!("[{}]", o.host) } else { o.host.clone() };
        // The limit of a frame is checked with each; it is not known before welcome.
        let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
        let url = format!("{scheme}://{host}:{}{}", o.port, o.path);
        let (ws, _) =
            tokio_tungstenite::client_async_with_config(url, io, Some(config)).await.map_err(of_web_socket)?;
        let (sink, messages) = futures_util::StreamExt::split(ws);
        (Source::WebSocket { messages, next: None }, Destination::WebSocket(sink))
    } else {
        let (read, mut write) = tokio::io::split(io);
        write.write_all(wire::PREFACE).await?;
        (Source::Stream { io: read, buf: BytesMut::with_capacity(READ_BUFFER) }, Destination::Stream(write))
    };
    let mut c = Connection {
        reader: Reader { source, limit: wire::MAX_BEFORE_WELCOME },
        writer: Writer { sink, buf: Vec::new(), sent: 0 },
        id: String::new(),
        server: String::new(),
        max_frame: 0,
        heartbeat: Duration::ZERO,
    };
    c.log_in(o).await?;
    Ok(c)
}

impl Connection {
    async fn log_in(&mut self, o: &ConnectOptions) -> Result<(), Error> {
        let text = |pairs: &[(&str, &str)]| -> Result<Vec<u8>, Error> {
            let map: Map = pairs.iter().map(|(k, v)| ((*k).to_owned(), Value::from(*v))).collect();
            wire::encode_map(&map)
        };
        let mut hello = Vec::new();
        Encoder::new(&mut hello, op::HELLO)
            .uint("ver", wire::VERSION)
            .str("vhost", &o.vhost)
            .raw("auth", &text(&[("mech", "plain"), ("user", &o.user), ("pass", &o.password)])?)
            .uint("heartbeat", o.heartbeat.as_secs())
            .raw("client", &text(&[("name", &o.name), ("version", env!("CARGO_PKG_VERSION")), ("lang", "rust")])?)
            .raw("caps", &wire::encode_texts(&["confirms", "credit", "mandatory"]))
            .end(&[]);
        if hello.len() > 4 + wire::MAX_BEFORE_WELCOME {
            return Err(Error::Invalid("user, password, vhost and name are too long".into()));
        }
        self.writer.send_all(&mut hello).await?;
        loop {
            let frame = self.reader.frame().await?;
            let h = Header::decode(&frame.header)?;
            match frame.op {
                op::WELCOME if h.ver != wire::VERSION => {
                    return Err(Error::protocol(format!(
                        "the broker speaks version {} of the protocol, this client {}",
                        h.ver,
                        wire::VERSION
                    )));
                }
                op::WELCOME => {
                    let of = |key| h.server.get(key).and_then(Value::as_str).unwrap_or_default();
                    self.server = format!("{} {}", of("name"), of("version"));
                    self.id = h.conn_id;
                    self.max_frame = u32::try_from(h.max_frame).unwrap_or(u32::MAX) as usize;
                    self.reader.limit = self.max_frame;
                    self.heartbeat = Duration::from_secs(h.heartbeat.min(u32::MAX.into()));
                    return Ok(());
                }
                op::ERROR => return Err(Error::Server { code: h.code, message: h.msg, fatal: true }),
                op::PING | op::PONG => {}
                other => return Err(Error::protocol(format!("the broker sent op {other:#04x} before welcome"))),
            }
        }
    }

    /// Sends requests before anything else is, and gives each frame that comes to `each`, until that counted an
    /// answer to all of them.
    pub(crate) async fn ask(
        &mut self,
        mut requests: Vec<u8>,
        count: usize,
        mut each: impl FnMut(Frame) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        self.writer.send_all(&mut requests).await?;
        let mut answers = 0;
        while answers < count {
            let frame = self.reader.frame().await?;
            if frame.op == op::PING {
                let mut pong = Vec::new();
                Encoder::new(&mut pong, op::PONG).end(&[]);
                self.writer.send_all(&mut pong).await?;
            } else if each(frame)? {
                answers += 1;
            }
        }
        Ok(())
    }
}

async fn tls(o: &ConnectOptions) -> Result<Arc<ClientConfig>, Error> {
    if let Some(config) = &o.tls {
        return Ok(config.clone());
    }
    let file = o.ca_file.clone();
    let verifier = tokio::task::spawn_blocking(|| Verifier::new(file)).await.map_err(io::Error::other)??;
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous() // what is added to the usual verification is in Verifier
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Verifies the broker's certificate in the usual way, and besides accepts one that is itself in the file of those
/// that are trusted, for the names that are in it: a broker's that signed itself is an authority's too, which the
/// usual way does not take for a server's.
#[derive(Debug)]
struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl Verifier {
    fn new(file: Option<PathBuf>) -> Result<Verifier, Error> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let mut trusted = Vec::new();
        if let Some(file) = file {
            let bad = |e: &dyn Display| Error::Invalid(format!("certificates in {}: {e}", file.display()));
            for certificate in CertificateDer::pem_file_iter(&file).map_err(|e| bad(&e))? {
                let certificate = certificate.map_err(|e| bad(&e))?;
                roots.add(certificate.clone()).map_err(|e| bad(&e))?;
                trusted.push(certificate);
            }
            if trusted.is_empty() {
                return Err(bad(&"there are none"));
            }
        }
        let provider = Arc::new(crypto::ring::default_provider());
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|e| Error::Invalid(format!("there are no certificates to verify the broker's with: {e}")))?;
        Ok(Verifier { usual, trusted })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.trusted.contains(certificate) {
            verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
            return Ok(ServerCertVerified::assertion());
        }
        self.usual.verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/");

    fn certificate(name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(format!("{TESTDATA}{name}")).unwrap()
    }

    #[test]
    fn a_trusted_certificate_is_accepted_for_its_names_alone() {
        let verifier = Verifier::new(Some(format!("{TESTDATA}localhost.pem").into())).unwrap();
        for (file, name, accepted) in [
            ("localhost.pem", "localhost", true),
            ("localhost.pem", "127.0.0.1", true),
            ("localhost.pem", "example.com", false),
            ("other.pem", "localhost", false), // for the same names, signed by itself too
        ] {
            let name = ServerName::try_from(name).unwrap();
            let got = verifier.verify_server_cert(&certificate(file), &[], &name, &[], UnixTime::now());
            assert_eq!(got.is_ok(), accepted, "{file} for {name:?}: {got:?}");
        }
    }

    #[test]
    fn a_file_of_certificates_has_to_be_one() {
        for file in ["missing.pem", "../Cargo.toml"] {
            match Verifier::new(Some(format!("{TESTDATA}{file}").into())) {
                Err(Error::Invalid(text)) => assert!(text.contains(file), "{text}"),
                other => panic!("{file}: {other:?}"),
            }
        }
    }
}
