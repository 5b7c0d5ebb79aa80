package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// moduleKey is the attribute by which parts of the broker name themselves: log.With("module", "amqp").
const moduleKey = "module"

// modules are the parts of the broker that log under a name of their own; a filter may name them.
var modules = []string{"amqp", "broker", "fire", "http", "loop", "tracing"}

// LogLevels say from which level on something is logged: "info", or with filters for modules
// "info,amqp=debug". Immutable.
type LogLevels struct {
	base    slog.Level
	modules map[string]slog.Level
}

const (
	levelTrace = slog.LevelDebug - 4
	levelOff   = slog.LevelError + 100
)

var levelNames = map[string]slog.Level{
	"trace": levelTrace, "debug": slog.LevelDebug, "info": slog.LevelInfo,
	"warn": slog.LevelWarn, "error": slog.LevelError, "off": levelOff,
}

// ParseLogLevels reads a value of the setting log.level.
func ParseLogLevels(s string) (LogLevels, error) {
	l := LogLevels{base: slog.LevelInfo}
	for part := range strings.SplitSeq(s, ",") {
		module, name, filtered := strings.Cut(strings.TrimSpace(part), "=")
		if !filtered {
			module, name = "", module
		}
		level, ok := levelNames[strings.ToLower(strings.TrimSpace(name))]
		if !ok {
			return l, fmt.Errorf("log level %q is none of trace, debug, info, warn, error, off, or MODULE=LEVEL after it", part)
		}
		// firemq_amqp is another spelling of the module amqp.
		module = strings.TrimPrefix(strings.TrimSpace(module), "firemq_")
		if module == "" {
			l.base = level
			continue
		}
		if !slices.Contains(modules, module) {
			return l, fmt.Errorf("log module %q is none of %s", module, strings.Join(modules, ", "))
		}
		if l.modules == nil {
			l.modules = make(map[string]slog.Level)
		}
		l.modules[module] = level
	}
	return l, nil
}

// of is the level of a module; "" is what names none.
func (l *LogLevels) of(module string) slog.Level {
	if level, ok := l.modules[module]; ok {
		return level
	}
	return l.base
}

// Log is a logger whose levels can change while it is used. Any goroutine.
type Log struct {
	*slog.Logger
	levels *atomic.Pointer[LogLevels]
	out    *logWriter
}

// NewLog writes to w, as JSON or as text. A line is written when the call returns, unless w takes its time: that stops nobody, see
// Flush.
func NewLog(w io.Writer, json bool, levels LogLevels) *Log {
	l := &Log{levels: new(atomic.Pointer[LogLevels]), out: &logWriter{w: w}}
	l.levels.Store(&levels)
	// The handler below lets everything pass: moduleHandler has the levels.
	all := &slog.HandlerOptions{Level: slog.Level(-1 << 10), ReplaceAttr: nameTrace}
	var h slog.Handler = slog.NewTextHandler(l.out, all)
	if json {
		h = slog.NewJSONHandler(l.out, all)
	}
	l.Logger = slog.New(&moduleHandler{Handler: h, levels: l.levels, out: l.out, repeats: &repeats{since: make(map[string]time.Time)}})
	return l
}

// Flush waits for a moment until what is logged is written.
func (l *Log) Flush() { l.out.flush() }

// SetLevels changes the levels of this logger and of all made from it.
func (l *Log) SetLevels(levels LogLevels) { l.levels.Store(&levels) }

// nameTrace gives the level below debug its name.
func nameTrace(groups []string, a slog.Attr) slog.Attr {
	if level, ok := a.Value.Any().(slog.Level); ok && len(groups) == 0 && a.Key == slog.LevelKey && level == levelTrace {
		a.Value = slog.StringValue("TRACE")
	}
	return a
}

// moduleHandler applies the level of the module that a logger was made for. Immutable but for levels,
// which all handlers of a Log share.
type moduleHandler struct {
	slog.Handler
	levels  *atomic.Pointer[LogLevels]
	out     *logWriter
	repeats *repeats
	module  string
}

// Handle writes a line, or counts it when there are too many like it.
func (h *moduleHandler) Handle(ctx context.Context, r slog.Record) error {
	left, ok := h.repeats.allow(&r)
	if !ok {
		return nil
	}
	lost := h.out.told()
	if left > 0 || lost > 0 {
		r = r.Clone()
	}
	if left > 0 {
		r.AddAttrs(slog.Uint64("left_out", left))
	}
	if lost > 0 {
		r.AddAttrs(slog.Uint64("lost", lost))
	}
	return h.Handler.Handle(ctx, r)
}

// Lines with one text, whatever their values, are written as fast as repeatPause allows after a burst; the
// next one says how many were left out. Below the level info all are written: who turns that on wants them.
const (
	repeatBurst = 1000
	repeatPause = 100 * time.Millisecond
	repeatTexts = 1024 // remembered at once
)

// repeats bounds what peers that fail in a loop make of the log. Any goroutine.
type repeats struct {
	mu      sync.Mutex
	since   map[string]time.Time // by text: when all lines of it are paid for; guarded by mu
	leftOut map[string]uint64    // by text; guarded by mu
}

// allow says whether a line is written, and how many like it were not since the last one that was.
func (p *repeats) allow(r *slog.Record) (leftOut uint64, ok bool) {
	if r.Level < slog.LevelInfo {
		return 0, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	paid, known := p.since[r.Message]
	if !known && len(p.since) >= repeatTexts {
		clear(p.since)
	}
	if paid.Before(r.Time) {
		paid = r.Time
	}
	if paid.Sub(r.Time) >= repeatBurst*repeatPause {
		if p.leftOut == nil || len(p.leftOut) >= repeatTexts {
			p.leftOut = make(map[string]uint64)
		}
		p.leftOut[r.Message]++
		return 0, false
	}
	p.since[r.Message] = paid.Add(repeatPause)
	leftOut = p.leftOut[r.Message]
	delete(p.leftOut, r.Message)
	return leftOut, true
}

func (h *moduleHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.levels.Load().of(h.module)
}

func (h *moduleHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.Handler = h.Handler.WithAttrs(attrs)
	for _, a := range attrs {
		if a.Key == moduleKey {
			c.module = a.Value.String()
		}
	}
	return &c
}

func (h *moduleHandler) WithGroup(name string) slog.Handler {
	c := *h
	c.Handler = h.Handler.WithGroup(name)
	return &c
}
