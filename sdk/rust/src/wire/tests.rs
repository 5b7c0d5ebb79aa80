use serde_json::Value as Json;

use super::*;

const FRAMES: &str = include_str!("../../../../spec/test-vectors/frames.json");
const ERRORS: &str = include_str!("../../../../spec/test-vectors/errors.json");

fn vectors(text: &str) -> Vec<Json> {
    serde_json::from_str(text).unwrap()
}

fn hex(v: &Json) -> Vec<u8> {
    let s = v.as_str().unwrap();
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
}

/// What a header of the vectors says: `$bin` and `$int` stand for what JSON does not have.
fn meaning(v: &Json) -> Value {
    match v {
        Json::Null => Value::Nil,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => n.as_i64().map_or_else(|| Value::Float(n.as_f64().unwrap()), Value::Int),
        Json::String(s) => Value::Str(s.clone()),
        Json::Array(a) => Value::Array(a.iter().map(meaning).collect()),
        Json::Object(o) => match (o.get("$bin"), o.get("$int")) {
            (Some(bin), None) => Value::Bytes(hex(bin)),
            (None, Some(int)) => Value::Int(int.as_str().unwrap().parse().unwrap()),
            _ => Value::Map(o.iter().map(|(k, v)| (k.clone(), meaning(v))).collect()),
        },
    }
}

fn generic(header: &[u8]) -> Result<Map, Error> {
    generic_without(header, &Json::Null)
}

/// The header without the keys that a reader ignores.
fn generic_without(header: &[u8], ignored: &Json) -> Result<Map, Error> {
    let mut map = Map::new();
    fields(header, |key, d| {
        if ignored.as_array().is_some_and(|keys| keys.iter().any(|k| k == key)) {
            return d.skip();
        }
        map.insert(key.into(), d.value(1)?);
        Ok(())
    })?;
    Ok(map)
}

#[test]
fn every_vector_decodes_to_its_header() {
    let mut ops = std::collections::BTreeSet::new();
    for v in vectors(FRAMES) {
        let name = v["name"].as_str().unwrap();
        let mut buf = BytesMut::from(&hex(&v["frame"])[..]);
        let f = next_frame(&mut buf, MAX_BEFORE_WELCOME).unwrap().expect(name);
        assert!(buf.is_empty(), "{name}");
        assert_eq!((u64::from(f.op), &f.payload[..]), (v["op"].as_u64().unwrap(), &hex(&v["payload"])[..]), "{name}");
        let got = generic_without(&f.header, &v["ignored"]).expect(name);
        Header::decode(&f.header)
            .map(drop)
            .or_else(|e| if v["op_name"] == "subscribe" { Ok(()) } else { Err(e) })
            .expect(name);
        let Value::Map(want) = meaning(&v["header"]) else { panic!("{name}") };
        assert_eq!(got, want, "{name}");
        assert_eq!(generic(&encode_map(&got).unwrap()).unwrap(), got, "{name} encoded again");
        ops.insert(f.op);
    }
    assert_eq!(ops.len(), 27, "ops with a vector");
}

#[test]
fn headers_from_the_broker_have_their_fields() {
    for v in vectors(FRAMES) {
        let (name, want) = (v["name"].as_str().unwrap(), &v["header"]);
        if !["welcome", "ok", "error", "flow", "confirm", "return", "deliver", "cancelled", "get_ok", "close"]
            .contains(&v["op_name"].as_str().unwrap())
        {
            continue;
        }
        let f = next_frame(&mut BytesMut::from(&hex(&v["frame"])[..]), MAX_BEFORE_WELCOME).unwrap().expect(name);
        let h = Header::decode(&f.header).unwrap();
        for (key, got) in [
            ("ver", h.ver),
            ("heartbeat", h.heartbeat),
            ("max_frame", h.max_frame),
            ("rid", h.rid),
            ("messages", h.messages),
            ("consumers", h.consumers),
            ("code", h.code.into()),
            ("upto", h.upto),
            ("seq", h.seq),
            ("sub", h.sub),
            ("tag", h.tag),
            ("remaining", h.remaining),
        ] {
            assert_eq!(got, want[key].as_u64().unwrap_or(0), "{name}: {key}");
        }
        for (key, got) in [("fatal", h.fatal), ("pause", h.pause), ("nack", h.nack), ("redelivered", h.redelivered)] {
            assert_eq!(got, want[key].as_bool().unwrap_or(false), "{name}: {key}");
        }
        for (key, got) in
            [("conn_id", &h.conn_id), ("name", &h.name), ("msg", &h.msg), ("exchange", &h.exchange), ("key", &h.key)]
        {
            assert_eq!(got, want[key].as_str().unwrap_or(""), "{name}: {key}");
        }
        let map = |key: &str| match want.get(key).map(meaning) {
            Some(Value::Map(m)) => m,
            _ => Map::new(),
        };
        assert_eq!(h.headers, map("headers"), "{name}");
        assert_eq!(generic(&encode_properties(&h.props).unwrap()).unwrap(), map("props"), "{name}");
    }
}

