//go:build !linux

package bench

import (
	"errors"
	"time"
)

// usage is what a process and everything it started have used.
type usage struct {
	cpu time.Duration
	rss int64
}

func usageOf(int) (usage, error) {
	return usage{}, errors.New("the CPU time of the broker can be measured on Linux only; leave the process id out")
}

// ownCPU is not known here.
func ownCPU() time.Duration { return 0 }
