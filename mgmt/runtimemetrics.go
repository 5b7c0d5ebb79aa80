package mgmt

import (
	"bytes"
	"strings"

	"github.com/VictoriaMetrics/metrics"
)

// runtimeHelp has the families of the Go runtime and of the process, with their help. A system has some of them.
var runtimeHelp = map[string]string{
	"go_cgo_calls_count":                  "Calls from Go to C",
	"go_cpu_count":                        "CPUs that the process may use",
	"go_gc_cpu_seconds_total":             "CPU time that collecting garbage took, estimated",
	"go_gc_duration_seconds":              "How long the latest garbage collections stopped the program",
	"go_gc_forced_count":                  "Garbage collections that the program asked for",
	"go_gc_mark_assist_cpu_seconds_total": "CPU time that goroutines gave to garbage collections, estimated",
	"go_gc_pauses_seconds":                "How long garbage collections stopped the program, each pause",
	"go_gomaxprocs":                       "How many goroutines may run at once",
	"go_goroutines":                       "Goroutines that exist",
	"go_info":                             "Version of Go",
	"go_info_ext":                         "Compiler and platform of Go",
	"go_memlimit_bytes":                   "Memory limit of the Go runtime, GOMEMLIMIT",
	"go_memstats_alloc_bytes":             "Heap objects that exist, in bytes",
	"go_memstats_alloc_bytes_total":       "Bytes of all heap objects that were allocated",
	"go_memstats_buck_hash_sys_bytes":     "Memory of the profiler's tables",
	"go_memstats_frees_total":             "Heap objects that were freed",
	"go_memstats_gc_cpu_fraction":         "Part of the CPU time that collecting garbage took since the start",
	"go_memstats_gc_sys_bytes":            "Memory of what the garbage collector keeps",
	"go_memstats_heap_alloc_bytes":        "Heap objects that exist, in bytes",
	"go_memstats_heap_idle_bytes":         "Memory of the heap that holds no objects",
	"go_memstats_heap_inuse_bytes":        "Memory of the heap that holds objects",
	"go_memstats_heap_objects":            "Heap objects that exist",
	"go_memstats_heap_released_bytes":     "Memory of the heap that was given back to the system",
	"go_memstats_heap_sys_bytes":          "Memory of the heap as the system gave it",
	"go_memstats_last_gc_time_seconds":    "When the last garbage collection ended, in Unix time",
	"go_memstats_lookups_total":           "Pointers that the runtime looked up; always 0",
	"go_memstats_mallocs_total":           "Heap objects that were allocated",
	"go_memstats_mcache_inuse_bytes":      "Memory of the allocator's caches in use",
	"go_memstats_mcache_sys_bytes":        "Memory of the allocator's caches as the system gave it",
	"go_memstats_mspan_inuse_bytes":       "Memory of the allocator's spans in use",
	"go_memstats_mspan_sys_bytes":         "Memory of the allocator's spans as the system gave it",
	"go_memstats_next_gc_bytes":           "Size of the heap at which the next garbage collection begins",
	"go_memstats_other_sys_bytes":         "Memory of the runtime's other parts",
	"go_memstats_stack_inuse_bytes":       "Memory of goroutines' stacks in use",
	"go_memstats_stack_sys_bytes":         "Memory of goroutines' stacks as the system gave it",
	"go_memstats_sys_bytes":               "Memory that the Go runtime has of the system",
	"go_mutex_wait_seconds_total":         "How long goroutines waited for locks",
	"go_scavenge_cpu_seconds_total":       "CPU time that giving memory back to the system took, estimated",
	"go_sched_latencies_seconds":          "How long goroutines that could run waited for it",
	"go_threads":                          "Threads of the system that were made",

	"process_cgroup_cpu_throttled_seconds_total":    "How long the container's CPU limit stopped the process",
	"process_cpu_seconds_system_total":              "CPU time that the process spent in the kernel",
	"process_cpu_seconds_total":                     "CPU time of the process",
	"process_cpu_seconds_user_total":                "CPU time that the process spent outside the kernel",
	"process_io_read_bytes_total":                   "Bytes that the process read, from caches, too",
	"process_io_read_syscalls_total":                "Calls by which the process read",
	"process_io_storage_read_bytes_total":           "Bytes that the process read from disks",
	"process_io_storage_written_bytes_total":        "Bytes that the process had written to disks",
	"process_io_write_syscalls_total":               "Calls by which the process wrote",
	"process_io_written_bytes_total":                "Bytes that the process wrote, to caches, too",
	"process_major_pagefaults_total":                "Pages that had to be read from disk",
	"process_max_fds":                               "Limit of open files",
	"process_minor_pagefaults_total":                "Pages that came without the disk",
	"process_num_threads":                           "Threads of the process",
	"process_open_fds":                              "Open files",
	"process_pagefaults_total":                      "Pages that had to be brought",
	"process_pressure_cpu_stalled_seconds_total":    "How long all tasks of the container waited for the CPU",
	"process_pressure_cpu_waiting_seconds_total":    "How long some task of the container waited for the CPU",
	"process_pressure_io_stalled_seconds_total":     "How long all tasks of the container waited for the disk",
	"process_pressure_io_waiting_seconds_total":     "How long some task of the container waited for the disk",
	"process_pressure_memory_stalled_seconds_total": "How long all tasks of the container waited for memory",
	"process_pressure_memory_waiting_seconds_total": "How long some task of the container waited for memory",
	"process_resident_memory_anon_bytes":            "Resident memory that is no file's",
	"process_resident_memory_bytes":                 "Resident memory",
	"process_resident_memory_file_bytes":            "Resident memory of files",
	"process_resident_memory_peak_bytes":            "Most resident memory there was",
	"process_resident_memory_shared_bytes":          "Resident memory shared with others",
	"process_start_time_seconds":                    "Start time of the process since unix epoch in seconds.",
	"process_virtual_memory_bytes":                  "Address space in use",
	"process_virtual_memory_max_bytes":              "Limit of the address space",
	"process_virtual_memory_peak_bytes":             "Most address space there was in use",
}

// runtimeKind is the type of a family of the runtime or the process, by its name.
func runtimeKind(name string) string {
	switch {
	case name == "go_gc_duration_seconds":
		return "summary"
	case name == "go_gc_pauses_seconds", name == "go_sched_latencies_seconds":
		return "histogram"
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_count"): // as a part of a histogram, which linters then miss
		return "untyped"
	}
	return "gauge"
}

// writeRuntime writes what the Go runtime and the process say of themselves.
func (e *exposition) writeRuntime() {
	var b bytes.Buffer
	metrics.WriteProcessMetrics(&b)
	last := ""
	for line := range bytes.Lines(b.Bytes()) {
		name := string(line[:max(0, bytes.IndexAny(line, "{ "))])
		if _, known := runtimeHelp[name]; !known {
			for _, part := range [...]string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, part)
			}
		}
		if name != last {
			e.family(name, runtimeKind(name), runtimeHelp[name])
			last = name
		}
		e.buf = append(e.buf, line...)
	}
}
