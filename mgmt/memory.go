package mgmt

import (
	"runtime/metrics"

	"github.com/firemq/firemq/broker"
)

// memory is what the resident memory is used for, in bytes.
type memory struct {
	broker.Memory
	resident int64

	program int64 // code and constants
	mapped  int64 // pages of other files: of the journal, while a backlog is read from it
	stacks  int64 // of goroutines
	runtime int64 // what Go's runtime keeps for itself
	unused  int64 // free, or garbage that was not collected yet
}

// programPages is how much of the mapped files is the program itself, in bytes, about.
const programPages = 12 << 20

// goMemory are what Go's runtime tells of itself: what is in use, by whom, and what is free.
var goMemory = [...]string{
	"/memory/classes/total:bytes", "/memory/classes/heap/released:bytes", // of the total these are not resident
	"/memory/classes/heap/objects:bytes", "/memory/classes/heap/unused:bytes", "/memory/classes/heap/free:bytes",
	"/memory/classes/heap/stacks:bytes", "/memory/classes/os-stacks:bytes",
}

// memory reads it now.
func (s *Server) memory() memory { return s.memoryOf(s.opt.Broker.Memory()) }

// memoryOf is likewise with what the broker's own use is.
func (s *Server) memoryOf(own broker.Memory) memory {
	var samples [len(goMemory)]metrics.Sample
	for i, name := range goMemory {
		samples[i].Name = name
	}
	metrics.Read(samples[:])
	of := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
	taken := of(0) - of(1)
	idle, stacks := of(3)+of(4), of(5)+of(6)
	objects := of(2)

	machine := s.machine()
	m := memory{Memory: own, resident: int64(machine.resident), stacks: stacks}
	m.runtime = taken - objects - idle - stacks
	// Objects that are none of the broker's are garbage, but for some tens of kilobytes.
	m.unused = idle + max(0, objects-m.Sum())
	m.mapped = max(0, int64(machine.mapped)-programPages)
	m.program = max(0, m.resident-m.mapped-taken)
	return m
}

// named is one number of a list.
type named struct {
	name  string
	bytes int64
}

// memoryKind is one of RabbitMQ's kinds of memory.
type memoryKind struct {
	named
	metric, help string // of /metrics/memory-breakdown; "": it is not there
}

// kinds are RabbitMQ's names, in its order, and what they are for here. Those that have no meaning are there for
// its tools.
func (m *memory) kinds() []memoryKind {
	return []memoryKind{
		{named{"connection_readers", m.Receiving}, "client_connection_reader", "Client connection reader processes footprint in bytes"},
		{named{"connection_writers", m.Sending}, "client_connection_writer", "Client connection writer processes footprint in bytes"},
		{named{"connection_channels", m.Channels}, "client_connection_channel", "Client connection channel processes footprint in bytes"},
		{named{"connection_other", m.Connections}, "client_connection_other", "Client connection other processes footprint in bytes"},
		{named{"queue_procs", m.Queues}, "classic_queue_erlang_process", "Classic queue processes footprint in bytes"},
		{named{"queue_slave_procs", 0}, "", ""},
		{named{"quorum_queue_procs", 0}, "quorum_queue_erlang_process", "Quorum queue processes footprint in bytes"},
		{named{"quorum_queue_dlx_procs", 0}, "quorum_queue_dlx_erlang_process", "Quorum queue DLX worker processes footprint in bytes"},
		{named{"stream_queue_procs", 0}, "stream_erlang_process", "Stream processes footprint in bytes"},
		{named{"stream_queue_replica_reader_procs", 0}, "stream_replica_reader_erlang_process", "Stream replica reader processes footprint in bytes"},
		{named{"stream_queue_coordinator_procs", 0}, "stream_coordinator_erlang_process", "Stream coordinator processes footprint in bytes"},
		{named{"plugins", 0}, "plugin", "Total plugin footprint in bytes"},
		{named{"other_proc", m.stacks}, "other_erlang_process", "Other processes footprint in bytes"},
		{named{"metrics", 0}, "metrics", "Metric table footprint in bytes"},
		{named{"mgmt_db", 0}, "management_stats_db", "Management stats database footprint in bytes"},
		{named{"mnesia", m.Topology}, "classic_metadata_store", "Classic metadata store footprint in bytes"},
		{named{"metadata_store", 0}, "modern_metadata_store", "Modern metadata store footprint in bytes"},
		{named{"metadata_store_ets", 0}, "modern_metadata_store_ets_table", "Modern metadata store ETS tables footprint in bytes"},
		{named{"quorum_ets", 0}, "quorum_queue_ets_table", "Quorum queue ETS tables footprint in bytes"},
		{named{"other_ets", m.Journal}, "other_ets_table", "Other ETS tables footprint in bytes"},
		{named{"binary", m.Messages}, "binary_heap", "Binary heap size in bytes"},
		{named{"msg_index", m.Index}, "message_index", "Message index footprint in bytes"},
		{named{"code", m.program}, "code_module", "Code module memory footprint"},
		{named{"atom", 0}, "atom_table", "Atom table size in bytes"},
		{named{"other_system", m.runtime}, "other_system", "Other runtime footprint in bytes"},
		{named{"allocated_unused", m.unused}, "runtime_allocated_unused", "Runtime allocated but unused blocks size in bytes"},
		{named{"reserved_unallocated", m.reserved()}, "runtime_reserved_unallocated", "Runtime reserved but unallocated blocks size in bytes"},
	}
}

// allocated is all but what the system has reserved beside it.
func (m *memory) allocated() int64 {
	return m.Sum() + m.program + m.stacks + m.runtime + m.unused
}

func (m *memory) reserved() int64 { return max(m.mapped, m.resident-m.allocated()) }

func (m *memory) totals() []named {
	return []named{{"erlang", m.allocated() - m.unused}, {"rss", m.resident}, {"allocated", m.allocated()}}
}

// breakdown is RabbitMQ's shape of it.
func (m memory) breakdown() map[string]any {
	total := make(map[string]int64)
	for _, t := range m.totals() {
		total[t.name] = t.bytes
	}
	b := map[string]any{"total": total, "strategy": "rss"}
	for _, k := range m.kinds() {
		b[k.name] = k.bytes
	}
	return b
}

// binaries are who holds messages and frames, in bytes: RabbitMQ's names for what Erlang's processes refer to.
func (s *Server) binaries() map[string]int64 {
	m := s.opt.Broker.Memory()
	held := map[string]int64{"queue_procs": m.Messages, "connection_readers": m.Receiving, "connection_writers": m.Sending}
	for _, none := range [...]string{
		"connection_channels", "connection_other", "queue_slave_procs", "quorum_queue_procs", "quorum_queue_dlx_procs",
		"stream_queue_procs", "stream_queue_replica_reader_procs", "stream_queue_coordinator_procs", "metadata_store", "plugins",
		"mgmt_db", "msg_index", "other",
	} {
		held[none] = 0
	}
	return held
}
