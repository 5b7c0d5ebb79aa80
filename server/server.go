// Package server assembles a broker: it opens the data directory, recovers, binds the listeners and
// joins sessions to connections. It alone knows all parts.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/definitions"
	"github.com/firemq/firemq/broker/message"
	amqpframes "github.com/firemq/firemq/frames/amqp"
	fmq1frames "github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/internal/vfs"
	"github.com/firemq/firemq/loop"
	"github.com/firemq/firemq/mgmt"
	"github.com/firemq/firemq/session"
	"github.com/firemq/firemq/session/amqp"
	"github.com/firemq/firemq/session/fmq1"
	"github.com/firemq/firemq/tracing"
)

// Options configure a Server. The zero value of a field is its documented default, except the
// listeners, whose defaults are the command's.
type Options struct {
	// AMQP, Fire and HTTP are listener addresses: "host:port", a bare port (all interfaces) or
	// "off" ("" too).
	// Port 0 is any free one, which AMQPAddr, FireAddr and HTTPAddr tell.
	AMQP, Fire, HTTP string

	// AMQPS and Fires are the listeners inside TLS; they need TLSCert and TLSKey.
	AMQPS, Fires string
	// TLSCert and TLSKey are PEM files: the certificate with its chain, and its key. They are read again
	// when they change, and by ReloadTLS.
	TLSCert, TLSKey string

	// Origins are the origins of web pages that may connect over WebSocket, "https://app.example.com",
	// or "*" for all; nil: those of the host that they connect to.
	Origins []string

	Data      string // data directory; not used with Ephemeral
	Ephemeral bool   // keep everything in memory
	NoSync    bool   // confirm after the write to the OS, without waiting for the disk
	// Import is a file of definitions that the start loads before it listens; "": none. If anything in it is
	// wrong the start fails and nothing is changed.
	Import string

	// DefaultUser and DefaultPass are the first user, made when there are no users; "": guest.
	DefaultUser, DefaultPass string
	// LoopbackUsers may log in from this machine only; nil: guest, empty but not nil: nobody.
	LoopbackUsers []string

	// MemoryLimit is the resident memory of this process from which on publishers are paused; the Go
	// runtime's own limit is set from it, unless GOMEMLIMIT did. The zero value is no limit: a program
	// that runs a broker inside has memory of its own.
	MemoryLimit MemoryLimit
	// DiskFreeLimit is the free space in bytes of the data directory's file system below which
	// publishers are paused; 0: no limit.
	DiskFreeLimit int64

	// Limits of a connection, and of their number. Zero values are the defaults of the settings.
	MaxConnections   int // 0: no limit
	MaxMessageSize   int // bytes of a body
	MaxFrame         int // bytes of a FireMQ protocol frame
	ChannelMax       uint16
	Heartbeat        time.Duration // whole seconds; negative: none is offered
	HandshakeTimeout time.Duration
	// ConsumerTimeout is how long a message may wait for its acknowledgement where neither the consumer nor the
	// queue says otherwise; 0: 30 minutes, negative: for ever.
	ConsumerTimeout time.Duration

	Tracing Tracing // the export of spans

	// OnStop is called when an administrator stops the broker over the API; whoever has started it shuts it down.
	// nil: that is refused. It must not wait.
	OnStop func()

	// Log gets the log, with the part it comes from as "module": amqp, broker, fire, http, loop, tracing; nil: discarded.
	Log     *slog.Logger
	Version string // shown to clients and operators
	// OnReplay is told how far the recovery is, some times a second: the bytes of the journal that are
	// read, of those that are to be, and the records in them.
	OnReplay func(read, of, records int64)

	fs vfs.FS // of the journal, a seam for tests; nil: the system's
}

// Tracing says where the spans of messages go. The zero value is nowhere.
type Tracing struct {
	Endpoint    string        // of an OpenTelemetry collector, http://localhost:4318/v1/traces; "": nothing is traced
	SampleRatio float64       // of the messages that bring no context of their own
	Service     string        // service.name; "": firemq
	Timeout     time.Duration // of a request; 0: 10 s
	Headers     http.Header   // of every request
}

// Recovery says what the start found on disk.
type Recovery struct {
	Queues, Messages int
	Damaged          int // places in the journal that could not be read
	Took             time.Duration
}

