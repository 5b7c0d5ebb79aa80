//go:build linux

package pressure

import (
	"context"
	"encoding/csv"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/firemq/firemq/bench/plot"
	fire "github.com/firemq/firemq/sdk/go"
	"github.com/firemq/firemq/test/internal/brokertest"
)

var figures = flag.String("figures", "", "a folder: TestConsumersThatLag takes its time, and writes tables and figures there")

// lag is what one queue's consumer, or its absence, does to memory, disk and the others, over time.
type lag struct {
	t         *testing.T
	b         *brokertest.Broker
	data      string
	unit      time.Duration // a phase is some of them
	transient bool
	client    *fire.Client

	published, fast, slow atomic.Int64 // messages

	begin   time.Time
	samples []sample
}

// sample is what there is at a time: seconds, bytes, and messages since the start.
type sample struct{ at, memory, disk, published, fast, slow float64 }

const lagBody, lagRate = 1 << 10, 4000 // bytes, messages a second

// A publisher of 4 MB/s, and consumers that lag behind or are not there. Memory and the others' throughput stay as they
// are, what waits is on disk, and is given back when it was consumed. Only transient messages take memory, up to its
// limit: then the publisher waits.
func TestConsumersThatLag(t *testing.T) {
	for _, c := range []struct {
		name, title string
		transient   bool
		run         func(*lag)
	}{
		{"slow", "a fast consumer and one ten times slower, which then catches up", false, func(l *lag) {
			l.consume("fast", &l.fast, 0)
			stop := l.consume("slow", &l.slow, lagRate/10)
			l.watch(8)
			l.flat("the slow consumer")
			stop()
			l.consume("slow", &l.slow, 0)
			l.drained()
			l.watch(2)
		}},
		{"removed", "consumers removed, persistent messages", false, func(l *lag) {
			l.consume("slow", &l.slow, 0)
			stop := l.consume("fast", &l.fast, 0)
			l.watch(2)
			stop()
			l.watch(6)
			l.flat("no consumer")
			l.consume("fast", &l.fast, 0)
			l.drained()
			l.watch(2)
		}},
		{"transient", "consumers removed, transient messages, a memory limit of 128 MiB", true, func(l *lag) {
			l.consume("slow", &l.slow, 0)
			stop := l.consume("fast", &l.fast, 0)
			l.watch(2)
			stop()
			l.until("the memory alarm", func() bool { return lastOf(l.b.Output(), raised, over) })
			l.watch(2)
			l.consume("fast", &l.fast, 0)
			l.until("the end of the alarm", func() bool { return lastOf(l.b.Output(), over, raised) })
			l.drained()
			l.watch(2)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLag(t, c.transient)
			quit := make(chan struct{})
			done := make(chan error, 1)
			go func() { done <- l.publish(quit) }()
			c.run(l)
			close(quit)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			l.bounded()
			if *figures != "" {
				l.draw(c.name, c.title)
			}
		})
	}
}

