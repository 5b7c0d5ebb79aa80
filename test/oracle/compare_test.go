package oracle

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// How long two brokers that differ after a fence have to agree yet: long enough for a machine under
// load, and a short while where they are expected to differ.
const (
	grace      = 10 * time.Second
	shortGrace = 200 * time.Millisecond
)

// result is what became of a script: the steps and, behind each, what came from the two brokers.
type result struct {
	rabbit, fire []string
}

func (r *result) same() bool { return slices.Equal(r.rabbit, r.fire) }

// run plays a script to two brokers in step, in the given vhosts. It gives up waiting for them to agree
// once they have not for the time of grace.
func run(sc *script, rabbit, fire side, rabbitVHost, fireVHost string, grace time.Duration) (*result, error) {
	sides := [2]*player{newPlayer(rabbit, rabbitVHost, sc), newPlayer(fire, fireVHost, sc)}
	each := func(f func(p *player) error) error {
		var errs [2]error
		var wg sync.WaitGroup
		for i, p := range sides {
			wg.Go(func() { errs[i] = f(p) })
		}
		wg.Wait()
		if errs[0] != nil {
			return fmt.Errorf("RabbitMQ: %w", errs[0])
		}
		if errs[1] != nil {
			return fmt.Errorf("FireMQ: %w", errs[1])
		}
		return nil
	}
	r := new(result)
	parted := false
	err := each((*player).keepCanary)
	if err != nil {
		return nil, err
	}
	for i := range sc.steps {
		s := &sc.steps[i]
		if err = each(func(p *player) error { return p.play(s) }); err != nil {
			err = fmt.Errorf("%s: %w", s.src, err)
			break
		}
		r.rabbit = append(r.rabbit, "> "+s.src)
		r.fire = append(r.fire, "> "+s.src)
		if !s.fence {
			continue
		}
		each(func(p *player) error { p.settle(); return nil })
		if !parted {
			parted = !agree(sides, grace)
		}
		for i, lines := range []*[]string{&r.rabbit, &r.fire} {
			for _, line := range sides[i].take() {
				*lines = append(*lines, strings.Split(line, "\n")...)
			}
		}
	}
	if e := each((*player).end); err == nil {
		err = e
	}
	return r, err
}

// agree waits until both players received the same; false after grace.
func agree(sides [2]*player, grace time.Duration) bool {
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	for {
		var change [2]chan struct{}
		for i, p := range sides {
			p.mu.Lock()
			change[i] = p.change
			p.mu.Unlock()
		}
		if slices.Equal(sides[0].peek(), sides[1].peek()) {
			return true
		}
		select {
		case <-change[0]:
		case <-change[1]:
		case <-deadline.C:
			return false
		}
	}
}

// diff lists what two results do not share: "- " is RabbitMQ's line, "+ " FireMQ's. A step stands
// before its lines.
func (r *result) diff() (lines []string) {
	a, b := r.rabbit, r.fire
	// The length of the longest common subsequence of a[i:] and b[j:].
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	step, shown := "", false
	show := func(sign, line string) {
		if !shown {
			lines = append(lines, step)
			shown = true
		}
		lines = append(lines, sign+" "+line)
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			if strings.HasPrefix(a[i], "> ") {
				step, shown = a[i], false
			}
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			show("-", a[i])
			i++
		default:
			show("+", b[j])
			j++
		}
	}
	return lines
}

// difference is one entry of testdata/differences.txt.
type difference struct {
	name   string
	reason []string // its lines, behind "# "
	diff   []string
}

const differencesFile = "differences.txt"

const differencesHead = `# What FireMQ answers otherwise than RabbitMQ 3.10.8, on purpose. Each entry is a case, the reason,
# and the difference: "- " is RabbitMQ's line, "+ " FireMQ's. The test fails when the two differ in
# any other way, and when they differ no longer. "pending" entries are not meant to stay.
# "go test ./test/oracle -rewrite" writes the file anew; the reasons are written by hand.
#
# As in 3.10 to 4.2, a delivery that is not acknowledged in time closes its channel, from whatever queue it is
# (TestConsumerTimeout). 4.3 has the timeout for quorum queues alone, and cancels the consumer.
`

func loadDifferences(t *testing.T) (all []*difference) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", differencesFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(content), "\n") {
		if name, ok := strings.CutPrefix(line, "== "); ok {
			all = append(all, &difference{name: name})
			continue
		}
		if len(all) == 0 || line == "" {
			continue
		}
		d := all[len(all)-1]
		if reason, ok := strings.CutPrefix(line, "# "); ok {
			d.reason = append(d.reason, reason)
		} else {
			d.diff = append(d.diff, line)
		}
	}
	return all
}

func saveDifferences(all []*difference) error {
	var b strings.Builder
	b.WriteString(differencesHead)
	for _, d := range all {
		fmt.Fprintf(&b, "\n== %s\n", d.name)
		for _, line := range d.reason {
			fmt.Fprintf(&b, "# %s\n", line)
		}
		for _, line := range d.diff {
			b.WriteString(line + "\n")
		}
	}
	return os.WriteFile(filepath.Join("testdata", differencesFile), []byte(b.String()), 0o644)
}
