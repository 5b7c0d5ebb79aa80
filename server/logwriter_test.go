package server

import (
	"bytes"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

// Who does not read the log holds nobody up: lines wait, what is too much is counted, and all is as before when it is read.
func TestLogThatIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		log := NewLog(w, false, LogLevels{base: slog.LevelDebug})
		const n = 3000
		line := strings.Repeat("x", 1000)
		for range n {
			log.Debug(line)
		}
		log.Flush()
		var b bytes.Buffer
		read := make(chan struct{})
		go func() {
			defer close(read)
			io.Copy(&b, r)
		}()
		synctest.Wait()
		lost := n - strings.Count(b.String(), line)
		if most := linesWaiting/1000 + 1; n-lost > most || n-lost < most*9/10 {
			t.Errorf("%d of %d lines were written", n-lost, n)
		}
		b.Reset()
		log.Info("again")
		synctest.Wait()
		if got, want := b.String(), "level=INFO msg=again lost="+strconv.Itoa(lost)+"\n"; !strings.HasSuffix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		b.Reset()
		log.Info("and again")
		synctest.Wait()
		if !strings.HasSuffix(b.String(), "msg=\"and again\"\n") {
			t.Errorf("got %q", b.String())
		}
		w.Close()
		<-read
	})
}

// A log that cannot be written at all stops nothing either.
func TestLogToNobody(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	log := NewLog(w, true, LogLevels{})
	for range 10 {
		log.Error("x")
	}
	log.Flush()
}
