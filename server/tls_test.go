package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	fire "github.com/firemq/firemq/sdk/go"
)

// authority signs certificates of a test.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its certificate
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, file: filepath.Join(t.TempDir(), "ca.pem"), pool: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	a.key = a.newKey()
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	a.write(a.file, "CERTIFICATE", der)
	return a
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

func (a *authority) write(file, kind string, der []byte) {
	// As a careful administrator does it: nobody sees half a file.
	if err := os.WriteFile(file+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		a.t.Fatal(err)
	}
}

// issue writes a certificate for 127.0.0.1 and its key.
func (a *authority) issue(dir string, serial int64) (certFile, keyFile string) {
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	key := a.newKey()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "broker"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(certFile, "CERTIFICATE", der)
	if der, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		a.t.Fatal(err)
	}
	a.write(keyFile, "PRIVATE KEY", der)
	return certFile, keyFile
}

// client is the configuration of who trusts the authority.
func (a *authority) client() *tls.Config {
	return &tls.Config{RootCAs: a.pool, ServerName: "127.0.0.1"}
}

// serial is that of the certificate which addr shows.
func (a *authority) serial(addr net.Addr) int64 {
	a.t.Helper()
	nc, err := tls.Dial("tcp", addr.String(), a.client())
	if err != nil {
		a.t.Fatal(err)
	}
	defer nc.Close()
	return nc.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

func TestTLS(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.issue(t.TempDir(), 2)
	s, _ := run(t, Options{AMQPS: free, Fires: free, HTTP: free, TLSCert: cert, TLSKey: key})

	t.Run("AMQP", func(t *testing.T) {
		for version, max := range map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13} {
			config := a.client()
			config.MaxVersion = max
			c, err := amqp.DialTLS("amqps://guest:guest@"+s.AMQPSAddr().String(), config)
			if err != nil {
				t.Fatalf("TLS %s: %v", version, err)
			}
			roundTrip(t, c, 200)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("FireMQ", func(t *testing.T) {
		c, err := fire.Config{Scheme: "fires", Addr: s.FiresAddr().String(), CAFile: a.file}.Dial(within(t))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if !strings.HasSuffix(c.ConnID(), " -> "+s.FiresAddr().String()) {
			t.Errorf("the session sees %s", c.ConnID())
		}
		exchange(t, c)
	})
	t.Run("WebSocket behind a proxy", func(t *testing.T) {
		addr := proxy(t, cert, key, s.HTTPAddr().String())
		c, err := fire.Config{Scheme: "wss", Addr: addr, CAFile: a.file}.Dial(within(t))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		exchange(t, c)
	})
	t.Run("nobody is trusted without reason", func(t *testing.T) {
		for name, c := range map[string]fire.Config{
			"authority": {Scheme: "fires", Addr: s.FiresAddr().String()},
			"name":      {Scheme: "fires", Addr: strings.Replace(s.FiresAddr().String(), "127.0.0.1", "localhost", 1), CAFile: a.file},
		} {
			if _, err := c.Dial(within(t)); err == nil || !strings.Contains(err.Error(), "certificate") {
				t.Errorf("%s: %v", name, err)
			}
		}
		c, err := fire.Config{Scheme: "fires", Addr: s.FiresAddr().String(), Insecure: true}.Dial(within(t))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	})
	t.Run("old versions are refused", func(t *testing.T) {
		config := a.client()
		config.MinVersion, config.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
		if _, err := tls.Dial("tcp", s.FiresAddr().String(), config); err == nil {
			t.Error("TLS 1.1 was taken")
		}
	})
	t.Run("plain bytes", func(t *testing.T) {
		nc, err := net.Dial("tcp", s.AMQPSAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(patience))
		nc.Write([]byte("AMQP\x00\x00\x09\x01"))
		if b, err := io.ReadAll(nc); err != nil || len(b) > 7 { // at most an alert
			t.Errorf("got %q %v", b, err)
		}
		if _, err := (fire.Config{Scheme: "fires", Addr: s.HTTPAddr().String()}).Dial(within(t)); err == nil || !strings.Contains(err.Error(), "does not speak TLS") {
			t.Errorf("TLS to a plain listener: %v", err)
		}
	})
}

// roundTrip publishes to a queue with confirms, and consumes.
func roundTrip(t *testing.T, c *amqp.Connection, n int) {
	t.Helper()
	ctx := within(t)
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	q, err := ch.QueueDeclare("", false, false, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	in, err := ch.Consume(q.Name, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		body := strings.Repeat(string(rune('a'+i%26)), i*i)
		d, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", q.Name, false, false, amqp.Publishing{Body: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := d.WaitContext(ctx); err != nil || !ok {
			t.Fatal(ok, err)
		}
		got := <-in
		if string(got.Body) != body {
			t.Fatalf("delivery %d has %d bytes, want %d", i, len(got.Body), len(body))
		}
		if err := got.Ack(false); err != nil {
			t.Fatal(err)
		}
	}
}

// proxy ends TLS in front of addr, until the end of the test.
func proxy(t *testing.T, cert, key, addr string) string {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := tls.Listen("tcp", free, &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			front, err := ln.Accept()
			if err != nil {
				return
			}
			back, err := net.Dial("tcp", addr)
			if err != nil {
				front.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{front, back}, {back, front}} {
				running.Go(func() {
					io.Copy(way[0], way[1])
					way[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		ln.Close()
		running.Wait()
	})
	return ln.Addr().String()
}

func TestReloadTLS(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	cert, key := a.issue(dir, 10)
	s, _ := run(t, Options{Fires: free, AMQPS: free, TLSCert: cert, TLSKey: key})
	c, err := fire.Config{Scheme: "fires", Addr: s.FiresAddr().String(), CAFile: a.file}.Dial(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := a.serial(s.FiresAddr()); got != 10 {
		t.Fatalf("certificate %d", got)
	}
	a.issue(dir, 11)
	if err := s.ReloadTLS(); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []net.Addr{s.FiresAddr(), s.AMQPSAddr()} {
		if got := a.serial(addr); got != 11 {
			t.Errorf("certificate %d after the reload, want 11", got)
		}
	}
	exchange(t, c) // the connection from before goes on

	if err := os.WriteFile(key, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.ReloadTLS(); err == nil || !strings.Contains(err.Error(), "--tls-key") {
		t.Errorf("reload of a broken key: %v", err)
	}
	if got := a.serial(s.FiresAddr()); got != 11 {
		t.Errorf("certificate %d after a reload that failed, want 11", got)
	}
}

// New files are found without anybody saying so, also when one of the two comes late.
func TestCertificateFilesAreWatched(t *testing.T) {
	a, dir, next := newAuthority(t), t.TempDir(), t.TempDir()
	cert, key := a.issue(dir, 20)
	logged := make(chan string, 100)
	c, err := openCertificates(cert, key, time.Millisecond, slog.New(lines(logged)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-logged:
			if !strings.Contains(got, want) {
				t.Fatalf("logged %q, want %q", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("nothing logged, want %q", want)
		}
	}
	expect("loaded")
	newCert, newKey := a.issue(next, 21)
	if err := os.Rename(newCert, cert); err != nil {
		t.Fatal(err)
	}
	expect("the old one stays")
	if got := c.current.Load().Leaf.SerialNumber.Int64(); got != 20 {
		t.Errorf("certificate %d, want the old one", got)
	}
	if err := os.Rename(newKey, key); err != nil {
		t.Fatal(err)
	}
	expect("loaded")
	if got := c.current.Load().Leaf.SerialNumber.Int64(); got != 21 {
		t.Errorf("certificate %d, want the new one", got)
	}
}

// lines is a log handler that sends the messages on.
type lines chan string

func (l lines) Enabled(context.Context, slog.Level) bool { return true }
func (l lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l lines) WithGroup(string) slog.Handler            { return l }
func (l lines) Handle(_ context.Context, r slog.Record) error {
	l <- r.Message
	return nil
}

func TestTLSErrors(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	cert, key := a.issue(dir, 30)
	_, other := a.issue(t.TempDir(), 31)
	missing := filepath.Join(dir, "missing.pem")
	empty := filepath.Join(dir, "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"no certificate":       {Options{TLSKey: key}, "give both"},
		"no key":               {Options{TLSCert: cert, Fires: free}, "give both"},
		"listener alone":       {Options{AMQPS: free}, "--amqps needs a certificate"},
		"missing certificate":  {Options{TLSCert: missing, TLSKey: key}, "no such file"},
		"missing key":          {Options{TLSCert: cert, TLSKey: missing}, "--tls-key"},
		"empty certificate":    {Options{TLSCert: empty, TLSKey: key}, "no CERTIFICATE in PEM form"},
		"key for certificate":  {Options{TLSCert: key, TLSKey: key}, "no CERTIFICATE in PEM form"},
		"certificate for key":  {Options{TLSCert: cert, TLSKey: cert}, "no PRIVATE KEY in PEM form"},
		"key of another":       {Options{TLSCert: cert, TLSKey: other}, "one pair"},
		"directory as the key": {Options{TLSCert: cert, TLSKey: dir}, "is a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Ephemeral = true
			s, err := Start(t.Context(), c.o)
			if err == nil {
				s.Shutdown(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
