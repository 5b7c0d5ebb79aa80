// Package firemq runs a FireMQ broker inside a Go program, for tests above all:
//
//	srv, err := firemq.Start(firemq.Ephemeral(), firemq.RandomPorts())
//	if err != nil { ... }
//	defer srv.Close()
//
// The broker is the same as the command's: RabbitMQ clients connect to srv.AMQPURL(), FireMQ's own
// to srv.FireURL(). Many may run in one process. All functions and methods are safe for any goroutine.
package firemq

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/firemq/firemq/server"
)

// Option changes one setting of Start; of two that set the same, the later one counts.
type Option func(*server.Options)

// Ephemeral keeps everything in memory, durable queues too; Data is not used then.
func Ephemeral() Option { return func(o *server.Options) { o.Ephemeral = true } }

// RandomPorts binds every listener to a free port of the loopback address.
func RandomPorts() Option {
	return func(o *server.Options) { o.AMQP, o.Fire, o.HTTP = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0" }
}

// Data keeps durable queues in a directory, made if missing. The default is firemq-data.
func Data(dir string) Option { return func(o *server.Options) { o.Data = dir } }

// NoSync confirms persistent messages after the write to the operating system, without waiting for
// the disk: they survive a crash of the process, not of the machine.
func NoSync() Option { return func(o *server.Options) { o.NoSync = true } }

// Log sends the broker's log to l; without it nothing is logged.
func Log(l *slog.Logger) Option { return func(o *server.Options) { o.Log = l } }

// Server is a running broker.
type Server struct{ s *server.Server }

// Start runs a broker that clients can connect to when it returns. Without options it is the
// broker that the command starts: ports 5672, 5673 and 15672, data in ./firemq-data. An error is
// one line that names the cause and the cure.
func Start(options ...Option) (*Server, error) {
	o := server.Options{AMQP: "5672", Fire: "5673", HTTP: "15672", Data: "firemq-data", Version: server.Version}
	for _, set := range options {
		set(&o)
	}
	s, err := server.Start(context.Background(), o)
	if err != nil {
		return nil, err
	}
	return &Server{s}, nil
}

// AMQPURL is where AMQP 0-9-1 clients on this machine connect, as guest.
func (s *Server) AMQPURL() string { return url("amqp", s.s.AMQPAddr()) }

// FireURL is where clients of the FireMQ protocol on this machine connect, as guest.
func (s *Server) FireURL() string { return url("fire", s.s.FireAddr()) }

// HTTPURL is the address of health (/healthz) and metrics (/metrics), without a slash at its end.
func (s *Server) HTTPURL() string {
	if a := s.s.HTTPAddr(); a != nil {
		return "http://" + local(a)
	}
	return ""
}

func url(scheme string, a net.Addr) string {
	if a == nil {
		return ""
	}
	return fmt.Sprintf("%s://guest:guest@%s", scheme, local(a))
}

// local is how this machine reaches a: a listener on all interfaces is reached as localhost.
func local(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("localhost", port)
	}
	return a.String()
}

// closeWait is how long Close lets clients say goodbye.
const closeWait = 5 * time.Second

// Close stops the broker: clients are told and have 5 s to say goodbye, everything is written to disk,
// every goroutine ends. Its error says what could not be done. Called again it gives the same result.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	return s.s.Shutdown(ctx)
}