// Server is a running broker. Any goroutine may call its methods.
type Server struct {
	opt      Options
	log      *slog.Logger
	broker   *broker.Broker
	loop     *loop.Server
	http     *mgmt.Server
	lock     io.Closer
	saver    *saver
	spans    *tracing.Exporter // nil: nothing is traced
	certs    *certificates     // nil: no TLS
	tls      *tls.Config       // of certs
	recovery Recovery
	alarms   *alarms // nil before the broker is open

	limits atomic.Pointer[limits] // of connections accepted from now on
	pauses session.Pauses         // of all connections

	listeners []clientPort // of clients, in the order in which they are bound; their addresses are guarded by control
	control   sync.Mutex   // one change by Suspend, Resume or Shutdown at a time; a leaf
	suspended atomic.Bool  // the listeners of clients are closed

	amqp, fire, amqps, fires, httpAddr net.Addr

	fatal     chan struct{} // closed when nothing can be confirmed any more
	fatalOnce sync.Once
	stop      sync.Once
	stopped   error // the result of Shutdown, set by stop
	err       error // set before fatal is closed
}

// Start recovers the data and binds every listener; clients can connect when it returns. The end of ctx is
// seen between the two: a recovery is not cut short, and a running Server does not depend on it. An error
// is one line that names the cause and what to do about it.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.DefaultUser == "" {
		o.DefaultUser = "guest"
	}
	if o.DefaultPass == "" {
		o.DefaultPass = "guest"
	}
	if o.LoopbackUsers == nil {
		o.LoopbackUsers = []string{"guest"}
	}
	s := &Server{opt: o, log: o.Log, fatal: make(chan struct{})}
	if err := s.open(); err != nil {
		s.abandon()
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		s.abandon()
		return nil, err
	}
	if err := s.listen(); err != nil {
		s.abandon()
		return nil, err
	}
	return s, nil
}

// codecs are those of all messages that a journal may hold.
var codecs = map[message.Encoding]message.Codec{
	message.AMQP: amqpframes.PropertyCodec{},
	message.FMQ1: fmq1frames.Codec{},
}

// open takes the data directory and recovers the broker.
func (s *Server) open() error {
	o := broker.Options{
		Node:          mgmt.NodeName(),
		NoSync:        s.opt.NoSync,
		LoopbackUsers: s.opt.LoopbackUsers,

		ConsumerTimeout: consumerTimeout(s.opt.ConsumerTimeout),
		Log:             s.part("broker"),
		OnFatal:         s.fail,
		OnReplay:        s.opt.OnReplay,
		Codecs:          codecs,
	}
	var file, diskDir string
	if !s.opt.Ephemeral {
		dir := s.opt.Data
		if err := s.claim(dir); err != nil {
			return err
		}
		diskDir = dir
		s.checkDisk(dir)
		file = filepath.Join(dir, "definitions.json")
		start, err := definitions.Load(vfs.OS{}, file)
		if err != nil {
			return fmt.Errorf("%w; restore it from a backup, or move it away to start without topology and users", err)
		}
		o.Start = start
		if o.FS = s.opt.fs; o.FS == nil {
			o.FS = vfs.OS{}
		}
		o.JournalDir = filepath.Join(dir, "journal")
	}
	fresh := len(o.Start.VHosts) == 0
	if fresh {
		o.Start.VHosts = []string{"/"}
		o.Start.VHostMeta = map[string]broker.VHostMeta{"/": {Description: "Default virtual host"}} // as RabbitMQ's
	}
	s.saver = newSaver(file, s.log)
	o.OnChange = s.saver.changed
	alarms := newAlarms(s.log, systemProbe(), s.opt.MemoryLimit, s.opt.DiskFreeLimit, diskDir)
	o.OnStall, o.OnGrowth = alarms.stalled, alarms.poke
	if s.trace(); s.spans != nil {
		o.Tracer = s.spans
	}
	b, rec, err := broker.Open(o)
	if err != nil {
		return fmt.Errorf("recover %s: %w", s.opt.Data, err)
	}
	s.broker = b
	s.alarms = alarms
	s.limitUnfinished()
	alarms.start(b.SetAlarm, func(g granted) {
		b.Allow(g.published)
		b.AllowLate(g.late, g.owing, g.each)
		b.AllowKept(g.kept, g.declared)
	})
	s.saver.start(b)
	s.recovery = Recovery{Queues: rec.Queues, Messages: rec.Messages, Damaged: len(rec.Damaged), Took: rec.Took}
	if err := s.importFile(); err != nil {
		return err
	}
	if len(b.Users().Users()) == 0 {
		if err := b.AddFirstUser(s.opt.DefaultUser, s.opt.DefaultPass); err != nil {
			return fmt.Errorf("create user '%s': %w", s.opt.DefaultUser, err)
		}
	}
	if fresh {
		if err := s.saver.now(); err != nil {
			return err
		}
	}
	return nil
}

