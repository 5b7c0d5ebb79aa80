//! Frames of the protocol and their MessagePack headers: pure encoding and decoding.
//!
//! ```text
//! len u32 | op u8 | hlen u32 | header | payload        len counts what follows it
//! ```
//!
//! Staged bytes are always frames with `len`; the WebSocket transport leaves it out when it sends them.

use bytes::{Buf, Bytes, BytesMut};
use rmp::{decode, encode, Marker};

use crate::error::Error;
use crate::message::Properties;
use crate::value::{Map, Value};

pub(crate) const PREFACE: &[u8] = b"FMQ1";
pub(crate) const VERSION: u64 = 1;
/// The largest frame before welcome.
pub(crate) const MAX_BEFORE_WELCOME: usize = 65_536;
/// The largest header that the broker takes.
pub(crate) const MAX_HEADER: usize = 131_072;
/// The longest name, key or property.
pub(crate) const MAX_NAME: usize = 255;
/// How deep values may be nested.
const MAX_DEPTH: usize = 64;

pub(crate) mod op {
    pub(crate) const HELLO: u8 = 0x01;
    pub(crate) const WELCOME: u8 = 0x02;
    pub(crate) const PING: u8 = 0x03;
    pub(crate) const PONG: u8 = 0x04;
    pub(crate) const CLOSE: u8 = 0x05;
    pub(crate) const OK: u8 = 0x06;
    pub(crate) const ERROR: u8 = 0x07;
    pub(crate) const FLOW: u8 = 0x08;
    pub(crate) const DECLARE_EXCHANGE: u8 = 0x10;
    pub(crate) const DELETE_EXCHANGE: u8 = 0x11;
    pub(crate) const DECLARE_QUEUE: u8 = 0x12;
    pub(crate) const DELETE_QUEUE: u8 = 0x13;
    pub(crate) const PURGE_QUEUE: u8 = 0x14;
    pub(crate) const BIND: u8 = 0x15;
    pub(crate) const UNBIND: u8 = 0x16;
    pub(crate) const PUBLISH: u8 = 0x20;
    pub(crate) const CONFIRM: u8 = 0x21;
    pub(crate) const RETURN: u8 = 0x22;
    pub(crate) const SUBSCRIBE: u8 = 0x30;
    pub(crate) const UNSUBSCRIBE: u8 = 0x31;
    pub(crate) const CREDIT: u8 = 0x32;
    pub(crate) const DELIVER: u8 = 0x33;
    pub(crate) const CANCELLED: u8 = 0x34;
    pub(crate) const ACK: u8 = 0x35;
    pub(crate) const NACK: u8 = 0x36;
    pub(crate) const GET: u8 = 0x37;
    pub(crate) const GET_OK: u8 = 0x38;
}

/// A received frame.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) op: u8,
    pub(crate) header: Bytes,
    pub(crate) payload: Bytes,
}

/// Takes the next frame off the front of `buf`; none when there is only a part of one.
pub(crate) fn next_frame(buf: &mut BytesMut, limit: usize) -> Result<Option<Frame>, Error> {
    let Some(len) = buf.first_chunk::<4>() else {
        return Ok(None);
    };
    let len = u32::from_be_bytes(*len) as usize;
    check_len(len, limit)?;
    if buf.len() < 4 + len {
        return Ok(None);
    }
    buf.advance(4);
    frame(buf.split_to(len).freeze(), limit).map(Some)
}

/// The frame in `b`, which does not begin with its length.
pub(crate) fn frame(mut b: Bytes, limit: usize) -> Result<Frame, Error> {
    check_len(b.len(), limit)?;
    let op = b.get_u8();
    let hlen = b.get_u32() as usize;
    if hlen > b.len() {
        return Err(Error::protocol("a header is longer than its frame"));
    }
    Ok(Frame { op, header: b.split_to(hlen), payload: b })
}

fn check_len(len: usize, limit: usize) -> Result<(), Error> {
    if (5..=limit).contains(&len) {
        return Ok(());
    }
    Err(Error::protocol(format!("a frame of {len} bytes, where 5 to {limit} are allowed")))
}