#[test]
fn a_part_of_a_frame_asks_for_more() {
    for v in vectors(FRAMES) {
        let frame = hex(&v["frame"]);
        for cut in 0..frame.len() {
            let mut buf = BytesMut::from(&frame[..cut]);
            assert!(next_frame(&mut buf, MAX_BEFORE_WELCOME).unwrap().is_none(), "{} at {cut}", v["name"]);
            assert_eq!(buf.len(), cut, "{}: bytes are gone", v["name"]);
        }
    }
}

#[test]
fn what_is_malformed_is_an_error() {
    // Limits and fields of clients, which this one never receives.
    let others = [
        "payload where there is none",
        "float for uint",
        "int for bool",
        "array for map, rare op",
        "str for bool, rare op",
        "key too long",
        "property too long",
        "header name too long",
    ];
    for v in vectors(ERRORS) {
        let name = v["name"].as_str().unwrap();
        let got = next_frame(&mut BytesMut::from(&hex(&v["frame"])[..]), MAX_BEFORE_WELCOME)
            .map(|f| Header::decode(&f.expect(name).header).map(drop));
        assert_eq!(matches!(got, Ok(Ok(()))), others.contains(&name), "{name}: {got:?}");
    }
}

#[test]
fn headers_of_all_bytes_do_not_panic() {
    let mut x = 4711_u64; // a xorshift: the same bytes each time
    for _ in 0..20_000 {
        let mut b = Vec::new();
        for _ in 0..x % 40 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            b.push((x >> 32) as u8);
        }
        x = x.wrapping_add(1);
        drop((Header::decode(&b), generic(&b), Decoder(&b).skip()));
    }
    // Long promises cost nothing.
    for lead in
        [&[0xdd_u8, 0xff, 0xff, 0xff, 0xff][..], &[0xdf, 0xff, 0xff, 0xff, 0xff], &[0xc6, 0xff, 0xff, 0xff, 0xff]]
    {
        let mut b = vec![0x81, 0xa1, b'x'];
        b.extend_from_slice(lead);
        assert!(generic(&b).is_err());
    }
    let deep = [&[0x81, 0xa1, b'x'][..], &[0x91; 5000]].concat();
    assert!(generic(&deep).is_err());
}

#[test]
fn a_value_that_is_passed_over_is_as_long_as_one_that_is_read() {
    for v in vectors(FRAMES) {
        let mut b = hex(&v["frame"])[4..].to_vec();
        let hlen = u32::from_be_bytes(b[1..5].try_into().unwrap()) as usize;
        b.drain(..5);
        b.truncate(hlen);
        if !b.is_empty() {
            let mut d = Decoder(&b);
            d.skip().unwrap();
            assert!(d.0.is_empty(), "{}", v["name"]);
            assert!(Decoder(&b[..hlen - 1]).skip().is_err(), "{}", v["name"]);
        }
    }
}

#[test]
fn a_publish_can_be_numbered_again() {
    let props = Properties { priority: Some(0), ..Properties::default() };
    let mut frame = publish("e", "k", true, true, &encode_properties(&props).unwrap(), &[], b"body");
    for seq in [1, u64::MAX >> 1, 7] {
        set_seq(&mut frame, seq);
        let f = next_frame(&mut BytesMut::from(&frame[..]), MAX_BEFORE_WELCOME).unwrap().unwrap();
        let h = Header::decode(&f.header).unwrap();
        assert_eq!(
            (h.seq, &*h.exchange, &*h.key, h.props, &f.payload[..]),
            (seq, "e", "k", props.clone(), &b"body"[..])
        );
    }
}

#[test]
fn what_the_broker_would_refuse_is_not_sent() {
    let mut deep = Value::Nil;
    for _ in 0..MAX_DEPTH {
        deep = Value::Array(vec![deep]);
    }
    let map = |name: &str, v| Map::from([(name.to_owned(), v)]);
    assert!(encode_map(&map("x", deep.clone())).is_err());
    assert!(encode_map(&map(&"n".repeat(MAX_NAME + 1), Value::Nil)).is_err());
    let Value::Array(mut inner) = deep else { unreachable!() };
    assert!(encode_map(&map("x", inner.remove(0))).is_ok());
    assert!(encode_properties(&Properties { app_id: Some("a".repeat(256)), ..Default::default() }).is_err());
}
