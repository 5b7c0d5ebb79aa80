// Package mgmt shows: the HTTP listener with RabbitMQ's management API, a UI on top of it, metrics and a health check.
//
//	/         ui.go: the files in ui/, which call the API from a browser
//	/api      routes.go finds the endpoint (endpoints.go), checks credentials, tags and vhost, and calls its
//	          handler: one file a resource. json.go writes the answers, list.go pages and sorts them.
//	/metrics  metrics.go
//	/healthz  no credentials
//
// Verbs that change something act through a broker.Conn of the user who asks, so that permissions hold.
// Rates come from samples (rates.go). A handler runs in its connection's goroutine and may wait for the disk.
package mgmt

import (
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/firemq/firemq/broker"
)

// Options configure the listener.
type Options struct {
	Broker  *broker.Broker
	Version string
	Log     *slog.Logger // nil: discarded
	// Fire serves /fire, the WebSocket endpoint, by hijacking; nil: there is none. What it has hijacked is
	// its own: Close leaves it alone, and Wait waits for it.
	Fire fasthttp.RequestHandler

	Node      string            // the node's name: "firemq@" and the host's
	Data      string            // data directory; "": everything is in memory
	Listeners func() []Listener // the broker's ports beside this one; nil: none
	Resources func() Resources  // limits and alarms; nil: none
	Spans     func() SpanStats  // what became of spans; nil: there are none
	Network   func() Network    // what connections did; nil: not known
	Control   Control           // changes how the broker runs; nil: nobody may
}

// Control changes how the broker runs, until its next start. Any goroutine.
type Control interface {
	// SetMemoryLimit and SetDiskFreeLimit replace the limits of the alarms. size is as in the settings, or it is
	// "" and fraction counts, of the machine's memory.
	SetMemoryLimit(size string, fraction float64) error
	SetDiskFreeLimit(size string, fraction float64) error
	CheckLimit(size string, fraction float64) error // what they would say
	// ForceAlarm raises the alarm of memory or of the disk, or lets the limits decide again.
	ForceAlarm(which broker.Reason, on bool)
	// Suspend closes the listeners of clients, with close their connections, too; Resume opens them again.
	Suspend(close bool)
	Resume() error
	Suspended() bool
	// Stop gives what stops the broker, in the background, once the answer is on its way.
	Stop() (stop func(), err error)
}

// Resources are the limits of memory, disk and connections, the alarms, and the connections of clients that count.
type Resources struct {
	MemoryLimit, DiskFreeLimit  int64 // bytes, 0: none
	MemoryAlarm, DiskAlarm      bool
	Connections, MaxConnections int // MaxConnections 0: no limit
}

// SpanStats are what became of spans since the start.
type SpanStats struct {
	Exported, Dropped, Failures uint64 // Failures are requests to the collector
	Waiting                     int
}

// Network is what the connections of clients did since the start.
type Network struct {
	Loops                  []Loop
	Received, Sent, Writes uint64   // bytes, and calls that sent them
	Pauses                 []Pauses // why they, or their publishes, had to wait
}

// Loop is an event loop: its turns, and how long they took.
type Loop struct {
	Name  string
	Turns uint64
	Busy  time.Duration
}

// Pauses says how often connections were paused for a reason.
type Pauses struct {
	Reason string
	Count  uint64
}

// Bounds of a request, felt by its sender.
const (
	maxHeader   = 16 << 10
	acceptPause = 50 * time.Millisecond // after a failed accept
)

// Server is a running HTTP listener.
type Server struct {
	opt      Options // immutable, like all up to mu
	pace     pace
	started  time.Time // of the listener
	listener net.Listener
	http     *fasthttp.Server
	router   *router
	sampler  *sampler
	quit     chan struct{} // closed by Close
	sweep    chan struct{} // holds one token: there is garbage

	bodies, answers budget       // of all requests
	garbage         atomic.Int64 // bytes that requests have held since the last sweep

	running sync.WaitGroup // the acceptor, the sampler, the sweeper and a goroutine for each connection
	open    sync.WaitGroup // every connection, hijacked ones too
	mu      sync.Mutex
	conns   map[*conn]struct{}   // those that are not hijacked; guarded by mu
	byOwner map[netip.Prefix]int // how many of them; guarded by mu
	closed  bool                 // guarded by mu
}

// Listen binds addr and serves it. Errors are those of the bind.
func Listen(addr string, o Options) (*Server, error) { return listen(addr, o, usualPace) }

