package fire

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/internal/transport"
)

// DefaultPort is the port of the FireMQ protocol over TCP.
const DefaultPort = 5673

// defaultPorts are the ports of URLs that name none.
var defaultPorts = map[string]int{"fire": DefaultPort, "fires": 5674, "ws": 15672, "wss": 15671}

// defaultPath is where brokers have their WebSocket endpoint.
const defaultPath = "/fire"

// Config says where and how to connect. Only Addr is needed; ParseURL fills all that a URL says.
type Config struct {
	Scheme   string // fire (TCP), fires (TLS), ws or wss (WebSocket, over TLS); empty: fire
	Addr     string // host:port
	Path     string // of the WebSocket endpoint; empty: /fire
	User     string // empty: guest
	Password string // empty: guest
	VHost    string // empty: /

	// Heartbeat is the interval to ask for, in whole seconds; 0 is 30 s, negative none. The broker may
	// choose a shorter one. A connection that is silent for two intervals is lost.
	Heartbeat time.Duration
	// Name is shown to the broker's operators.
	Name string
	// OnError is told of errors that belong to no call, such as an unknown delivery tag. It is called by
	// the reading goroutine and must not block. Nil: they are ignored.
	OnError func(*ServerError)
	// OnFlow is told when the broker asks publishers to pause, and to go on; the Client obeys by itself.
	// It is called like OnError.
	OnFlow func(paused bool)

	// Reconnect says what happens when the connection is lost.
	Reconnect Reconnect
	// OnDisconnect is told when the connection is lost and will be made again, OnReconnect when it is
	// there. They are called one after the other and must not block or wait for the Client.
	OnDisconnect func(error)
	OnReconnect  func()

	// CAFile is a PEM file with the certificates that the broker's is verified with, besides the system's:
	// its own if it signed itself.
	CAFile string
	// Insecure accepts any certificate: whoever is in between reads and changes everything.
	Insecure bool
	// TLS replaces the default configuration of fires and wss, CAFile and Insecure with it.
	TLS *tls.Config
	// DialContext opens the TCP connection. Nil: net.Dialer's.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
}

// ParseURL reads a connection URL:
//
//	fire://user:password@host:5673/vhost         over TCP
//	fires://user:password@host:5674/vhost        over TLS
//	ws://user:password@host:15672/fire?vhost=v   over WebSocket
//	wss://user:password@host:15671/fire?vhost=v  over WebSocket and TLS
//
// User and password default to guest, the port to the one above, the path of a WebSocket to /fire and the
// vhost to "/". The vhost of fire and fires is the path without its leading slash, percent-decoded, so that
// "/" is written %2F or left out. Errors are *InvalidError and never contain the password.
func ParseURL(s string) (Config, error) {
	u, err := url.Parse(s)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // url.Error repeats the URL, with its password
		}
		return Config{}, invalid("the URL cannot be read: %v", strip(err, s))
	}
	port, ok := defaultPorts[u.Scheme]
	switch {
	case u.Scheme == "amqp" || u.Scheme == "amqps":
		return Config{}, invalid("%s:// is for AMQP clients; this one needs fire:// or fires://, ws:// or wss://", u.Scheme)
	case !ok:
		return Config{}, invalid("the URL must start with fire:// or fires://, ws:// or wss://")
	case u.Opaque != "" || u.Hostname() == "":
		return Config{}, invalid("the URL has no host")
	case u.Fragment != "":
		return Config{}, invalid("a %s:// URL has no fragment: write # in a vhost as %%23", u.Scheme)
	}
	if p := u.Port(); p != "" {
		if port, err = strconv.Atoi(p); err != nil || port < 1 || port > 65535 {
			return Config{}, invalid("the port is not between 1 and 65535")
		}
	}
	c := Config{Scheme: u.Scheme, Addr: net.JoinHostPort(u.Hostname(), strconv.Itoa(port))}
	if u.User != nil {
		c.User = u.User.Username()
		c.Password, _ = u.User.Password()
	}
	if err := c.place(u); err != nil {
		return Config{}, err
	}
	return c.withDefaults(), nil
}

// place takes vhost and path from the URL.
func (c *Config) place(u *url.URL) error {
	if !c.webSocket() {
		if u.RawQuery != "" || u.ForceQuery {
			return invalid("a %s:// URL has no query: the vhost is its path", c.Scheme)
		}
		c.VHost = strings.TrimPrefix(u.Path, "/")
		return nil
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return invalid("the query of the URL cannot be read: percent-encode what is special in the vhost")
	}
	for name, values := range query {
		if name != "vhost" || len(values) != 1 {
			return invalid("the query of a %s:// URL is one vhost=name, and nothing else", c.Scheme)
		}
	}
	c.VHost = query.Get("vhost")
	if c.Path = u.EscapedPath(); c.Path == "/" {
		c.Path = ""
	}
	return nil
}

func (c *Config) webSocket() bool { return c.Scheme == "ws" || c.Scheme == "wss" }

// strip hides what of err repeats the URL: a password may be in it.
func strip(err error, s string) string {
	text := err.Error()
	if at := strings.LastIndexByte(s, '@'); at >= 0 && strings.ContainsAny(text, "\"") {
		return "check its user, password and port, and percent-encode what is special in them"
	}
	return text
}

func (c Config) withDefaults() Config {
	if c.Scheme == "" {
		c.Scheme = "fire"
	}
	if c.Path == "" && c.webSocket() {
		c.Path = defaultPath
	}
	if c.User == "" {
		c.User = "guest"
	}
	if c.Password == "" {
		c.Password = "guest"
	}
	if c.VHost == "" {
		c.VHost = "/"
	}
	switch {
	case c.Heartbeat == 0:
		c.Heartbeat = 30 * time.Second
	case c.Heartbeat < 0:
		c.Heartbeat = 0
	}
	c.Reconnect.defaults()
	return c
}

// connect opens the connection: a stream of frames, behind the preface.
func (c Config) connect(ctx context.Context) (net.Conn, error) {
	to := transport.Target{Scheme: c.Scheme, Addr: c.Addr, Path: c.Path, TLS: c.TLS, Dial: c.DialContext}
	if to.TLS == nil {
		var err error
		if to.TLS, err = transport.TLS(c.CAFile, c.Insecure); err != nil {
			return nil, invalid("%v", err)
		}
	}
	return to.Open(ctx)
}

// preface is what comes before hello: nothing over WebSocket, which says what it is in its request.
func (c Config) preface() []byte {
	if c.webSocket() {
		return nil
	}
	return []byte(fmq1.Preface)
}
