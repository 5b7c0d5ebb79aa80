package bench

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm sleeps to within some ten microseconds. The runtime's timers are served by epoll_wait, whose
// resolution is a millisecond: more than what a paced run measures. A timerfd in the same poller is exact.
type alarm struct {
	f *os.File
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create timer: %w", err)
	}
	return &alarm{f: os.NewFile(uintptr(fd), "timer")}, nil
}

func (a *alarm) sleep(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	conn, err := a.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("set timer: %w", err)
	}
	var setErr error
	if err := conn.Control(func(fd uintptr) { setErr = unix.TimerfdSettime(int(fd), 0, &spec, nil) }); err != nil {
		return fmt.Errorf("set timer: %w", err)
	}
	if setErr != nil {
		return fmt.Errorf("set timer: %w", setErr)
	}
	var expired [8]byte
	if _, err := a.f.Read(expired[:]); err != nil {
		return fmt.Errorf("wait for timer: %w", err)
	}
	return nil
}

func (a *alarm) close() { a.f.Close() }
