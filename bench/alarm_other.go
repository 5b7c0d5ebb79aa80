//go:build !linux

package bench

import "time"

// alarm sleeps as well as the runtime can.
type alarm struct{}

func newAlarm() (*alarm, error) { return &alarm{}, nil }

func (a *alarm) sleep(d time.Duration) error {
	time.Sleep(d)
	return nil
}

func (a *alarm) close() {}
