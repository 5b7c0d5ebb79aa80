package journal

import (
	"fmt"
	"os"
	"testing"

	"github.com/firemq/firemq/internal/vfs"
)

var body300 = make([]byte, 300)

// appender opens a journal without goroutines whose commits are dropped: the cost of appending.
func appender(t testing.TB) *Journal {
	j, _ := mustOpen(t, Options{FS: vfs.NewMem(), manual: true})
	return j
}

// drop gives the batch's chunks back as a commit would, and starts cur over.
func (j *Journal) drop() {
	for _, c := range j.batch {
		if len(j.spares) < keptChunks {
			c.buf = c.buf[:0]
			j.spares = append(j.spares, c)
		}
	}
	j.batch, j.tail, j.settle, j.start = j.batch[:0], nil, nil, 0
	j.cur.end = headerBytes + alignment
	j.safe.Store(j.total)
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{16, 300, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			j := appender(b)
			defer j.drop()
			targets := []Target{{1, 1, 0}}
			head, body := make([]byte, 16), make([]byte, size-16)
			b.ReportAllocs()
			b.SetBytes(int64(size) * 64)
			for b.Loop() {
				j.Lock()
				for range 64 { // a turn's worth
					j.Publish(targets, 1, head, body)
				}
				if len(j.batch) > 2 {
					j.drop()
				}
				j.Unlock()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/record")
		})
	}
}

// BenchmarkChecks is what the writer adds to each record.
func BenchmarkChecks(b *testing.B) {
	j := appender(b)
	defer j.drop()
	publish(j, string(body300), Target{1, 1, 0})
	for b.Loop() {
		j.batch[0].putChecks()
	}
}

func BenchmarkSettle(b *testing.B) {
	for name, step := range map[string]uint64{"joined": 1, "apart": 2} {
		b.Run(name, func(b *testing.B) {
			j := appender(b)
			b.ReportAllocs()
			defer j.drop()
			for i := uint64(0); b.Loop(); i += step {
				j.Lock()
				j.Settle(1, i, i)
				if len(j.batch) > 2 {
					j.drop()
				}
				j.Unlock()
			}
		})
	}
}

// BenchmarkCommit appends n records and waits for them, on the disk of the working directory.
func BenchmarkCommit(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir, err := os.MkdirTemp(".", "bench*.out")
			if err != nil {
				b.Fatal(err)
			}
			defer os.RemoveAll(dir)
			j, _ := mustOpen(b, Options{FS: vfs.OS{}, Dir: dir})
			targets, at := []Target{{1, 1, 0}}, make([]Position, n)
			b.ReportAllocs()
			for b.Loop() {
				j.Lock()
				for i := range n {
					at[i] = j.Publish(targets, 1, nil, body300)
				}
				j.Unlock()
				if err := j.Sync(at[n-1]); err != nil {
					b.Fatal(err)
				}
				for _, pos := range at {
					j.Free(pos, 1, 1)
				}
			}
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "records/s")
			mustClose(b, j)
		})
	}
}

// BenchmarkDisk is the floor under BenchmarkCommit: the same writes and syncs, nothing else.
func BenchmarkDisk(b *testing.B) {
	for _, filled := range []bool{false, true} {
		for _, n := range []int{352, 352 * 1000} {
			b.Run(fmt.Sprintf("filled=%v/%d", filled, n), func(b *testing.B) {
				dir, err := os.MkdirTemp(".", "bench*.out")
				if err != nil {
					b.Fatal(err)
				}
				defer os.RemoveAll(dir)
				f, err := vfs.OS{}.Create(dir + "/f")
				if err != nil {
					b.Fatal(err)
				}
				defer f.Close()
				if filled {
					f.WriteAt(make([]byte, DefaultSegmentBytes), 0)
					f.Sync()
				}
				buf, off := make([]byte, n), int64(0)
				for b.Loop() {
					if off+int64(n) > DefaultSegmentBytes {
						off = 0
						if !filled {
							f.Truncate(0)
						}
					}
					if _, err := f.WriteAt(buf, off); err != nil {
						b.Fatal(err)
					}
					if err := f.Sync(); err != nil {
						b.Fatal(err)
					}
					off += int64(n)
				}
			})
		}
	}
}

type counter struct{ n, bytes int64 }

func (c *counter) Publish(_ Position, _ []Target, p []byte, _ bool) (int64, error) {
	c.n++
	c.bytes += int64(len(p))
	return 1, nil
}
func (c *counter) Settle(_, _, _ uint64) error     { return nil }
func (c *counter) Topology(Position, []byte) error { return nil }
func (c *counter) Checkpoint([]byte) error         { return nil }
func (c *counter) Damage(d Damage)                 { panic(d) }

// BenchmarkRecovery opens a journal of 512 MiB that the system has in its cache.
func BenchmarkRecovery(b *testing.B) {
	dir, err := os.MkdirTemp(".", "bench*.out")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	j, _ := mustOpen(b, Options{FS: vfs.OS{}, Dir: dir, NoSync: true})
	const n = 512 << 20 / 352
	for i := range uint64(n / 100) {
		j.Lock()
		var pos Position
		for k := range uint64(100) {
			pos = j.Publish([]Target{{1, i*100 + k, 0}}, 1, nil, body300)
		}
		j.Unlock()
		if j.Pending() > 4<<20 {
			j.Sync(pos)
		}
	}
	mustClose(b, j)
	b.SetBytes(n / 100 * 100 * 352)
	for b.Loop() {
		c := &counter{}
		j, _, err := Open(Options{FS: vfs.OS{}, Dir: dir}, c)
		if err != nil || c.n != n/100*100 {
			b.Fatal(c.n, err)
		}
		b.StopTimer()
		j.Close()
		b.StartTimer()
	}
}
