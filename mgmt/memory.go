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
func (s *Server) memory() memory {
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
	m := memory{Memory: s.opt.Broker.Memory(), resident: int64(machine.resident), stacks: stacks}
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
	help string
}

// kinds are RabbitMQ's names, in its order. Those that have no meaning here are there for its tools.
func (m *memory) kinds() []memoryKind {
	return []memoryKind{
		{named{"connection_readers", m.Receiving}, "frames that are not received whole"},
		{named{"connection_writers", m.Sending}, "what waits for sockets"},
		{named{"connection_channels", m.Channels}, "channels, their unacked deliveries and pending confirms"},
		{named{"connection_other", m.Connections}, "connections"},
		{named{"queue_procs", m.Queues}, "queues"},
		{named{"queue_slave_procs", 0}, "mirrors, of which there are none"},
		{named{"quorum_queue_procs", 0}, "quorum queues, which are counted with the others"},
		{named{"quorum_queue_dlx_procs", 0}, "dead-lettering of quorum queues, likewise"},
		{named{"stream_queue_procs", 0}, "streams, of which there are none"},
		{named{"stream_queue_replica_reader_procs", 0}, "readers of streams, likewise"},
		{named{"stream_queue_coordinator_procs", 0}, "the coordinator of streams, likewise"},
		{named{"plugins", 0}, "plugins, of which there are none"},
		{named{"other_proc", m.stacks}, "stacks of goroutines"},
		{named{"metrics", 0}, "metrics, which are read when they are asked for"},
		{named{"mgmt_db", 0}, "the management database, likewise"},
		{named{"mnesia", m.Topology}, "exchanges and bindings"},
		{named{"metadata_store", 0}, "the metadata store, of which there is none"},
		{named{"metadata_store_ets", 0}, "tables of the metadata store, likewise"},
		{named{"quorum_ets", 0}, "tables of quorum queues, of which there are none"},
		{named{"other_ets", m.Journal}, "commit buffers of the journal"},
		{named{"binary", m.Messages}, "messages"},
		{named{"msg_index", m.Index}, "places of messages in queues"},
		{named{"code", m.program}, "the program"},
		{named{"atom", 0}, "atoms, of which there are none"},
		{named{"other_system", m.runtime}, "Go's runtime"},
		{named{"allocated_unused", m.unused}, "what is free, and garbage"},
		{named{"reserved_unallocated", m.reserved()}, "mapped files"},
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
