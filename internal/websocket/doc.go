// Package websocket carries a stream of messages over WebSocket (RFC 6455): each binary message of
// the wire is, in the stream, its length as a big-endian u32 and its bytes.
//
//	wire:    | header, 2 to 14 bytes | payload, masked by clients | header | payload | ...
//	stream:  | length : u32          | payload                    | length | payload | ...
//
// So one read of a socket with many small messages becomes one piece of stream, and one piece of
// stream one write. Decoder and Encoder are pure: no I/O. Dial is the client's side as a net.Conn.
//
// Extensions are not negotiated: compression of single small messages costs more than it saves.
package websocket
