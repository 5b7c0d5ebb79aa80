package server

import (
	"errors"
	"fmt"
	"net"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/loop"
)

// clientPort is one listener for clients.
type clientPort struct {
	name, flag, value string
	secure            bool
	h                 loop.Handler
	bound             *net.Addr // nil in it: off
}

// bind listens for one kind of clients.
func (s *Server) bind(l *clientPort, addr string) (net.Addr, error) {
	if l.secure {
		return s.loop.ListenTLS("tcp", addr, s.tls, l.h)
	}
	return s.loop.Listen("tcp", addr, l.h)
}

// Suspend closes the listeners of AMQP and of the FireMQ protocol, and with close the connections, whose clients
// are told that the broker goes down. Queues, messages and the HTTP listener stay as they are. A client that is
// logging in at that moment may stay. Any goroutine.
func (s *Server) Suspend(close bool) {
	if !s.control.TryLock() {
		return // it stops, or another does just that
	}
	defer s.control.Unlock()
	if !s.suspended.Swap(true) {
		s.loop.Unlisten()
		s.log.Info("no clients are taken any more: an administrator has suspended the listeners")
	}
	if close {
		e := &broker.Error{Kind: broker.ConnectionForced, Text: "broker forced connection closure with reason 'shutdown'"}
		s.broker.CloseConnections(e, func(*broker.ConnInfo, string) bool { return true })
	}
}

// Suspended says that clients are not taken now. Any goroutine.
func (s *Server) Suspended() bool { return s.suspended.Load() }

// Resume opens the listeners again that Suspend has closed, at their addresses. Any goroutine.
func (s *Server) Resume() error {
	if !s.control.TryLock() {
		return errors.New("another change of the listeners is under way")
	}
	defer s.control.Unlock()
	if !s.suspended.Load() {
		return nil
	}
	for i := range s.listeners {
		l := &s.listeners[i]
		if *l.bound == nil {
			continue
		}
		if _, err := s.bind(l, (*l.bound).String()); err != nil {
			s.loop.Unlisten() // all or none
			return bindError(l.name, l.flag, (*l.bound).String(), err)
		}
	}
	s.suspended.Store(false)
	s.log.Info("clients are taken again")
	return nil
}

// Stop gives what asks whoever runs the broker to shut it down.
func (s *Server) Stop() (stop func(), err error) {
	if s.opt.OnStop == nil {
		return nil, errors.New("this broker is part of a program, which alone can stop it")
	}
	return func() {
		s.log.Info("an administrator stops the broker")
		s.opt.OnStop()
	}, nil
}

// SetMemoryLimit sets the resident memory from which on publishers are paused, until the next start or Reload:
// size as in the settings or, if that is "", a share of the machine's memory. A share of nothing is the least
// limit there can be, which pauses all publishers, as RabbitMQ has it. When it returns an alarm has begun or ended by it,
// as with the next two. Any goroutine.
func (s *Server) SetMemoryLimit(size string, fraction float64) error {
	bytes, err := s.sizeOrShare(size, fraction)
	if err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if size == "" {
		bytes = max(nothing, bytes)
	}
	s.alarms.setLimits(MemoryLimit{Bytes: bytes}, s.Resources().DiskFreeLimit)
	s.alarms.look()
	s.limitUnfinished()
	s.log.Info("an administrator has set the memory limit", "limit", s.Resources().MemoryLimit)
	return nil
}

// SetDiskFreeLimit sets the free space below which publishers are paused, likewise.
func (s *Server) SetDiskFreeLimit(size string, fraction float64) error {
	bytes, err := s.sizeOrShare(size, fraction)
	if err != nil {
		return fmt.Errorf("disk_free: %w", err)
	}
	s.alarms.setLimits(MemoryLimit{Bytes: s.Resources().MemoryLimit}, bytes)
	s.alarms.look()
	s.log.Info("an administrator has set the limit of free disk space", "limit", bytes)
	return nil
}

// CheckLimit says what is wrong with a size or share for SetMemoryLimit or SetDiskFreeLimit, and sets nothing. Any goroutine.
func (s *Server) CheckLimit(size string, fraction float64) error {
	_, err := s.sizeOrShare(size, fraction)
	return err
}

// ForceAlarm raises the alarm of memory or of the disk although nothing is short, as tests of clients want it, until it
// is called again or the next start: then the limits decide. Any goroutine.
func (s *Server) ForceAlarm(which broker.Reason, on bool) {
	s.log.Info("an administrator decides about an alarm", "memory", which&broker.PauseMemory != 0, "disk", which&broker.PauseDisk != 0, "raised", on)
	s.alarms.force(which, on)
	s.alarms.look()
}

// sizeOrShare is a size or, if that is "", a share of the machine's memory.
func (s *Server) sizeOrShare(size string, fraction float64) (int64, error) {
	if size != "" {
		return parseSize(size)
	}
	total := s.Resources().MemoryTotal
	if total == 0 {
		return 0, errors.New("how much memory this machine has is not known: give a size")
	}
	return int64(fraction * float64(total)), nil
}