func listen(addr string, o Options, p pace) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Node == "" {
		o.Node = NodeName()
	}
	s := &Server{
		opt: o, pace: p, started: time.Now(), listener: l, router: newRouter(endpoints()),
		sampler: newSampler(o.Broker), quit: make(chan struct{}), sweep: make(chan struct{}, 1),
		conns: make(map[*conn]struct{}), byOwner: make(map[netip.Prefix]int),
	}
	s.bodies, s.answers = newBudget(s.share(bodiesShare)), newBudget(s.share(answersShare))
	s.http = &fasthttp.Server{
		Handler:            s.handler(),
		Name:               "FireMQ",
		Logger:             quiet{o.Log},
		MaxRequestBodySize: 1, // is read before the handler is called: the rest is up to receive
		StreamRequestBody:  true,
		ReadBufferSize:     maxHeader,
		ReadTimeout:        p.header,
		WriteTimeout:       p.answer,
		IdleTimeout:        p.idle,
		ErrorHandler:       unreadable,
		ExpectHandler:      s.expect,
		ConnState:          s.state,

		DisablePreParseMultipartForm: true,
	}
	s.ensureClusterID()
	s.running.Go(s.accept)
	s.running.Go(func() { s.sampler.run(s.quit) })
	s.running.Go(s.sweeper)
	return s, nil
}

// NodeName is the name of a broker on this machine.
func NodeName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	return "firemq@" + host
}

// unreadable answers a request that could not be read.
func unreadable(c *fasthttp.RequestCtx, err error) {
	reason, status := "Malformed request", fasthttp.StatusBadRequest
	var small *fasthttp.ErrSmallBuffer
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		reason, status = "The request comes too slowly", fasthttp.StatusRequestTimeout
	case errors.As(err, &small):
		reason, status = "Exceeded HTTP header size limit", fasthttp.StatusRequestHeaderFieldsTooLarge
	}
	r := &request{RequestCtx: c}
	r.write(failed(status, "bad_request", reason))
	c.SetConnectionClose()
}

// accept serves each connection in a goroutine of its own. fasthttp's worker pool is not used: its
// janitor outlives the server by ten seconds.
func (s *Server) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			s.mu.Lock()
			closed := s.closed
			s.mu.Unlock()
			if closed {
				return
			}
			// Out of descriptors, for the most part: others may be closed meanwhile.
			s.opt.Log.Warn("the HTTP listener cannot accept", "error", err)
			time.Sleep(acceptPause)
			continue
		}
		s.add(c.(*net.TCPConn))
	}
}

// Addr is the bound address.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close stops the listener, cuts off its connections and waits for their goroutines. No request is
// served any more when it returns; hijacked connections live on.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		close(s.quit)
	}
	s.closed = true
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		c.cutOff()
	}
	s.listener.Close()
	s.running.Wait()
}

// Wait waits, after Close, until hijacked connections are closed, too: by those who hijacked them.
func (s *Server) Wait() { s.open.Wait() }

// handler compresses what clients accept compressed; /fire takes the connection as it is, and metrics write to it.
func (s *Server) handler() fasthttp.RequestHandler {
	rest := fasthttp.CompressHandlerLevel(s.serve, fasthttp.CompressBestSpeed)
	return func(c *fasthttp.RequestCtx) {
		socket := c.Conn().(*conn)
		s.enter(socket, serving)
		path := string(c.Path())
		if _, isAPI := apiPath(c); isAPI || !c.IsGet() && !c.IsHead() {
			path = ""
		}
		if path == "/fire" && s.opt.Fire != nil && c.IsGet() {
			if s.opt.Control != nil && s.opt.Control.Suspended() {
				c.Error("no clients are taken now\n", fasthttp.StatusServiceUnavailable)
				return
			}
			if s.opt.Fire(c); c.Hijacked() {
				s.remove(socket) // before its client knows: from its first byte on it is not Close's to cut off
			}
			return
		}
		if path == "/metrics" || strings.HasPrefix(path, "/metrics/") {
			s.serveMetrics(c, strings.TrimSuffix(strings.TrimPrefix(path, "/metrics"), "/"))
			return
		}
		rest(c)
	}
}

func (s *Server) serve(c *fasthttp.RequestCtx) {
	if segments, isAPI := apiPath(c); isAPI {
		s.serveAPI(c, segments)
		return
	}
	if !c.IsGet() && !c.IsHead() {
		c.Error("method not allowed\n", fasthttp.StatusMethodNotAllowed)
		return
	}
	switch path := string(c.Path()); {
	case path == "/healthz":
		c.SetContentType("text/plain; charset=utf-8")
		c.WriteString("ok\n")
	case !serveUI(c, path):
		c.Error("not found\n", fasthttp.StatusNotFound)
	}
}

// quiet sends what fasthttp logs of single connections to the debug level.
type quiet struct{ log *slog.Logger }

func (q quiet) Printf(format string, args ...any) {
	if q.log != nil {
		q.log.Debug("http", "format", format, "args", args)
	}
}
