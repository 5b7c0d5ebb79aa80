package main

import (
	"fmt"
	"io"
	"log/slog"
	"time"
)

const (
	// A recovery shows itself after patience; on a terminal its line is written again after refresh, else
	// the log has a line every logEvery.
	patience = time.Second
	refresh  = 100 * time.Millisecond
	logEvery = 5 * time.Second
)

// progress shows how far a recovery is. One goroutine uses it.
type progress struct {
	w     io.Writer
	tty   bool // w is a terminal: one line that is written again
	log   *slog.Logger
	now   func() time.Time
	due   time.Time // of the next line
	shown bool      // there is a line on the terminal
}

func newProgress(w io.Writer, tty bool, log *slog.Logger) *progress {
	p := &progress{w: w, tty: tty, log: log, now: time.Now}
	p.start()
	return p
}

func (p *progress) start() {
	p.due = p.now().Add(logEvery)
	if p.tty {
		p.due = p.now().Add(patience)
	}
}

// replayed is server.Options.OnReplay.
func (p *progress) replayed(read, of, records int64) {
	now := p.now()
	if now.Before(p.due) {
		return
	}
	percent := 100 * read / max(1, of)
	if !p.tty {
		p.due = now.Add(logEvery)
		p.log.Info("recovering", "percent", percent, "records", records, "read", read, "of", of)
		return
	}
	p.due = now.Add(refresh)
	p.shown = true
	fmt.Fprintf(p.w, "\r\x1b[KRecovering: %d %%, %d of %d MiB of the journal, %d records", percent, read>>20, of>>20, records)
}

// end takes the line away.
func (p *progress) end() {
	if p.shown {
		io.WriteString(p.w, "\r\x1b[K")
	}
}
