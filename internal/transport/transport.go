// Package transport opens the connections of clients to a broker: over TCP, TLS and WebSocket.
package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"

	"github.com/firemq/firemq/internal/websocket"
)

// Target says what to connect to, and how.
type Target struct {
	Scheme string // fire, amqp: TCP; fires, amqps: TLS; ws, wss: WebSocket, over TLS
	Addr   string // host:port
	Path   string // of a WebSocket, percent-encoded, with its slash
	// TLS is for fires, amqps and wss. The server's name is the host of Addr if it has none.
	TLS *tls.Config
	// Dial opens the TCP connection; nil: net.Dialer's.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// TLS makes a configuration: TLS 1.2 or 1.3, trusting the system's authorities and those in caFile (""
// for none). insecure trusts everybody.
func TLS(caFile string, insecure bool) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: insecure}
	if caFile == "" {
		return c, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("read the CA file: %w", err)
	}
	if c.RootCAs, err = x509.SystemCertPool(); err != nil {
		c.RootCAs = x509.NewCertPool()
	}
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("the CA file %s has no certificate in PEM form", caFile)
	}
	return c, nil
}

// Open connects. ctx bounds that alone. Over WebSocket the connection carries messages behind their
// lengths: see package websocket.
func (t Target) Open(ctx context.Context) (net.Conn, error) {
	dial := t.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	nc, err := dial(ctx, "tcp", t.Addr)
	if err != nil {
		return nil, err
	}
	switch t.Scheme {
	case "fires", "amqps", "wss":
		if nc, err = t.encrypt(ctx, nc); err != nil {
			return nil, err
		}
	}
	switch t.Scheme {
	case "ws", "wss":
		u, err := url.Parse("http://" + t.Addr + t.Path)
		if err != nil {
			nc.Close()
			return nil, fmt.Errorf("the path %q is none of a URL", t.Path)
		}
		return websocket.Client(ctx, nc, u)
	}
	return nc, nil
}

func (t Target) encrypt(ctx context.Context, nc net.Conn) (net.Conn, error) {
	c := t.TLS
	if c == nil {
		c = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if c.ServerName == "" {
		host, _, err := net.SplitHostPort(t.Addr)
		if err != nil {
			nc.Close()
			return nil, err
		}
		c = c.Clone()
		c.ServerName = host
	}
	secure := tls.Client(nc, c)
	if err := secure.HandshakeContext(ctx); err != nil {
		nc.Close()
		if e, ok := errors.AsType[tls.RecordHeaderError](err); ok {
			return nil, fmt.Errorf("what answers does not speak TLS: %w", e)
		}
		return nil, err
	}
	return secure, nil
}
