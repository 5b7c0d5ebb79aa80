package loop

import (
	"io"
	"sync/atomic"
	"syscall"
	"testing"
)

// BenchmarkStage stages and unlocks one message of 256 bytes; the writes, one for 256 of them,
// go nowhere.
func BenchmarkStage(b *testing.B) {
	f := newFake(&funcs{}, Options{})
	f.discard = true
	msg := make([]byte, 256)
	b.ReportAllocs()
	b.SetBytes(256)
	i := 0
	for b.Loop() {
		f.Lock()
		f.Put(append(f.Tail(256), msg...))
		f.Unlock()
		if i++; i%256 == 0 {
			f.Flush()
		}
	}
	f.dropOutbox(false)
}

// BenchmarkRelay has one client send frames of 256 bytes to another as fast as it can, 64 a
// write; an operation is one frame. cpu-ns/op is the time of the whole process, clients included.
func BenchmarkRelay(b *testing.B) {
	for name, opt := range map[string]Options{
		"gnet":       {Log: quiet},
		"goroutines": {Log: quiet, Goroutines: true},
	} {
		b.Run(name, func(b *testing.B) {
			s := start(b, opt)
			conns := make(chan *Conn, 2)
			var to, from atomic.Pointer[Conn]
			addr := listen(b, s, func(c *Conn) Session {
				conns <- c
				return &funcs{
					data: func(p []byte) (n, want int) {
						out := to.Load()
						flush := false
						for ; len(p)-n >= 256; n += 256 {
							out.Lock()
							out.Put(append(out.Tail(256), p[n:n+256]...))
							if out.Unlock() {
								flush = true
							}
						}
						if flush {
							out.Flush()
						}
						if !out.Writable() {
							c.Pause(1)
							if out.Writable() {
								c.Resume(1)
							}
						}
						return n, 256
					},
					drained: func() { from.Load().Resume(1) },
				}
			})
			sink := dial(b, addr)
			to.Store(wait(b, conns, "connection"))
			source := dial(b, addr)
			from.Store(wait(b, conns, "connection"))
			burst := make([]byte, 64*256)
			buf := make([]byte, 64<<10)
			send := func(frames int) {
				for ; frames > 0; frames -= 64 {
					source.Write(burst[:min(frames, 64)*256])
				}
			}
			go send(100_000) // fills the pools
			io.ReadFull(sink, make([]byte, 100_000*256))
			b.ReportAllocs()
			b.SetBytes(256)
			b.ResetTimer()
			before := cpu()
			go send(b.N)
			for left := b.N * 256; left > 0; {
				n, err := sink.Read(buf)
				if err != nil {
					b.Fatal(err)
				}
				left -= n
			}
			b.StopTimer()
			b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpu is the processor time this process has used, in ns.
func cpu() int64 {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}
