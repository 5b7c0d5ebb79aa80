use std::collections::BTreeMap;

/// Arguments of queues, exchanges, bindings and subscriptions, and headers of messages.
pub type Map = BTreeMap<String, Value>;

/// A value of a [`Map`]: what an AMQP field table holds.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// No value.
    Nil,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Str(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A list of values.
    Array(Vec<Value>),
    /// Values with names.
    Map(Map),
}

impl Value {
    /// The text, if it is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(s) => Some(s),
            _ => None,
        }
    }

    /// The integer, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(i) => Some(*i),
            _ => None,
        }
    }
}

macro_rules! from {
    ($($from:ty => |$v:ident| $value:expr),+ $(,)?) => {
        $(impl From<$from> for Value {
            fn from($v: $from) -> Self {
                $value
            }
        })+
    };
}

from! {
    bool => |v| Value::Bool(v),
    i32 => |v| Value::Int(v.into()),
    u32 => |v| Value::Int(v.into()),
    i64 => |v| Value::Int(v),
    f64 => |v| Value::Float(v),
    &str => |v| Value::Str(v.into()),
    String => |v| Value::Str(v),
    Vec<u8> => |v| Value::Bytes(v),
    Vec<Value> => |v| Value::Array(v),
    Map => |v| Value::Map(v),
}
