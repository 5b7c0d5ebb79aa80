package main

import (
	"strings"
	"testing"
)

func TestTally(t *testing.T) {
	const stream = `{"Action":"start","Package":"github.com/firemq/firemq/a"}
{"Action":"output","Package":"github.com/firemq/firemq/a","Test":"TestGood","Output":"quiet\n"}
{"Action":"pass","Package":"github.com/firemq/firemq/a","Test":"TestGood","Elapsed":0}
{"Action":"output","Package":"github.com/firemq/firemq/a","Test":"TestBad","Output":"    a_test.go:1: wrong\n"}
{"Action":"fail","Package":"github.com/firemq/firemq/a","Test":"TestBad","Elapsed":0}
{"Action":"output","Package":"github.com/firemq/firemq/a","Test":"TestSkip","Output":"=== RUN   TestSkip\n"}
{"Action":"output","Package":"github.com/firemq/firemq/a","Test":"TestSkip","Output":"    a_test.go:2: no node\n"}
{"Action":"skip","Package":"github.com/firemq/firemq/a","Test":"TestSkip","Elapsed":0}
{"Action":"output","Package":"github.com/firemq/firemq/a","Test":"TestCut","Output":"panic: BUG\n"}
{"Action":"fail","Package":"github.com/firemq/firemq/a","Elapsed":1.5}
{"ImportPath":"github.com/firemq/firemq/b","Action":"build-output","Output":"b.go:1: no\n"}
{"Action":"fail","Package":"github.com/firemq/firemq/b","Elapsed":0,"FailedBuild":"github.com/firemq/firemq/b"}
{"Action":"pass","Package":"github.com/firemq/firemq/c","Elapsed":2}
go: something else
`
	tally, w := newTally(), new(strings.Builder)
	if err := tally.read(strings.NewReader(stream), w); err != nil {
		t.Fatal(err)
	}
	if got, want := tally.String(), "1 passed, 3 failed, 1 skipped"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := tally.skips["a TestSkip"]; got != "a_test.go:2: no node" {
		t.Errorf("reason %q", got)
	}
	for _, want := range []string{"--- FAIL: a TestBad\n    a_test.go:1: wrong", "FAIL  a ", "panic: BUG", "b.go:1: no", "ok    c ", "go: something else"} {
		if !strings.Contains(w.String(), want) {
			t.Errorf("%q is missing from\n%s", want, w)
		}
	}
	if strings.Contains(w.String(), "quiet") {
		t.Errorf("the output of a test that passed is there:\n%s", w)
	}
}
