//! What a Rust application sees of an AMQP 0-9-1 broker: the tests are in `tests/`.
