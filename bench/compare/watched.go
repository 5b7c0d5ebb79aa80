package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/firemq/firemq/bench"
)

// looks is what is asked each second while the broker is watched: as Prometheus does, and the UI's page of queues.
var looks = [...]string{"/metrics", "/api/overview", "/api/queues?page=1&page_size=100&sort=messages"}

// watched measures what being watched costs a broker under load. One broker has one load all the time, and is watched in
// every other window of some seconds: neighbours in time are compared, so the machine's drift is in both of a pair. Which
// of a pair comes first changes each time.
func watched(ctx context.Context, s settings) error {
	if s.pairs < 6 || s.window < 1 {
		return errors.New("a 95 % interval needs at least 6 pairs, and a window is a second or more")
	}
	n, err := newNative(s, fireMQ(s))
	if err != nil {
		return err
	}
	defer n.remove()
	if _, err := n.start(ctx); err != nil {
		return err
	}
	stop, err := populate(ctx, s, n.url("amqp"))
	if err != nil {
		return err
	}
	defer stop()

	w := &watch{windows: make([]window, 2*s.pairs), seconds: s.window, pid: n.cmd.Process.Pid, ask: make(chan struct{})}
	watching := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		err := w.look(ctx, "http://"+local(n.ports[2]))
		if err != nil {
			cancel()
		}
		watching <- err
	}()
	rep, err := bench.Run(ctx, bench.Options{
		URL: n.url("amqp"), Consumers: 1, Persistent: s.persistent, Warmup: warmup * time.Second,
		Duration: time.Duration(2*s.pairs*s.window+2) * time.Second, Live: w.second,
	})
	cancel()
	if err == nil {
		err = rep.Err()
	}
	if err := errors.Join(<-watching, w.err, err); err != nil {
		return err
	}
	if w.at < len(w.windows) || w.late > s.pairs*s.window/10 {
		return fmt.Errorf("%d of %d windows were measured, and %d looks took more than a second", w.at, len(w.windows), w.late)
	}
	if err := writeWindows(filepath.Join(s.out, "watched.csv"), w.windows); err != nil {
		return err
	}
	var cpu, rate []float64
	for pair := range slices.Chunk(w.windows, 2) {
		without, with := pair[0], pair[1]
		if without.watched {
			without, with = with, without
		}
		cpu = append(cpu, percent(without.cpuPerMessage(), with.cpuPerMessage()))
		rate = append(rate, percent(without.rate(), with.rate()))
	}
	cost, slower := medianInterval(cpu), medianInterval(rate)
	kept := "kept"
	switch {
	case slower.high < -s.most:
		kept = "broken"
	case slower.low < -s.most:
		kept = "not clear, more pairs are needed"
	}
	fmt.Printf("watched each second, %d queues, %d connections: messages/s %s, CPU per message %s, %d pairs of %d s; limit %g %%: %s\n",
		s.queues, s.connections, slower, cost, s.pairs, s.window, s.most, kept)
	if kept != "kept" {
		return errors.New("the limit is " + kept)
	}
	return nil
}

// populate gives the broker queues, and connections with a consumer each, on which next to nothing happens.
func populate(ctx context.Context, s settings, url string) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	there, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		rep, err := bench.Run(ctx, bench.Options{
			URL: url, Consumers: s.connections - 1, Queues: s.queues, Rate: 1, Duration: 24 * time.Hour, Patience: askPatience,
			Live: func(bench.Second) {
				select {
				case there <- struct{}{}:
				default:
				}
			},
		})
		if err == nil {
			err = rep.Err()
		}
		ended <- err
	}()
	select {
	case <-there:
		return func() { cancel(); <-ended }, nil
	case err := <-ended:
		cancel()
		return nil, fmt.Errorf("queues and connections: %w", err)
	}
}

// window is some seconds of a load.
type window struct {
	watched  bool
	seconds  float64
	messages float64 // delivered
	cpu      time.Duration
}

