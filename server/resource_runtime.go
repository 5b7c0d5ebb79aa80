//go:build !linux

package server

import "runtime/metrics"

// runtimeMemory is what the Go runtime has of the system: the resident memory, but for the program's own
// pages, where the system does not tell it.
func runtimeMemory() (int64, error) {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64()), nil
}