// trace starts the export of spans, if there is somebody to send them to.
func (s *Server) trace() {
	t := s.opt.Tracing
	if t.Endpoint == "" {
		return
	}
	if t.Service == "" {
		t.Service = "firemq"
	}
	if t.Timeout == 0 {
		t.Timeout = 10 * time.Second
	}
	s.spans = tracing.New(tracing.Options{
		Endpoint: t.Endpoint, Headers: t.Headers, Timeout: t.Timeout, Ratio: t.SampleRatio,
		Service: t.Service, Instance: mgmt.NodeName(), Version: s.opt.Version, Log: s.part("tracing"),
	})
}

// spanStats are what the metrics show of the export.
func (s *Server) spanStats() mgmt.SpanStats {
	if s.spans == nil {
		return mgmt.SpanStats{}
	}
	return mgmt.SpanStats(s.spans.Stats())
}

// pauseReasons name why publishes wait, or connections are not read at all.
var pauseReasons = [...]struct {
	name string
	bit  uint32
}{
	{"memory", uint32(broker.PauseMemory)},
	{"disk", uint32(broker.PauseDisk)},
	{"growth", uint32(broker.PauseGrowth)},
	{"journal", uint32(broker.PauseJournal)},
	{"throttle", session.PauseThrottle},
	{"room", uint32(broker.PauseRoom)},
	{"backlog", session.PauseBacklog},
	{"held", session.PauseHeld},
	{"closing", uint32(broker.PauseClosing)},
}

// network is what the metrics show of the event loops.
func (s *Server) network() (n mgmt.Network) {
	st := s.loop.Stats()
	for i, l := range st.Loops {
		name := "goroutines"
		if i < len(st.Loops)-1 {
			name = strconv.Itoa(i)
		}
		n.Loops = append(n.Loops, mgmt.Loop{Name: name, Turns: l.Turns, Busy: l.Busy})
	}
	n.Received, n.Sent, n.Writes = st.Received, st.Sent, st.Writes
	for _, r := range pauseReasons {
		n.Pauses = append(n.Pauses, mgmt.Pauses{Reason: r.name, Count: s.pauses.Count(r.bit)})
	}
	return n
}

// importFile loads the definitions of Options.Import and waits until they are on disk. It comes before the first
// user is made: definitions with users need no other.
func (s *Server) importFile() error {
	name := s.opt.Import
	if name == "" {
		return nil
	}
	document, err := readFile(name, maxDefinitions)
	if err != nil {
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			err = p.Err
		}
		return fmt.Errorf("definitions file %s cannot be read: %w; name another with --import", name, err)
	}
	warnings, err := mgmt.Import(s.broker, document, "")
	if err != nil {
		return fmt.Errorf("definitions file %s was not imported: %w; correct it, or start without --import", name, err)
	}
	for _, w := range warnings {
		s.log.Warn("definitions: "+w, "file", name)
	}
	select {
	case <-s.broker.Settled():
	case <-s.fatal:
		return s.err
	}
	s.log.Info("definitions imported", "file", name)
	return nil
}

// leastDisk is what the journal needs before it takes any messages, in bytes: a segment, and what is kept for when the
// disk is full.
const leastDisk = 64 << 20

// checkDisk warns, before the first start in dir has taken any of the disk, when that has no room for it.
func (s *Server) checkDisk(dir string) {
	if old, err := os.ReadDir(filepath.Join(dir, "journal")); err != nil || len(old) > 0 {
		return
	}
	free, err := systemProbe().diskFree(dir)
	if need := leastDisk + s.opt.DiskFreeLimit; err == nil && free < need {
		s.log.Warn("the disk is too small, publishers will be paused: give --data another one, make room, or lower --disk-free-limit",
			"directory", dir, "free", free, "needed", need)
	}
}

