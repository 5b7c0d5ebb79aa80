package main

import (
	"math"
	"testing"
)

func TestParseWaits(t *testing.T) {
	const text = "--- mutex:\ncycles/second=1000\nsampling period=1\n" +
		"500 3 @ 0x1 0x2\n#\t0x1\tsync.(*Mutex).Unlock+0x9\t/go/mutex.go:1\n#\t0x2\tgithub.com/firemq/firemq/broker.(*Queue).unlock+0x5\t/b.go:2\n" +
		"250 1 @ 0x3\n#\t0x3\tgithub.com/firemq/firemq/broker.(*Queue).unlock+0x7\t/b.go:3\n" +
		"100 1 @ 0x4\n#\t0x4\truntime.unlock+0x7\t/r.go:3\n"
	got, err := parseWaits(text)
	if err != nil || len(got) != 1 || math.Abs(got["broker.(*Queue).unlock"]-0.75) > 1e-9 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parseWaits("nothing"); err == nil {
		t.Error("no error without cycles/second")
	}
}
