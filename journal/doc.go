// Package journal remembers: one append-only log for the whole broker, group commit, recovery.
//
// # Contract
//
// Records are appended between Lock and Unlock and copied into a commit buffer, so an append is a
// copy and never waits for the disk. One writer goroutine checksums, writes and syncs what has
// collected (see commit.go); while it syncs, the next batch collects, so a batch is as large as
// the load makes it and an idle journal syncs at once.
//
// A Position is the place of a record's first byte in an endless log: it grows with each record,
// is a multiple of 8, never 0, and never used for two committed records. A record at pos is safe
// when pos < Committed(): it survives a power failure, or with NoSync the end of the process.
// The positions of records that never became safe may be used again after a restart.
//
// Three duties of the caller:
//
//   - Free is called for each target of each message once what settles it was appended. A segment
//     whose targets are all freed is reused or removed when it is the oldest, so a target that is
//     never freed keeps all segments behind it, and one freed early loses its message. What a
//     record tells beyond that is kept up to the next checkpoint (Keep).
//   - Pending has no bound here: whoever appends watches it and pauses its publishers.
//   - The callbacks in Options run on the writer's goroutine: they must not block.
//
// Everything else may be called from any goroutine.
//
// # Format
//
// A segment is a file named by its number, 0000000001.seg on, and holds SegmentBytes of the log:
// the position of its byte at offset o is number x SegmentBytes + o. All integers are
// little-endian. docs/storage.md says what each kind of damage does.
//
//	offset                                           segment
//	0     +-------------------------------------------------+
//	      | header, 56 bytes, then zeros                    |
//	2048  +-------------------------------------------------+
//	      | the header again, then zeros                    |
//	4096  +-------------------------------------------------+
//	      | records, each padded with zeros to 8 bytes      |
//	      |   ...                                           |
//	      | seal                                            |
//	      +-------------------------------------------------+
//	      | anything: zeros or what the file held before    |
//	      +-------------------------------------------------+
//
//	header  0 "FireMQ-J"   8 version u32 = 1   12 header bytes u32 = 4096
//	       16 number u64  24 number of the segment before, 0 for the first u64
//	       32 SegmentBytes u64                 40 epoch u64, random
//	       48 checksum u64: XXH64 of the bytes 0 to 47
//
//	        0               8       12      16   17     20      24
//	record  +---------------+-------+-------+----+------+-------+----------------------+
//	        | checksum      |length |batch  |kind|count | check | body                 |
//	        +---------------+-------+-------+----+------+-------+----------------------+
//
//	checksum  XXH64 of the bytes from 8 to length, xor the segment's epoch
//	length    of the record in bytes, head included, padding not
//	batch     offset in the file, in units of 8, of the first record of this segment that was
//	          committed together with this one: all before it was safe when this was written
//	count     u24: targets or ranges in the body
//	check     of the bytes 8 to 19, the epoch and the record's position (see headCheck)
//
//	kind 1 publish   body: count x (queue u64, seq u64, expiry i64), then the payload
//	     2 settle    body: count x (queue u64, from u64, to u64)
//	     3 topology  body: the payload
//	     4 seal      the segment's last record: another segment follows
//	     5 closed    the last record of a clean shutdown, in a commit of its own
//	     6 moved     as publish: a message copied forward by compaction (see compact.go)
//	     7           reserved
//	     8 batch     body: count records that hold together, each with its own head
//
// A record lies in one segment. One that is larger than a segment has a file of its own, which
// is longer than SegmentBytes and takes as many numbers as it would fill; it is not recycled.
//
// A file that is reused keeps its old bytes until new records overwrite them. They are never
// taken for live ones because the epoch, new with each use, is part of both checks.
package journal
