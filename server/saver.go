package server

import (
	"log/slog"
	"sync"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/definitions"
	"github.com/firemq/firemq/internal/vfs"
)

// A change of topology waits for others before definitions.json is rewritten, which takes the longer the more there is in it: so
// long, or saveShare times as long as that took the last time, but no longer than saveMost. So it is a small part of what
// very many declarations cost. The journal holds the changes meanwhile.
const (
	saveDelay = 500 * time.Millisecond
	saveShare = 4
	saveMost  = time.Minute
)

func saveAfter(took time.Duration) time.Duration {
	return min(max(saveDelay, saveShare*took), saveMost)
}

// saver rewrites definitions.json shortly after a durable change.
type saver struct {
	file string // "": nothing is kept
	log  *slog.Logger
	b    *broker.Broker // set by start
	wake chan struct{}  // holds one token: something changed
	quit chan struct{}
	over chan struct{}

	writing sync.Mutex // held by now: the outermost lock
}

func newSaver(file string, log *slog.Logger) *saver {
	return &saver{file: file, log: log, wake: make(chan struct{}, 1), quit: make(chan struct{}), over: make(chan struct{})}
}

// changed asks for a rewrite. Any goroutine; never blocks.
func (s *saver) changed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *saver) start(b *broker.Broker) {
	s.b = b
	go s.run()
}

func (s *saver) run() {
	defer close(s.over)
	for took := time.Duration(0); ; {
		select {
		case <-s.quit:
			return
		case <-s.wake:
		}
		delay := time.NewTimer(saveAfter(took))
		select {
		case <-s.quit:
			delay.Stop()
			return
		case <-delay.C:
		}
		began := time.Now()
		err := s.now()
		if took = time.Since(began); err != nil {
			s.log.Error("definitions.json could not be rewritten; the journal keeps the changes and it is tried again", "error", err)
			s.changed()
		}
	}
}

// now rewrites the file with the state at this moment. A start calls it beside the goroutine, which a change of that
// start may have woken: two at once would write the same file beside definitions.json, and the later of their states
// might not be the one that stays.
func (s *saver) now() error {
	if s.file == "" {
		return nil
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	snap := s.b.Snapshot()
	if err := s.b.Commit(&snap); err != nil {
		return err
	}
	if err := definitions.Save(vfs.OS{}, s.file, &snap); err != nil {
		return err
	}
	s.b.Saved(&snap)
	return nil
}

// stop ends the goroutine and writes what it had not written.
func (s *saver) stop() error {
	if s.b == nil {
		return nil
	}
	close(s.quit)
	<-s.over
	return s.now()
}
