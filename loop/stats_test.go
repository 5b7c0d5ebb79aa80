package loop

import (
	"io"
	"testing"
	"time"
)

// TestStats: what connections did is counted, also after they ended, and nothing of the engine's own check.
func TestStats(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		opt.Loops = 2
		s := start(t, opt)
		st := s.Stats()
		if len(st.Loops) != 3 || st.Received != 0 || st.Sent != 0 {
			t.Fatalf("at the start: %+v", st)
		}
		began := time.Now()
		conns := make(chan *Conn, 2)
		addr := listen(t, s, func(c *Conn) Session { conns <- c; return echo(c) })
		const rounds, clients = 1000, 2
		for range clients {
			nc := dial(t, addr)
			wait(t, conns, "connection")
			b := make([]byte, 10)
			for range rounds {
				nc.Write(b)
				if _, err := io.ReadFull(nc, b); err != nil {
					t.Fatal(err)
				}
			}
		}
		check := func(when string) {
			t.Helper()
			// A sender counts what the peer may have already.
			eventually(t, "all is counted", func() bool { return s.Stats().Sent == clients*rounds*10 })
			st := s.Stats()
			turns, busy := uint64(0), time.Duration(0)
			for i, l := range st.Loops {
				if opt.Goroutines != (i == 2) && l != (LoopStats{}) {
					t.Errorf("%s: loop %d: %+v", when, i, l)
				}
				turns += l.Turns
				busy += l.Busy
			}
			// A write of 10 bytes comes in one read or in more.
			if turns < clients*rounds || turns > clients*rounds*10 {
				t.Errorf("%s: %d turns, want %d", when, turns, clients*rounds)
			}
			if busy <= 0 || busy > 3*timed*time.Since(began) {
				t.Errorf("%s: busy for %v of %v", when, busy, time.Since(began))
			}
			if st.Received != clients*rounds*10 || st.Sent != st.Received || st.Writes < clients*rounds {
				t.Errorf("%s: %d bytes received, %d sent in %d writes", when, st.Received, st.Sent, st.Writes)
			}
		}
		check("open")
		for c := range s.Conns() {
			c.Abort(nil)
		}
		eventually(t, "the connections end", func() bool { return s.Len() == 0 })
		check("closed")
	})
}