// claim makes the data directory and locks it for this process.
func (s *Server) claim(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "journal"), 0o750); err != nil {
		return dataError(dir, err)
	}
	lock, err := vfs.Lock(filepath.Join(dir, "firemq.lock"))
	if err != nil {
		if errors.Is(err, vfs.ErrInUse) {
			return fmt.Errorf("data directory %s is in use by another broker: stop it, or choose another directory with --data", dir)
		}
		return dataError(dir, err)
	}
	s.lock = lock
	if err := definitions.CheckFormat(vfs.OS{}, filepath.Join(dir, "node.json")); err != nil {
		return err
	}
	return nil
}

func dataError(dir string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("data directory %s cannot be used: %w; give this user access to it, or choose another with --data", dir, err)
}

// part is the log of one part of the broker, which --log-level addresses by this name.
func (s *Server) part(name string) *slog.Logger { return s.log.With("module", name) }

// tick is how often sessions look at their clocks. The shortest heartbeat interval is a second, and half
// of it without a frame calls for one.
const tick = 250 * time.Millisecond

// listen binds every listener.
func (s *Server) listen() error {
	l, err := loop.New(loop.Options{
		Log: s.part("loop"), Tick: tick, MaxConns: s.opt.MaxConnections,
		Admitted: s.broker.Admitted, Handshake: s.broker.Handshake,
		MaxWant: maxFrame + fmq1frames.Overhead, // whatever a reload makes of MaxFrame
	})
	if err != nil {
		return fmt.Errorf("start the event loops: %w", err)
	}
	s.loop = l
	s.limits.Store(s.limitsOf(&s.opt))
	secure, err := s.secure()
	if err != nil {
		return err
	}
	bind := func(name, flag, value string, listen func(addr string) (net.Addr, error)) (net.Addr, error) {
		addr, ok := address(value)
		if !ok {
			return nil, nil
		}
		a, err := listen(addr)
		if err != nil {
			return nil, bindError(name, flag, addr, err)
		}
		return a, nil
	}
	amqpHandler := func(c *loop.Conn) loop.Session { return amqp.New(c, s.broker, s.limits.Load().amqp) }
	fireHandler := func(c *loop.Conn) loop.Session { return fmq1.New(c, s.broker, s.limits.Load().fmq1) }
	s.listeners = []clientPort{
		{"AMQP", "--amqp", s.opt.AMQP, false, amqpHandler, &s.amqp},
		{"AMQP over TLS", "--amqps", s.opt.AMQPS, true, amqpHandler, &s.amqps},
		{"FireMQ protocol", "--fire", s.opt.Fire, false, fireHandler, &s.fire},
		{"FireMQ protocol over TLS", "--fires", s.opt.Fires, true, fireHandler, &s.fires},
	}
	s.tls = secure
	for i := range s.listeners {
		on := &s.listeners[i]
		if *on.bound, err = bind(on.name, on.flag, on.value, func(addr string) (net.Addr, error) { return s.bind(on, addr) }); err != nil {
			return err
		}
	}
	if addr, ok := address(s.opt.HTTP); ok {
		ws := l.WebSocket(loop.WebSocketOptions{Origins: s.opt.Origins}, func(query func(string) string) loop.Handler {
			o := s.limits.Load().fmq1
			o.Framed, o.VHost = true, query("vhost")
			return func(c *loop.Conn) loop.Session { return fmq1.New(c, s.broker, o) }
		})
		data := s.opt.Data
		if s.opt.Ephemeral {
			data = ""
		}
		h, err := mgmt.Listen(addr, mgmt.Options{
			Broker: s.broker, Version: s.opt.Version, Log: s.part("http"), Fire: ws, Data: data, Listeners: s.ports, Resources: s.resources,
			Spans: s.spanStats, Network: s.network, Control: s,
		})
		if err != nil {
			return bindError("HTTP", "--http", addr, err)
		}
		s.http = h
		s.httpAddr = h.Addr()
	}
	return nil
}

// ports lists the protocol listeners for operators.
func (s *Server) ports() (list []mgmt.Listener) {
	if s.suspended.Load() {
		return nil
	}
	for _, l := range []struct {
		protocol string
		addr     net.Addr
		secure   bool
	}{{"amqp", s.amqp, false}, {"amqp/ssl", s.amqps, true}, {"fire", s.fire, false}, {"fire/ssl", s.fires, true}} {
		if l.addr == nil {
			continue
		}
		m := mgmt.Listener{Protocol: l.protocol, Addr: l.addr, TLS: l.secure}
		if l.secure {
			m.Certificate = s.certs.leaf
		}
		list = append(list, m)
	}
	return list
}