/// Writes one frame to the end of a buffer. Fields that are zero or empty are left out.
pub(crate) struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    fields: u8,
}

/// Where the header begins in a frame with its length.
const HEADER_AT: usize = 9;
/// Where the number of a publish is in its frame: behind the map's marker, the key and the marker of a u64.
const SEQ_AT: usize = HEADER_AT + 1 + 4 + 1;

impl<'a> Encoder<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>, op: u8) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0, 0, 0, 0, op, 0, 0, 0, 0, 0x80]);
        Encoder { out, start, fields: 0 }
    }

    fn key(&mut self, key: &str) {
        self.fields += 1;
        debug_assert!(self.fields < 16, "BUG: more fields than a fixmap has");
        write_str(self.out, key);
    }

    pub(crate) fn uint(mut self, key: &str, v: u64) -> Self {
        if v != 0 {
            self.key(key);
            never(encode::write_uint(self.out, v));
        }
        self
    }

    pub(crate) fn bool(mut self, key: &str, v: bool) -> Self {
        if v {
            self.key(key);
            never(encode::write_bool(self.out, v));
        }
        self
    }

    pub(crate) fn str(mut self, key: &str, v: &str) -> Self {
        if !v.is_empty() {
            self.key(key);
            write_str(self.out, v);
        }
        self
    }

    /// An encoded value; none when it is empty.
    pub(crate) fn raw(mut self, key: &str, v: &[u8]) -> Self {
        if !v.is_empty() {
            self.key(key);
            self.out.extend_from_slice(v);
        }
        self
    }

    /// The number of a publish, which set_seq fills in. It has to be the first field.
    fn seq(mut self) -> Self {
        self.key("seq");
        self.out.push(Marker::U64.to_u8());
        self.out.extend_from_slice(&[0; 8]);
        self
    }

    pub(crate) fn end(self, payload: &[u8]) {
        let header = self.start + HEADER_AT;
        self.out[header] |= self.fields;
        let hlen = self.out.len() - header;
        self.out.extend_from_slice(payload);
        let len = self.out.len() - self.start - 4;
        self.out[self.start..self.start + 4].copy_from_slice(&(len as u32).to_be_bytes());
        self.out[header - 4..header].copy_from_slice(&(hlen as u32).to_be_bytes());
    }
}

/// The frame of a publish, without its number.
pub(crate) fn publish(
    exchange: &str,
    key: &str,
    mandatory: bool,
    persistent: bool,
    props: &[u8],
    headers: &[u8],
    body: &[u8],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + exchange.len() + key.len() + props.len() + headers.len() + body.len());
    Encoder::new(&mut out, op::PUBLISH)
        .seq()
        .str("exchange", exchange)
        .str("key", key)
        .bool("mandatory", mandatory)
        .bool("persistent", persistent)
        .raw("props", props)
        .raw("headers", headers)
        .end(body);
    out
}

/// Numbers a publish.
pub(crate) fn set_seq(frame: &mut [u8], seq: u64) {
    frame[SEQ_AT..SEQ_AT + 8].copy_from_slice(&seq.to_be_bytes());
}

/// Writing to a Vec does not fail.
fn never<T, E>(r: Result<T, E>) {
    debug_assert!(r.is_ok(), "BUG: a Vec did not take bytes");
}

fn write_str(out: &mut Vec<u8>, s: &str) {
    never(encode::write_str(out, s));
}

/// Encodes a map; no bytes for an empty one.
pub(crate) fn encode_map(map: &Map) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    if !map.is_empty() {
        write_map(&mut out, map, 1)?;
    }
    Ok(out)
}

/// Encodes a list of texts.
pub(crate) fn encode_texts(texts: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    never(encode::write_array_len(&mut out, texts.len() as u32));
    texts.iter().for_each(|t| write_str(&mut out, t));
    out
}

