package server

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// logWriter passes lines of the log on to w, and waits until each is written, but not for who does not read them, as a terminal
// that is halted, or a full pipe: the broker goes on, the lines wait until they are read, and those that no room is left
// for are counted. Its goroutine lasts while there is something to write. Any goroutine.
type logWriter struct {
	w    io.Writer
	lost atomic.Uint64 // lines that were left out, and not told of yet

	mu sync.Mutex
	// Guarded by mu.
	waiting []byte        // what the goroutine has not taken yet
	idle    chan struct{} // closed when all is written; nil: all is
	behind  bool          // w took longer than linesPatience, and has not taken all since
}

const (
	// linesWaiting is how many bytes of lines wait for a reader. Who reads the log feels it: lines are missing.
	linesWaiting = 256 << 10
	// linesPatience is for how long a line is waited for. Who logs feels it, once until the reader goes on.
	linesPatience = 100 * time.Millisecond
)

// Write takes a line. What is wrong with w is not told: there is nowhere to say it.
func (l *logWriter) Write(line []byte) (int, error) {
	l.mu.Lock()
	if len(l.waiting)+len(line) > linesWaiting {
		l.mu.Unlock()
		l.lost.Add(1)
		return len(line), nil
	}
	l.waiting = append(l.waiting, line...)
	if l.idle == nil {
		l.idle = make(chan struct{})
		go l.drain()
	}
	idle, behind := l.idle, l.behind
	l.mu.Unlock()
	if !behind && !endsIn(linesPatience, idle) {
		l.mu.Lock()
		l.behind = l.idle != nil
		l.mu.Unlock()
	}
	return len(line), nil
}

// drain writes until nothing waits.
func (l *logWriter) drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) > 0 {
		batch := l.waiting
		l.waiting = nil
		l.mu.Unlock()
		l.w.Write(batch)
		l.mu.Lock()
	}
	close(l.idle)
	l.idle, l.behind = nil, false
}

// told gives how many lines were left out since the last call, once they are read again.
func (l *logWriter) told() uint64 {
	if l.lost.Load() == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.behind {
		return 0
	}
	return l.lost.Swap(0)
}

// flush waits for a moment until all is written.
func (l *logWriter) flush() {
	l.mu.Lock()
	idle := l.idle
	l.mu.Unlock()
	if idle != nil {
		endsIn(linesPatience, idle)
	}
}

// endsIn reports whether done is closed in time.
func endsIn(limit time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