func (w *window) rate() float64          { return w.messages / w.seconds }
func (w *window) cpuPerMessage() float64 { return float64(w.cpu.Nanoseconds()) / 1e3 / w.messages }

// watch measures windows. second is called by the load alone.
type watch struct {
	windows []window
	seconds int // of a window
	pid     int // of the broker
	ask     chan struct{}

	at, of  int // the window, and the seconds of it that are over
	elapsed float64
	cpu     time.Duration // at the last second
	begun   bool
	late    int // looks that were left out, because the one before had not ended
	err     error
}

// second ends a second of the load, and begins the next one with a look if it is watched.
func (w *watch) second(s bench.Second) {
	if s.Phase != bench.Measure || w.at == len(w.windows) || w.err != nil {
		return
	}
	var cpu time.Duration
	if cpu, w.err = ranFor(w.pid); w.err != nil {
		return
	}
	if w.begun {
		now := &w.windows[w.at]
		d := s.Elapsed - w.elapsed
		now.seconds += d
		now.messages += s.Consumed * d
		now.cpu += cpu - w.cpu
		if w.of++; w.of == w.seconds {
			w.at, w.of = w.at+1, 0
		}
	}
	w.begun, w.elapsed, w.cpu = true, s.Elapsed, cpu // the first second only sets the clock
	if w.at == len(w.windows) {
		return
	}
	now := &w.windows[w.at]
	if now.watched = (w.at+w.at/2)%2 == 1; now.watched {
		select {
		case w.ask <- struct{}{}:
		default:
			w.late++
		}
	}
}

// look asks when it is told to, over one connection, with gzip that stays packed.
func (w *watch) look(ctx context.Context, base string) error {
	client := http.Client{Timeout: askPatience}
	defer client.CloseIdleConnections()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.ask:
		}
		for _, path := range looks {
			req, err := http.NewRequestWithContext(ctx, "GET", base+path, nil)
			if err != nil {
				return err
			}
			req.SetBasicAuth("guest", "guest")
			req.Header.Set("Accept-Encoding", "gzip")
			res, err := client.Do(req)
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			case res.StatusCode != http.StatusOK:
				return fmt.Errorf("%s: %s", path, res.Status)
			}
		}
	}
}

// ranFor is the time that the threads of a process have run. /proc/PID/stat has it in steps of 10 ms, too coarse for a
// second.
func ranFor(pid int) (sum time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		ran, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(ran, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", f, err)
		}
		sum += time.Duration(ns)
	}
	if sum == 0 {
		return 0, fmt.Errorf("the CPU time of process %d is not known", pid)
	}
	return sum, nil
}

func percent(before, after float64) float64 { return (after/before - 1) * 100 }

// interval is a median with its 95 % confidence interval.
type interval struct{ median, low, high float64 }

func (i interval) String() string {
	return fmt.Sprintf("%+.2f %% (95 %% CI %+.2f to %+.2f)", i.median, i.low, i.high)
}

// medianInterval takes the interval from the order of the values alone, so that some of them may be far off: each value
// is above the true median with a chance of a half. It needs six values.
func medianInterval(values []float64) interval {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	k, tail, chance := 0, 0.0, math.Pow(0.5, float64(n)) // chance: that k values are below the median
	for tail+chance <= 0.025 {
		tail += chance
		chance *= float64(n-k) / float64(k+1)
		k++
	}
	return interval{(v[(n-1)/2] + v[n/2]) / 2, v[k-1], v[n-k]}
}

func writeWindows(path string, windows []window) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	c := csv.NewWriter(f)
	c.Write([]string{"pair", "watched", "seconds", "messages_s", "cpu_us"})
	for i := range windows {
		w := &windows[i]
		num := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
		c.Write([]string{strconv.Itoa(i / 2), strconv.FormatBool(w.watched), num(w.seconds), num(w.rate()), num(w.cpuPerMessage())})
	}
	c.Flush()
	return errors.Join(c.Error(), f.Close())
}
