//go:build race

package pool

import "sync/atomic"

var live atomic.Int64

func lent(n int64) { live.Add(n) }

// Live reports the buffers lent and not yet released: counted in race builds only, 0 otherwise.
func Live() int64 { return live.Load() }
