package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLogLevels(t *testing.T) {
	for _, c := range []struct {
		levels string
		want   string // which of the messages below appear
	}{
		{"info", "info warn amqp.info"},
		{"debug", "debug info warn amqp.debug amqp.info"},
		{"WARN", "warn"},
		{"off", ""},
		{"warn,amqp=debug", "warn amqp.debug amqp.info"},
		{"info, firemq_amqp=off", "info warn"},
		{"amqp=debug", "info warn amqp.debug amqp.info"},
	} {
		t.Run(c.levels, func(t *testing.T) {
			var b bytes.Buffer
			levels, err := ParseLogLevels(c.levels)
			if err != nil {
				t.Fatal(err)
			}
			log := NewLog(&b, true, levels)
			log.Debug("debug")
			log.Info("info")
			log.Warn("warn")
			amqp := log.With("module", "amqp").WithGroup("peer")
			amqp.Debug("amqp.debug")
			amqp.Info("amqp.info", "name", "x")
			var got []string
			for line := range strings.Lines(b.String()) {
				var m struct{ Msg string }
				if err := json.Unmarshal([]byte(line), &m); err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				got = append(got, m.Msg)
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("got %q, want %q", s, c.want)
			}
		})
	}
}

func TestLogText(t *testing.T) {
	var b bytes.Buffer
	trace, err := ParseLogLevels("trace")
	if err != nil {
		t.Fatal(err)
	}
	log := NewLog(&b, false, trace)
	log.Log(t.Context(), levelTrace, "fine", "port", 5672)
	if got := b.String(); !strings.Contains(got, "level=TRACE msg=fine port=5672") {
		t.Error(got)
	}
	if !log.Enabled(t.Context(), slog.LevelDebug) {
		t.Error("trace leaves debug out")
	}
}

// Levels change for loggers that were made before.
func TestLogLevelsChange(t *testing.T) {
	var b bytes.Buffer
	log := NewLog(&b, false, LogLevels{base: slog.LevelInfo})
	amqp, journal := log.With("module", "amqp").WithGroup("peer"), log.With("module", "journal")
	amqp.Debug("1")
	levels, err := ParseLogLevels("error,amqp=debug")
	if err != nil {
		t.Fatal(err)
	}
	log.SetLevels(levels)
	amqp.Debug("2")
	journal.Warn("3")
	log.Warn("4")
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "msg=2") {
		t.Error(got)
	}
}

// A peer that fails in a loop doesn't fill the disk with its log, and doesn't keep others out of it.
func TestRepetitionIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		log := NewLog(&b, false, LogLevels{base: slog.LevelDebug})
		amqp := log.With("module", "amqp")
		lines := func() int {
			n := strings.Count(b.String(), "\n")
			b.Reset()
			return n
		}
		for i := range 10 * repeatBurst {
			amqp.Warn("channel error", "channel", i)
			amqp.Debug("every one")
		}
		if n := lines(); n != 11*repeatBurst {
			t.Errorf("%d lines", n)
		}
		log.Info("something else")
		time.Sleep(3 * repeatPause)
		for range 5 {
			log.Warn("channel error")
		}
		if got := b.String(); strings.Count(got, "left_out=9000") != 1 || strings.Count(got, "left_out=") != 1 {
			t.Errorf("after a while:\n%s", got)
		}
		if n := lines(); n != 4 {
			t.Errorf("%d lines after a while", n)
		}
		for i := range 3 * repeatTexts {
			log.Info(fmt.Sprint(i))
		}
		if n := lines(); n != 3*repeatTexts {
			t.Errorf("%d of %d different lines", n, 3*repeatTexts)
		}
	})
}
