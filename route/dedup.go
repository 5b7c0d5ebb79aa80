package route

import (
	"fmt"
	"strconv"
	"sync"

	"github.com/firemq/firemq/broker/dedup"
	"github.com/firemq/firemq/frames/table"
)

// dedupIndex is a fanout that matches the first of all messages with the same key, and those without one.
// The key is known from the moment at which it is matched, whatever becomes of the message.
type dedupIndex[Q comparable] struct {
	fanoutIndex[Q]

	mu     sync.Mutex    // a leaf, below the lock of the exchange's shard
	window *dedup.Window // guarded by mu
	seq    uint64        // of its latest key; guarded by mu
}

// cacheTTL is the header by which a message says how long its key is known, and the exchange's argument.
const cacheTTL = "x-cache-ttl"

func (x *dedupIndex[Q]) match(w *walk[Q]) bool {
	return x.first(w.headers, w.t.Now()) && x.fanoutIndex.match(w)
}

// first says whether a message is no repetition, and remembers it.
func (x *dedupIndex[Q]) first(headers table.Table, now int64) bool {
	v, _ := headers.Get(dedup.DefaultHeader)
	key := dedup.KeyIn(v)
	if key == (dedup.Key{}) {
		return true
	}
	ttl := int64(0)
	if v, ok := headers.Get(cacheTTL); ok {
		ttl, _ = positive(v)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, known := x.window.Find(key, now); known {
		return false
	}
	x.seq++
	x.window.AddFor(key, dedup.Original{Seq: x.seq, Pos: dedup.Never}, now, ttl)
	return true
}

// newWindow reads the arguments of an exchange. The texts are the plugin's.
func newWindow(args table.Table) (*dedup.Window, error) {
	cfg := dedup.Config{On: true, By: dedup.DefaultHeader, TTL: dedup.Forever}
	size, _ := args.Get("x-cache-size")
	switch n, ok := positive(size); {
	case !ok:
		return nil, &ArgumentError{"Missing or invalid argument, 'x-cache-size' must be an integer greater than 0"}
	case n > dedup.MaxSize:
		return nil, &ArgumentError{fmt.Sprintf("Invalid argument, 'x-cache-size' must be %d at most", dedup.MaxSize)}
	default:
		cfg.Size = int(n)
	}
	if v, ok := args.Get(cacheTTL); ok {
		if cfg.TTL, ok = positive(v); !ok {
			return nil, &ArgumentError{"Invalid argument, 'x-cache-ttl' must be an integer greater than 0"}
		}
	}
	switch v, ok := args.Get("x-cache-persistence"); {
	case !ok || v.Kind == table.String && v.Str == "memory":
	case v.Kind == table.String && v.Str == "disk":
		return nil, &ArgumentError{"Invalid argument, 'x-cache-persistence' must be 'memory': 'disk' is not supported"}
	default:
		return nil, &ArgumentError{"Invalid argument, 'x-cache-persistence' must be either 'disk' or 'memory'"}
	}
	return dedup.New(cfg), nil
}

// positive reads an integer greater than 0, which may be spelt as a string.
func positive(v table.Value) (n int64, ok bool) {
	if v.Kind == table.String {
		n, err := strconv.ParseInt(v.Str, 10, 64)
		return n, err == nil && n > 0
	}
	n, ok = v.AsInt()
	return n, ok && n > 0
}
