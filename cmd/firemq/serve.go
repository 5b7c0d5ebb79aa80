package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/firemq/firemq/server"
	"github.com/spf13/cobra"
)

func newServe(t terminal) *cobra.Command {
	c := &cobra.Command{
		Use:   "firemq",
		Short: "FireMQ is a message broker: AMQP 0-9-1 for RabbitMQ clients, and its own protocol",
		Long: `FireMQ is a message broker. RabbitMQ clients connect to it unchanged over AMQP 0-9-1;
FireMQ's own protocol serves its SDKs.

Without a command, firemq runs the broker. A setting comes from its flag, else from its
environment variable, else from the settings file, else it has its default.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			resolve := func() (*server.Config, error) { return resolveSettings(t, c.Flags()) }
			config, err := resolve()
			if err != nil {
				return err
			}
			return serve(c.Context(), t, config, resolve)
		},
	}
	addSettings(c.Flags())
	return c
}

// serve runs the broker until a signal, a fatal error or the end of ctx. reload reads the settings again.
func serve(ctx context.Context, t terminal, config *server.Config, reload func() (*server.Config, error)) error {
	// From the first moment: a signal during a long recovery counts, too.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	ctx, stop := stopOn(ctx, signals, t.exit)
	defer stop()
	ctx, ask := context.WithCancel(ctx)
	defer ask()

	// Who no longer reads what the broker says does not end it.
	signal.Ignore(syscall.SIGPIPE)
	defer signal.Reset(syscall.SIGPIPE)

	log := config.NewLog(t.err)
	defer log.Flush()
	files, filesErr := server.RaiseFileLimit()
	o := config.Options
	o.Log, o.Version = log.Logger, server.Version
	o.OnStop = ask
	p := newProgress(t.err, isTerminal(t.err), log.Logger)
	o.OnReplay = p.replayed
	s, err := server.Start(ctx, o)
	p.end()
	if err != nil {
		if ctx.Err() != nil { // told to stop before it was ready
			return nil
		}
		return err
	}
	if t.environ != nil {
		for name, meant := range server.Misspelt(t.environ()) {
			log.Warn("an environment variable is no setting", "name", name, "meant", meant)
		}
	}
	if filesErr != nil {
		log.Warn("the number of connections is limited", "error", filesErr)
	}
	r := s.Resources()
	log.Info("started", "version", o.Version, "settings", config.File, "memory_limit", r.MemoryLimit, "memory", r.MemoryTotal,
		"disk_free_limit", r.DiskFreeLimit, "disk_free", r.DiskFree, "files", files)
	writeBanner(t.out, s, o, time.Since(started))
	debug.FreeOSMemory() // what only the start needed, as the program's pages
	trim()
	settled := time.NewTimer(settle)
	defer settled.Stop()
	var fatal error
	for running := true; running; {
		select {
		case <-settled.C:
			if s.Broker().ConnectionCount() == 0 { // else pages that are in use would go and come back
				trim()
			}
			continue
		case <-hangups:
			reloadSettings(log, config, s, reload)
			continue
		case <-ctx.Done():
			log.Info("shutting down", "timeout", config.ShutdownTimeout)
		case <-s.Done():
			fatal = s.Err()
		}
		running = false
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), config.ShutdownTimeout)
	defer cancel()
	err = s.Shutdown(limit)
	switch {
	case fatal != nil:
		return fatal
	case err != nil:
		return fmt.Errorf("the shutdown could not write everything: %w; the next start recovers what was confirmed", err)
	}
	return nil
}

// settle is how long after a start the last of its work is done: definitions.json is written, which takes as many
// pages of the program as all that an idle broker does.
const settle = 1500 * time.Millisecond

// reloadSettings carries out a SIGHUP: what may change while the broker runs does, and the log says so. When
// the settings are wrong they all stay as they are.
func reloadSettings(log *server.Log, config *server.Config, s *server.Server, reload func() (*server.Config, error)) {
	next, err := reload()
	if err != nil {
		log.Error("the settings are wrong and were not reloaded", "error", oneLine(err))
		return
	}
	changed, restart := config.Adopt(next)
	log.SetLevels(config.LogLevels)
	s.Reload(config.Options)
	if config.Options.TLSCert != "" {
		if err := s.ReloadTLS(); err != nil {
			log.Error("the TLS certificate was not changed", "error", err)
		}
	}
	for _, c := range restart {
		log.Warn("a setting was changed that needs a restart", "setting", c.Name, "running", c.Old, "file", c.New)
	}
	for _, c := range changed {
		log.Info("setting changed", "setting", c.Name, "old", c.Old, "new", c.New)
	}
	log.Info("settings reloaded", "changed", len(changed), "need_restart", len(restart))
}

// stopOn returns a context that the first signal ends. The second signal waits for nothing: it calls exit.
// stop ends the watch.
func stopOn(ctx context.Context, signals <-chan os.Signal, exit func(int)) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for first := true; ; first = false {
			select {
			case s := <-signals:
				if !first {
					exit(signalStatus(s))
					return
				}
				cancel()
			case <-over:
				return
			}
		}
	}()
	return ctx, func() {
		cancel()
		close(over)
		<-ended
	}
}

// signalStatus is the exit status of a process that a signal ended, as shells have it.
func signalStatus(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return exitFailure
}

// broker is what the banner tells about.
type broker interface {
	AMQPAddr() net.Addr
	AMQPSAddr() net.Addr
	FireAddr() net.Addr
	FiresAddr() net.Addr
	HTTPAddr() net.Addr
	Recovered() server.Recovery
	FirstUser() (exists, password bool)
}

// writeBanner says that the broker is ready and how to reach it; what is off is left out.
func writeBanner(w io.Writer, s broker, o server.Options, took time.Duration) {
	var b strings.Builder
	fmt.Fprintf(&b, "FireMQ %s is ready in %d ms\n\n", o.Version, max(1, took.Milliseconds()))
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s %s\n", what, fmt.Sprintf(format, args...))
	}
	login := loginOf(s, o)
	if a := s.AMQPAddr(); a != nil {
		line("AMQP 0-9-1", "amqp://%s%s", login, reachable(a))
	}
	if a := s.AMQPSAddr(); a != nil {
		line("AMQP, TLS", "amqps://%s%s", login, reachable(a))
	}
	if a := s.FireAddr(); a != nil {
		line("FireMQ", "fire://%s%s", login, reachable(a))
	}
	if a := s.FiresAddr(); a != nil {
		line("FireMQ, TLS", "fires://%s%s", login, reachable(a))
	}
	if a := s.HTTPAddr(); a != nil {
		line("WebSocket", "ws://%s/fire", reachable(a))
		line("Management", "http://%s", reachable(a))
		line("Metrics", "http://%s/metrics", reachable(a))
	}
	if o.Ephemeral {
		line("Data", "in memory, gone when the broker stops")
	} else {
		r := s.Recovered()
		text := fmt.Sprintf("%s, %s recovered", count(r.Queues, "queue"), count(r.Messages, "message"))
		if r.Damaged > 0 {
			text += fmt.Sprintf(", %s skipped", count(r.Damaged, "damaged record"))
		}
		line("Data", "%s (%s)", o.Data, text)
	}
	b.WriteByte('\n')
	io.WriteString(w, b.String())
}

// loginOf is the user part of the banner's URLs, nothing if that user is not there. A password of one's own is not printed.
func loginOf(s broker, o server.Options) string {
	switch exists, password := s.FirstUser(); {
	case !exists:
		return ""
	case password && o.DefaultUser == "guest" && o.DefaultPass == "guest":
		return "guest:guest@"
	}
	return url.User(o.DefaultUser).String() + "@"
}

// reachable is the address for a client on this machine.
func reachable(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && (ip.IsUnspecified() || ip.IsLoopback()) {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