// resources are what the management API shows of Resources.
func (s *Server) resources() mgmt.Resources {
	r := s.Resources()
	m := mgmt.Resources{MemoryLimit: r.MemoryLimit, DiskFreeLimit: r.DiskFreeLimit, MemoryAlarm: r.MemoryAlarm, DiskAlarm: r.DiskAlarm}
	m.Connections, m.MaxConnections = s.loop.Connections()
	return m
}

// limits are what sessions are made with. Immutable.
type limits struct {
	amqp amqp.Options
	fmq1 fmq1.Options
}

func (s *Server) limitsOf(o *Options) *limits {
	l := &limits{
		amqp: amqp.Options{
			ChannelMax: o.ChannelMax, Heartbeat: o.Heartbeat, MaxMessageSize: o.MaxMessageSize, HandshakeTimeout: o.HandshakeTimeout,
			Version: s.opt.Version, Pauses: &s.pauses, Log: s.part("amqp"),
		},
		fmq1: fmq1.Options{
			MaxFrame: uint32(o.MaxFrame), MaxMessageSize: o.MaxMessageSize, Heartbeat: o.Heartbeat, HandshakeTimeout: o.HandshakeTimeout,
			Version: s.opt.Version, Pauses: &s.pauses, Log: s.part("fire"),
		},
	}
	if 0 < o.MaxFrame && o.MaxFrame < amqpFrameMax {
		l.amqp.FrameMax = uint32(o.MaxFrame)
	}
	return l
}

// amqpFrameMax is what AMQP sessions offer by themselves: MaxFrame lowers it only.
const amqpFrameMax = 131072

// Reload takes those options of o that may change while the broker runs: the limits. Those of a connection
// count for connections accepted from now on. Any goroutine.
func (s *Server) Reload(o Options) {
	s.limits.Store(s.limitsOf(&o))
	s.loop.SetMaxConns(o.MaxConnections)
	s.alarms.setLimits(o.MemoryLimit, o.DiskFreeLimit)
	s.limitUnfinished()
	s.broker.SetConsumerTimeout(consumerTimeout(o.ConsumerTimeout))
}

// consumerTimeout is an option's as the broker has it.
func consumerTimeout(d time.Duration) time.Duration {
	if d == 0 {
		return 30 * time.Minute
	}
	return d
}

// unfinishedShare is the part of the memory limit that unfinished messages may take together: 1/4.
const unfinishedShare = 4

func (s *Server) limitUnfinished() {
	s.broker.LimitUnfinished(s.alarms.resources().MemoryLimit / unfinishedShare)
}

// Resources are the latest readings of memory and disk, their limits and the alarms. Any goroutine.
func (s *Server) Resources() Resources { return s.alarms.resources() }

// secure loads the certificate, if there is a listener that needs one or files that should be one.
func (s *Server) secure() (*tls.Config, error) {
	cert, key := s.opt.TLSCert, s.opt.TLSKey
	if cert == "" && key == "" {
		for _, l := range []struct{ flag, value string }{{"--amqps", s.opt.AMQPS}, {"--fires", s.opt.Fires}} {
			if _, on := address(l.value); on {
				return nil, fmt.Errorf("%s needs a certificate: give its files with --tls-cert and --tls-key", l.flag)
			}
		}
		return nil, nil
	}
	if cert == "" || key == "" {
		return nil, errors.New("a TLS certificate and its key belong together: give both --tls-cert and --tls-key")
	}
	var err error
	if s.certs, err = openCertificates(cert, key, certPoll, s.log); err != nil {
		return nil, err
	}
	return s.certs.config(), nil
}

// ReloadTLS reads the files of the certificate again, for new connections. When they cannot be used the old
// certificate stays. Any goroutine.
func (s *Server) ReloadTLS() error {
	if s.certs == nil {
		return errors.New("there is no TLS certificate to read again: give one with --tls-cert and --tls-key")
	}
	return s.certs.reload()
}

// address makes "host:port" of a listener value; ok is false when it is off.
func address(value string) (addr string, ok bool) {
	switch {
	case value == "" || value == "off":
		return "", false
	case isPort(value):
		return ":" + value, true
	}
	return value, true
}

func isPort(s string) bool {
	for _, r := range s {
		if r < '0' || r > '9' {
			return false
		}
	}
	return true
}

