package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// preset is a load with a name: values of flags that the command line does not give itself.
type preset struct {
	name, says string
	flags      map[string]string
}

// presets are the loads that BENCHMARKS.md compares brokers with, too.
var presets = []preset{
	{"transient", "one publisher, one consumer, 256 bytes in memory", nil},
	{"transient-4x4", "four of each on one queue", map[string]string{"publishers": "4", "consumers": "4"}},
	{"persistent", "one of each, on disk before it is confirmed", map[string]string{"persistent": "true"}},
	{"persistent-4x4", "four of each on one queue, on disk", map[string]string{"persistent": "true", "publishers": "4", "consumers": "4"}},
	{"persistent-1k", "one of each, 1 KiB, on disk", map[string]string{"persistent": "true", "size": "1024"}},
	{"fanout", "every message to ten queues, on disk", map[string]string{"persistent": "true", "exchange-type": "fanout", "queues": "10", "consumers": "10"}},
	{"queues", "a hundred queues, ten of each, on disk", map[string]string{"persistent": "true", "queues": "100", "publishers": "10", "consumers": "10"}},
	{"latency", "1,000 messages a second in memory", map[string]string{"rate": "1000"}},
	{"latency-persistent", "1,000 messages a second, on disk", map[string]string{"rate": "1000", "persistent": "true"}},
	{"drain", "a backlog of two million on disk, then one consumer", map[string]string{"persistent": "true", "backlog": "2000000", "drain": "true", "warmup": "0"}},
}

// applyPreset sets the flags of a preset that the command line has not set.
func applyPreset(name string, f *pflag.FlagSet) error {
	for _, p := range presets {
		if p.name != name {
			continue
		}
		for flag, value := range p.flags {
			if f.Changed(flag) {
				continue
			}
			if err := f.Set(flag, value); err != nil {
				panic(fmt.Sprintf("BUG: preset %s: --%s %s: %v", name, flag, value, err))
			}
		}
		return nil
	}
	return usagef("there is no preset %q: %s", name, presetNames())
}

func presetNames() string {
	names := make([]string, len(presets))
	for i, p := range presets {
		names[i] = p.name
	}
	return strings.Join(names, ", ")
}

// presetTable is for the help.
func presetTable() string {
	var b strings.Builder
	for _, p := range presets {
		fmt.Fprintf(&b, "  %-19s %s\n", p.name, p.says)
	}
	return b.String()
}