fn write_map(out: &mut Vec<u8>, map: &Map, depth: usize) -> Result<(), Error> {
    never(encode::write_map_len(out, map.len() as u32));
    for (name, value) in map {
        if depth == 1 && name.len() > MAX_NAME {
            return Err(Error::Invalid(format!("a name of {} bytes is longer than {MAX_NAME}", name.len())));
        }
        write_str(out, name);
        write_value(out, value, depth)?;
    }
    Ok(())
}

fn write_value(out: &mut Vec<u8>, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::Invalid(format!("values are nested deeper than {MAX_DEPTH}")));
    }
    match value {
        Value::Nil => never(encode::write_nil(out)),
        Value::Bool(v) => never(encode::write_bool(out, *v)),
        Value::Int(v) => never(encode::write_sint(out, *v)),
        Value::Float(v) => never(encode::write_f64(out, *v)),
        Value::Str(v) => write_str(out, v),
        Value::Bytes(v) => never(encode::write_bin(out, v)),
        Value::Array(v) => {
            never(encode::write_array_len(out, v.len() as u32));
            for value in v {
                write_value(out, value, depth + 1)?;
            }
        }
        Value::Map(v) => write_map(out, v, depth + 1)?,
    }
    Ok(())
}

/// Encodes properties; no bytes when there are none.
pub(crate) fn encode_properties(p: &Properties) -> Result<Vec<u8>, Error> {
    let mut out = vec![0x80];
    let mut fields = 0;
    let texts = [
        ("content_type", &p.content_type),
        ("content_encoding", &p.content_encoding),
        ("correlation_id", &p.correlation_id),
        ("reply_to", &p.reply_to),
        ("message_id", &p.message_id),
        ("type", &p.kind),
        ("user_id", &p.user_id),
        ("app_id", &p.app_id),
    ];
    for (key, text) in texts {
        let Some(text) = text.as_deref().filter(|t| !t.is_empty()) else {
            continue;
        };
        if text.len() > MAX_NAME {
            return Err(Error::Invalid(format!("{key} of {} bytes is longer than {MAX_NAME}", text.len())));
        }
        fields += 1;
        write_str(&mut out, key);
        write_str(&mut out, text);
    }
    let expiration = p.expiration.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
    // Presence is kept: 0 is not the same as absent.
    for (key, number) in
        [("expiration", expiration), ("timestamp", p.timestamp), ("priority", p.priority.map(u64::from))]
    {
        let Some(number) = number else { continue };
        fields += 1;
        write_str(&mut out, key);
        never(encode::write_uint(&mut out, number));
    }
    if fields == 0 {
        return Ok(Vec::new());
    }
    out[0] |= fields;
    Ok(out)
}

/// The fields of the headers that the broker sends, of all ops; one that is not there is zero or empty.
#[derive(Debug, Default)]
pub(crate) struct Header {
    pub(crate) ver: u64,
    pub(crate) server: Map,
    pub(crate) conn_id: String,
    pub(crate) heartbeat: u64,
    pub(crate) max_frame: u64,
    pub(crate) rid: u64,
    pub(crate) name: String,
    pub(crate) messages: u64,
    pub(crate) consumers: u64,
    pub(crate) code: u16,
    pub(crate) msg: String,
    pub(crate) fatal: bool,
    pub(crate) pause: bool,
    pub(crate) upto: u64,
    pub(crate) seq: u64,
    pub(crate) nack: bool,
    pub(crate) exchange: String,
    pub(crate) key: String,
    pub(crate) props: Properties,
    pub(crate) headers: Map,
    pub(crate) sub: u64,
    pub(crate) tag: u64,
    pub(crate) redelivered: bool,
    pub(crate) remaining: u64,
}