func newLag(t *testing.T, transient bool) *lag {
	l := &lag{t: t, data: t.TempDir(), unit: max(time.Second, *soak/10), transient: transient, begin: time.Now()}
	if *figures != "" {
		l.unit = 6 * time.Second
	}
	l.b = brokertest.Start(t, brokertest.Options{Data: l.data, Flags: []string{"--memory-limit", strconv.Itoa(memoryLimit)}})
	l.client = l.dial()
	if err := l.client.DeclareExchange(t.Context(), "lag", "fanout", fire.ExchangeOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{"fast", "slow"} {
		if _, err := l.client.DeclareQueue(t.Context(), q, fire.QueueOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := l.client.BindQueue(t.Context(), q, "lag", "", nil); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func (l *lag) dial() *fire.Client {
	c, err := fire.Dial(l.t.Context(), l.b.FireURL)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	return c
}

// publish sends lagRate messages a second, or as many as are taken.
func (l *lag) publish(quit chan struct{}) error {
	p := l.client.NewPublisher(fire.PublisherOptions{})
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	body := make([]byte, lagBody)
	for {
		select {
		case <-quit:
			return p.Flush(l.t.Context())
		case <-pace.C:
		}
		for range lagRate / 100 {
			if err := p.Publish(l.t.Context(), fire.Message{Exchange: "lag", Body: body, Transient: l.transient}); err != nil {
				return err
			}
			l.published.Add(1)
		}
	}
}

// consume takes messages, rate a second at most, 0 for no bound, and counts them, until it is stopped.
func (l *lag) consume(queue string, n *atomic.Int64, rate int) (stop func()) {
	c := l.dial()
	sub, err := c.Subscribe(l.t.Context(), queue, fire.SubscribeOptions{Prefetch: 500})
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(l.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pace := time.NewTicker(10 * time.Millisecond)
		defer pace.Stop()
		for i := 1; ctx.Err() == nil; i++ {
			if rate > 0 && i%max(1, rate/100) == 0 {
				<-pace.C
			}
			d, err := sub.Next(ctx)
			if err != nil {
				return
			}
			n.Add(1)
			if d.Ack() != nil {
				return
			}
		}
	}()
	return func() {
		cancel()
		<-ended
		c.Close()
	}
}

// watch samples for so many units.
func (l *lag) watch(units int) {
	end := time.Now().Add(time.Duration(units) * l.unit)
	l.until("", func() bool { return time.Now().After(end) })
}

// until samples until ok.
func (l *lag) until(what string, ok func() bool) {
	l.t.Helper()
	last := time.Now()
	brokertest.Eventually(l.t, 3*within, what, func() bool {
		if time.Since(last) >= l.unit/12 {
			last = time.Now()
			l.sample()
		}
		return ok()
	})
	l.sample()
}

func (l *lag) sample() {
	l.samples = append(l.samples, sample{
		at: time.Since(l.begin).Seconds(), memory: float64(rss(l.b.Pid())), disk: l.disk(),
		published: float64(l.published.Load()), fast: float64(l.fast.Load()), slow: float64(l.slow.Load()),
	})
}

// disk is how many bytes the journal has.
func (l *lag) disk() (sum float64) {
	filepath.WalkDir(filepath.Join(l.data, "journal"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it went away meanwhile
		}
		if info, err := d.Info(); err == nil && !d.IsDir() {
			sum += float64(info.Size())
		}
		return nil
	})
	return sum
}

// flat checks that of what was watched, the second half took no more memory than the first, and that nobody waits but
// beside: one queue grows, and the consumer of the other one has what is published.
func (l *lag) flat(beside string) {
	l.t.Helper()
	behind := func() (one, other int64) {
		published, fast, slow := l.published.Load(), l.fast.Load(), l.slow.Load()
		return published - max(fast, slow), published - min(fast, slow)
	}
	l.until("messages wait beside "+beside, func() bool { _, other := behind(); return other >= lagRate })
	l.until("the other consumer has what is published beside "+beside, func() bool { one, _ := behind(); return one <= lagRate })
	half := l.samples[len(l.samples)/2]
	last := l.samples[len(l.samples)-1]
	if grown := last.memory - half.memory; grown > 16<<20 {
		l.t.Errorf("%.0f MiB more memory beside %s", grown/(1<<20), beside)
	}
}

// drained waits until the consumers have all, and the journal has given the disk back: it may keep 4 segments of 32 MiB.
func (l *lag) drained() {
	l.t.Helper()
	l.until("all is consumed", func() bool {
		return l.published.Load()-min(l.fast.Load(), l.slow.Load()) < lagRate
	})
	l.until("the journal is small again", func() bool { return l.disk() <= 5*32<<20 })
}

// bounded checks that memory stayed below its limit.
func (l *lag) bounded() {
	l.t.Helper()
	most := slices.MaxFunc(l.samples, func(a, b sample) int { return int(a.memory - b.memory) })
	disk := slices.MaxFunc(l.samples, func(a, b sample) int { return int(a.disk - b.disk) })
	l.t.Logf("at most %.0f MiB resident and %.0f on disk, %d messages", most.memory/(1<<20), disk.disk/(1<<20), l.published.Load())
	if most.memory > memoryLimit+memoryLimit/20 {
		l.t.Errorf("%.0f bytes resident at %.0f s, want %d at most", most.memory, most.at, memoryLimit)
	}
}

// draw writes a table and two figures.
func (l *lag) draw(name, title string) {
	l.t.Helper()
	file := func(suffix string) *os.File {
		f, err := os.Create(filepath.Join(*figures, "lag-"+name+suffix))
		if err != nil {
			l.t.Fatal(err)
		}
		return f
	}
	out := file(".csv")
	defer out.Close()
	w := csv.NewWriter(out)
	w.Write([]string{"seconds", "memory_mib", "disk_mib", "published_s", "fast_s", "slow_s"})
	series := make([]plot.Line, 5)
	for i, of := range []string{"memory", "disk", "published", "first queue", "second queue"} {
		series[i].Name = of
	}
	for i := 1; i < len(l.samples); i++ {
		a, b := l.samples[i-1], l.samples[i]
		took := b.at - a.at
		if took < l.unit.Seconds()/24 {
			continue // two that came together
		}
		row := []string{strconv.FormatFloat(b.at, 'f', 1, 64)}
		for k, v := range []float64{b.memory / (1 << 20), b.disk / (1 << 20), (b.published - a.published) / took, (b.fast - a.fast) / took, (b.slow - a.slow) / took} {
			row = append(row, strconv.FormatFloat(v, 'f', 0, 64))
			series[k].X, series[k].Y = append(series[k].X, b.at), append(series[k].Y, v)
		}
		w.Write(row)
	}
	w.Flush()
	if err := w.Error(); err != nil {
		l.t.Fatal(err)
	}
	for suffix, lines := range map[string]plot.Lines{
		"-memory.svg": {Title: "Memory and disk: " + title, X: "seconds", Y: "MiB", Series: series[:2]},
		"-rate.svg":   {Title: "Messages a second: " + title, X: "seconds", Y: "a second", Series: series[2:]},
	} {
		f := file(suffix)
		fmt.Fprint(f, lines.SVG())
		if err := f.Close(); err != nil {
			l.t.Fatal(err)
		}
	}
}