func bindError(name, flag, addr string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s port %s is in use: stop the program that listens there, or choose another port with %s", name, addr, flag)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%s address %s may not be bound by this user: choose a port above 1023 with %s", name, addr, flag)
	}
	return fmt.Errorf("%s address %s cannot be bound: %w; give host:port, a port, or off with %s", name, addr, err, flag)
}

// AMQPAddr, AMQPSAddr, FireAddr, FiresAddr and HTTPAddr are the bound addresses; nil when the listener is
// off.
func (s *Server) AMQPAddr() net.Addr  { return s.amqp }
func (s *Server) AMQPSAddr() net.Addr { return s.amqps }
func (s *Server) FireAddr() net.Addr  { return s.fire }
func (s *Server) FiresAddr() net.Addr { return s.fires }
func (s *Server) HTTPAddr() net.Addr  { return s.httpAddr }

// Recovered says what the start found on disk.
func (s *Server) Recovered() Recovery { return s.recovery }

// FirstUser says whether there is a user Options.DefaultUser, and whether Options.DefaultPass is its password: definitions that
// were imported may have other users, and a password may have been changed since.
func (s *Server) FirstUser() (exists, password bool) {
	_, exists = s.broker.Users().User(s.opt.DefaultUser)
	_, err := s.broker.Users().Authenticate(s.opt.DefaultUser, s.opt.DefaultPass)
	return exists, err == nil
}

// Broker is the broker inside, for the management API and tests.
func (s *Server) Broker() *broker.Broker { return s.broker }

// Done is closed on a fatal error, after which nothing is confirmed; Err tells it.
func (s *Server) Done() <-chan struct{} { return s.fatal }

// Err is the fatal error, nil before Done is closed.
func (s *Server) Err() error {
	select {
	case <-s.fatal:
		return s.err
	default:
		return nil
	}
}

func (s *Server) fail(err error) {
	s.fatalOnce.Do(func() {
		s.err = err
		close(s.fatal)
	})
}

// Shutdown stops accepting, sends the confirms that are due, tells every client, writes everything to disk
// and stops. ctx bounds how long clients may take to say goodbye: those that are left then are cut off. The disk has as
// long, and two seconds at least; when it does not answer the goroutines that wait for it are left behind, and the
// program is expected to end. The error says what could not be written. Called again it waits for the first call and
// gives its result.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop.Do(func() { s.stopped = s.shutdown(ctx) })
	return s.stopped
}

func (s *Server) shutdown(ctx context.Context) error {
	s.control.Lock() // for good: nothing resumes a broker that stops
	s.loop.CloseListeners()
	s.broker.Hurry() // requests over HTTP may wait for the disk
	if s.http != nil {
		s.http.Close()
	}
	s.broker.Stop(ctx, &broker.Error{Kind: broker.ConnectionForced, Text: "broker forced connection closure with reason 'shutdown'"})
	left := s.loop.Len()
	if err := s.loop.Shutdown(ctx); err != nil {
		// Nothing is lost by it: what they were promised is written below.
		s.log.Warn("clients that did not leave in time were cut off", "connections", left)
	}
	least := time.NewTimer(diskLeast)
	defer least.Stop()
	finished := make(chan error, 1)
	go func() {
		if s.http != nil {
			s.http.Wait()
		}
		finished <- s.finish(ctx)
	}()
	select {
	case err := <-finished:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-finished:
		return err
	case <-least.C:
		return errDisk
	}
}

// diskLeast is how long a shutdown waits for the disk, at least, when clients have taken all the time there was.
const diskLeast = 2 * time.Second

var errDisk = errors.New("the disk does not answer")

// finish stops what is behind the sessions. ctx bounds how long the last spans are waited for.
func (s *Server) finish(ctx context.Context) error {
	var errs []error
	if s.alarms != nil {
		s.alarms.stop()
	}
	if s.certs != nil {
		s.certs.stop()
	}
	if s.broker != nil {
		s.broker.Hurry() // the saver waits for it
	}
	if s.saver != nil {
		errs = append(errs, s.saver.stop())
	}
	if s.broker != nil {
		errs = append(errs, s.broker.Close())
	}
	if s.spans != nil {
		s.spans.Shutdown(ctx)
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// abandon undoes a start that failed half-way.
func (s *Server) abandon() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if s.http != nil {
		s.http.Close()
	}
	if s.loop != nil {
		s.loop.Shutdown(ctx)
	}
	if s.http != nil {
		s.http.Wait()
	}
	s.finish(ctx)
}