impl Header {
    pub(crate) fn decode(header: &[u8]) -> Result<Header, Error> {
        let mut h = Header::default();
        fields(header, |key, d| {
            match key {
                "ver" => h.ver = d.uint()?,
                "server" => h.server = d.map()?,
                "conn_id" => h.conn_id = d.str()?.into(),
                "heartbeat" => h.heartbeat = d.uint()?,
                "max_frame" => h.max_frame = d.uint()?,
                "rid" => h.rid = d.uint()?,
                "name" => h.name = d.str()?.into(),
                "messages" => h.messages = d.uint()?,
                "consumers" => h.consumers = d.uint()?,
                "code" => h.code = u16::try_from(d.uint()?).unwrap_or(u16::MAX),
                "msg" => h.msg = d.str()?.into(),
                "fatal" => h.fatal = d.bool()?,
                "pause" => h.pause = d.bool()?,
                "upto" => h.upto = d.uint()?,
                "seq" => h.seq = d.uint()?,
                "nack" => h.nack = d.bool()?,
                "exchange" => h.exchange = d.str()?.into(),
                "key" => h.key = d.str()?.into(),
                "props" => h.props = d.properties()?,
                "headers" => h.headers = d.map()?,
                "sub" => h.sub = d.uint()?,
                "tag" => h.tag = d.uint()?,
                "redelivered" => h.redelivered = d.bool()?,
                "remaining" => h.remaining = d.uint()?,
                _ => d.skip()?, // a key of a later version
            }
            Ok(())
        })?;
        Ok(h)
    }
}

/// Calls `each` with every key of a header; it has to take the value.
fn fields<'a>(
    header: &'a [u8],
    mut each: impl FnMut(&str, &mut Decoder<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut d = Decoder(header);
    if !header.is_empty() {
        for _ in 0..d.map_len()? {
            let key = d.str()?;
            each(key, &mut d)?;
        }
    }
    if d.0.is_empty() {
        return Ok(());
    }
    Err(Error::protocol("bytes after a header's map"))
}

/// Reads MessagePack off the front of its bytes.
struct Decoder<'a>(&'a [u8]);

fn malformed<E>(_: E) -> Error {
    Error::protocol("malformed MessagePack")
}

impl<'a> Decoder<'a> {
    fn map_len(&mut self) -> Result<u32, Error> {
        decode::read_map_len(&mut self.0).map_err(malformed)
    }

    fn uint(&mut self) -> Result<u64, Error> {
        decode::read_int(&mut self.0).map_err(malformed)
    }

    fn bool(&mut self) -> Result<bool, Error> {
        decode::read_bool(&mut self.0).map_err(malformed)
    }

    fn str(&mut self) -> Result<&'a str, Error> {
        let (s, rest) = decode::read_str_from_slice(self.0).map_err(malformed)?;
        self.0 = rest;
        Ok(s)
    }

    fn map(&mut self) -> Result<Map, Error> {
        let n = self.map_len()?;
        self.entries(n, 1)
    }

    fn entries(&mut self, n: u32, depth: usize) -> Result<Map, Error> {
        let mut map = Map::new();
        for _ in 0..n {
            let name = self.str()?.to_owned();
            map.insert(name, self.value(depth)?);
        }
        Ok(map)
    }

    fn bytes(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let (b, rest) = self.0.split_at_checked(n).ok_or_else(|| malformed(()))?;
        self.0 = rest;
        Ok(b)
    }

    fn value(&mut self, depth: usize) -> Result<Value, Error> {
        // The broker nests its own, such as x-death, a little deeper than what a client may send.
        if depth > MAX_DEPTH + 8 {
            return Err(Error::protocol("values are nested too deep"));
        }
        let all = self.0;
        Ok(match decode::read_marker(&mut self.0).map_err(malformed)? {
            Marker::Null => Value::Nil,
            Marker::True => Value::Bool(true),
            Marker::False => Value::Bool(false),
            Marker::F32 => Value::Float(f32::from_be_bytes(self.array()?).into()),
            Marker::F64 => Value::Float(f64::from_be_bytes(self.array()?)),
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                self.0 = all;
                Value::Str(self.str()?.to_owned())
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
                self.0 = all;
                let n = decode::read_bin_len(&mut self.0).map_err(malformed)?;
                Value::Bytes(self.bytes(n as usize)?.to_vec())
            }
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                self.0 = all;
                let n = decode::read_array_len(&mut self.0).map_err(malformed)?;
                let mut list = Vec::new(); // grows with what comes, not with what is promised
                for _ in 0..n {
                    list.push(self.value(depth + 1)?);
                }
                Value::Array(list)
            }
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
                self.0 = all;
                let n = self.map_len()?;
                Value::Map(self.entries(n, depth + 1)?)
            }
            Marker::Reserved
            | Marker::Ext8
            | Marker::Ext16
            | Marker::Ext32
            | Marker::FixExt1
            | Marker::FixExt2
            | Marker::FixExt4
            | Marker::FixExt8
            | Marker::FixExt16 => return Err(malformed(())),
            _ => {
                self.0 = all;
                Value::Int(decode::read_int(&mut self.0).map_err(malformed)?)
            }
        })
    }

    /// Passes over a value of any kind.
    fn skip(&mut self) -> Result<(), Error> {
        let mut values = 1_u64; // to pass over
        while values > 0 {
            values -= 1;
            let bytes = match decode::read_marker(&mut self.0).map_err(malformed)? {
                Marker::Null | Marker::True | Marker::False | Marker::FixPos(_) | Marker::FixNeg(_) => 0,
                Marker::U8 | Marker::I8 => 1,
                Marker::U16 | Marker::I16 => 2,
                Marker::U32 | Marker::I32 | Marker::F32 => 4,
                Marker::U64 | Marker::I64 | Marker::F64 => 8,
                Marker::FixStr(n) => n.into(),
                Marker::Str8 | Marker::Bin8 => u8::from_be_bytes(self.array()?).into(),
                Marker::Str16 | Marker::Bin16 => u16::from_be_bytes(self.array()?).into(),
                Marker::Str32 | Marker::Bin32 => u32::from_be_bytes(self.array()?) as usize,
                // An extension has a byte more, its type.
                Marker::FixExt1 => 2,
                Marker::FixExt2 => 3,
                Marker::FixExt4 => 5,
                Marker::FixExt8 => 9,
                Marker::FixExt16 => 17,
                Marker::Ext8 => 1 + usize::from(u8::from_be_bytes(self.array()?)),
                Marker::Ext16 => 1 + usize::from(u16::from_be_bytes(self.array()?)),
                Marker::Ext32 => (u32::from_be_bytes(self.array()?) as usize).saturating_add(1),
                Marker::FixArray(n) => {
                    values += u64::from(n);
                    0
                }
                Marker::Array16 => {
                    values += u64::from(u16::from_be_bytes(self.array()?));
                    0
                }
                Marker::Array32 => {
                    values += u64::from(u32::from_be_bytes(self.array()?));
                    0
                }
                Marker::FixMap(n) => {
                    values += 2 * u64::from(n);
                    0
                }
                Marker::Map16 => {
                    values += 2 * u64::from(u16::from_be_bytes(self.array()?));
                    0
                }
                Marker::Map32 => {
                    values += 2 * u64::from(u32::from_be_bytes(self.array()?));
                    0
                }
                Marker::Reserved => return Err(malformed(())),
            };
            self.bytes(bytes)?;
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (b, rest) = self.0.split_first_chunk().ok_or_else(|| malformed(()))?;
        self.0 = rest;
        Ok(*b)
    }

    fn properties(&mut self) -> Result<Properties, Error> {
        let mut p = Properties::default();
        for _ in 0..self.map_len()? {
            let key = self.str()?;
            let text = match key {
                "content_type" => &mut p.content_type,
                "content_encoding" => &mut p.content_encoding,
                "correlation_id" => &mut p.correlation_id,
                "reply_to" => &mut p.reply_to,
                "message_id" => &mut p.message_id,
                "type" => &mut p.kind,
                "user_id" => &mut p.user_id,
                "app_id" => &mut p.app_id,
                "expiration" => {
                    p.expiration = Some(std::time::Duration::from_millis(self.uint()?));
                    continue;
                }
                "timestamp" => {
                    p.timestamp = Some(self.uint()?);
                    continue;
                }
                "priority" => {
                    p.priority = Some(u8::try_from(self.uint()?).map_err(malformed)?);
                    continue;
                }
                _ => {
                    self.skip()?;
                    continue;
                }
            };
            *text = Some(self.str()?.to_owned());
        }
        Ok(p)
    }
}

#[cfg(test)]
mod tests;
