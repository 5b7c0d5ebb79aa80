package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	fire "github.com/firemq/firemq/sdk/go"
	"github.com/firemq/firemq/server"
	"github.com/rabbitmq/amqp091-go"
)

// still is a broker with fixed facts.
type still struct {
	amqp, fire, http net.Addr
	amqps, fires     net.Addr
	recovered        server.Recovery
	noUser, changed  bool // the first user is gone, has another password
}

func (s still) AMQPAddr() net.Addr         { return s.amqp }
func (s still) FireAddr() net.Addr         { return s.fire }
func (s still) AMQPSAddr() net.Addr        { return s.amqps }
func (s still) FiresAddr() net.Addr        { return s.fires }
func (s still) HTTPAddr() net.Addr         { return s.http }
func (s still) Recovered() server.Recovery { return s.recovered }
func (s still) FirstUser() (exists, password bool) {
	return !s.noUser, !s.noUser && !s.changed
}

func tcp(ip string, port int) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: port} }

func TestBanner(t *testing.T) {
	guest := server.Options{Version: "0.1.0", DefaultUser: "guest", DefaultPass: "guest", Data: "firemq-data"}
	with := func(change func(*server.Options)) server.Options {
		o := guest
		change(&o)
		return o
	}
	for name, c := range map[string]struct {
		broker still
		o      server.Options
		want   string
	}{
		"defaults": {still{amqp: tcp("::", 5672), fire: tcp("0.0.0.0", 5673), http: tcp("::", 15672)}, guest, `FireMQ 0.1.0 is ready in 40 ms

  AMQP 0-9-1   amqp://guest:guest@localhost:5672
  FireMQ       fire://guest:guest@localhost:5673
  WebSocket    ws://localhost:15672/fire
  Management   http://localhost:15672
  Metrics      http://localhost:15672/metrics
  Data         firemq-data (0 queues, 0 messages recovered)

`},
		"one listener, one of each recovered": {still{amqp: tcp("192.0.2.7", 40001), recovered: server.Recovery{Queues: 1, Messages: 1}}, guest, `FireMQ 0.1.0 is ready in 40 ms

  AMQP 0-9-1   amqp://guest:guest@192.0.2.7:40001
  Data         firemq-data (1 queue, 1 message recovered)

`},
		"TLS": {still{amqps: tcp("::", 5671), fires: tcp("::", 5674)}, guest, `FireMQ 0.1.0 is ready in 40 ms

  AMQP, TLS    amqps://guest:guest@localhost:5671
  FireMQ, TLS  fires://guest:guest@localhost:5674
  Data         firemq-data (0 queues, 0 messages recovered)

`},
		"damage": {still{fire: tcp("::1", 5673), recovered: server.Recovery{Queues: 2, Messages: 1000, Damaged: 3}}, guest, `FireMQ 0.1.0 is ready in 40 ms

  FireMQ       fire://guest:guest@localhost:5673
  Data         firemq-data (2 queues, 1000 messages recovered, 3 damaged records skipped)

`},
		"own user": {still{amqp: tcp("2001:db8::1", 5672)}, with(func(o *server.Options) { o.DefaultUser, o.DefaultPass = "a@b", "secret" }), `FireMQ 0.1.0 is ready in 40 ms

  AMQP 0-9-1   amqp://a%40b@[2001:db8::1]:5672
  Data         firemq-data (0 queues, 0 messages recovered)

`},
		"another password": {still{amqp: tcp("::", 5672), changed: true}, guest, `FireMQ 0.1.0 is ready in 40 ms

  AMQP 0-9-1   amqp://guest@localhost:5672
  Data         firemq-data (0 queues, 0 messages recovered)

`},
		"no such user": {still{amqp: tcp("::", 5672), noUser: true}, guest, `FireMQ 0.1.0 is ready in 40 ms

  AMQP 0-9-1   amqp://localhost:5672
  Data         firemq-data (0 queues, 0 messages recovered)

`},
		"ephemeral": {still{http: tcp("127.0.0.1", 8080)}, with(func(o *server.Options) { o.Ephemeral = true }), `FireMQ 0.1.0 is ready in 40 ms

  WebSocket    ws://localhost:8080/fire
  Management   http://localhost:8080
  Metrics      http://localhost:8080/metrics
  Data         in memory, gone when the broker stops

`},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			writeBanner(&b, c.broker, c.o, 40*time.Millisecond)
			if got := b.String(); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
}

func TestSecondSignalDoesNotWait(t *testing.T) {
	signals, exited := make(chan os.Signal), make(chan int, 1)
	ctx, stop := stopOn(t.Context(), signals, func(status int) { exited <- status })
	defer stop()
	signals <- syscall.SIGTERM
	<-ctx.Done()
	select {
	case status := <-exited:
		t.Fatalf("the first signal exits with %d", status)
	default:
	}
	signals <- os.Interrupt
	if status := <-exited; status != 130 {
		t.Errorf("status %d, want 130", status)
	}
}

// anyPorts are flags for a broker beside others.
var anyPorts = []string{"--amqp", "127.0.0.1:0", "--fire", "127.0.0.1:0", "--http", "127.0.0.1:0"}

func TestBrokerStopsOnSignal(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("has no SIGTERM")
	}
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		p := startProcess(t, anyPorts...)
		banner := p.banner()
		for _, want := range []string{"FireMQ " + server.Version + " is ready in ", "amqp://guest:guest@localhost:", "firemq-data (0 queues, 0 messages recovered)"} {
			if !strings.Contains(banner, want) {
				t.Errorf("no %q in the banner:\n%s\n%s", want, banner, p.err)
			}
		}
		if err := p.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if status := p.status(t); status != 0 {
			t.Errorf("%s: status %d\n%s", sig, status, p.err)
		}
	}
}

// Whoever reads the log and stops, or goes away, neither ends the broker nor holds it up, and it stops as ever.
func TestLogWithoutAReader(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("has no SIGTERM")
	}
	for _, gone := range []bool{false, true} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		p := newProcess(t, t.TempDir(), append(anyPorts, "--log-level", "trace")...)
		p.Stderr = w
		p.start(t)
		w.Close()
		banner := p.banner()
		if gone {
			r.Close()
		}
		addr := regexp.MustCompile(`amqp://\S+`).FindString(banner)
		for range 600 { // more than a pipe holds
			c, err := amqp091.Dial(addr)
			if err != nil {
				t.Fatalf("gone=%v: %v", gone, err)
			}
			if err := c.Close(); err != nil {
				t.Fatalf("gone=%v: %v", gone, err)
			}
		}
		if err := p.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if status := p.status(t); status != 0 {
			t.Errorf("gone=%v: status %d", gone, status)
		}
	}
}

// A hang-up has the certificate read again.
func TestHangupReloadsTheCertificate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("has no SIGHUP")
	}
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	issue(t, cert, key, 1)
	p, log := followed(t, dir, append(anyPorts, "--ephemeral", "--tls-cert", cert, "--tls-key", key, "--amqps", "127.0.0.1:0", "--fires", "127.0.0.1:0")...)
	_, after, ok := strings.Cut(p.banner(), "fires://guest:guest@localhost:")
	if !ok {
		t.Fatal("no listener inside TLS in the banner")
	}
	addr := "127.0.0.1:" + strings.Fields(after)[0]
	serial := func() int64 {
		nc, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		return nc.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); got != 1 {
		t.Fatalf("certificate %d, want 1", got)
	}
	issue(t, cert, key, 2)
	if err := p.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for line := range log { // it comes long before the files are looked at anyway
		if strings.Contains(line, "settings reloaded") {
			break
		}
	}
	if got := serial(); got != 2 {
		t.Errorf("certificate %d after SIGHUP, want 2", got)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status := p.status(t); status != 0 {
		t.Errorf("status %d", status)
	}
}

// The client commands reach a broker over TLS and WebSocket.
func TestClientCommandsOverTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	issue(t, cert, key, 1)
	p := startProcess(t, append(anyPorts, "--ephemeral", "--tls-cert", cert, "--tls-key", key, "--amqps", "127.0.0.1:0", "--fires", "127.0.0.1:0")...)
	banner := p.banner()
	defer func() {
		p.Process.Kill()
		p.status(t)
	}()
	url := func(scheme string) string {
		for word := range strings.FieldsSeq(banner) {
			if strings.HasPrefix(word, scheme+"://") {
				return word
			}
		}
		t.Fatalf("no %s:// in the banner:\n%s\n%s", scheme, banner, p.err)
		return ""
	}
	ok := func(args ...string) result {
		t.Helper()
		got := runWith(t.Context(), nil, "", args...)
		if got.status != exitOK {
			t.Fatalf("%q: %+v", args, got)
		}
		return got
	}
	for _, scheme := range []string{"fires", "amqps", "ws"} {
		ok("bench", "--url", url(scheme), "--ca-file", cert, "--quiet", "-d", "0.1", "--warmup", "0", "-c", "1")
	}
	c, err := fire.Dial(t.Context(), url("ws"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.DeclareQueue(t.Context(), "jobs", fire.QueueOptions{}); err != nil {
		t.Fatal(err)
	}
	ok("pub", "--url", url("fires"), "--ca-file", cert, "--queue", "jobs", "over TLS")
	ok("pub", "--url", url("ws"), "--queue", "jobs", "over WebSocket")
	if got := ok("sub", "--url", url("fires"), "--insecure", "jobs", "--count", "2"); !strings.Contains(got.out, "over TLS") || !strings.Contains(got.out, "over WebSocket") {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"pub", "--url", url("fires"), "--queue", "jobs", "x"}, exitFailure, "--ca-file"},
		{[]string{"bench", "--url", url("fires")}, exitFailure, "--ca-file"},
		{[]string{"pub", "--url", url("fires"), "--ca-file", key, "--queue", "jobs", "x"}, exitUsage, "no certificate"},
		{[]string{"bench", "--url", url("fires"), "--ca-file", key}, exitUsage, "no certificate"},
		{[]string{"pub", "--url", strings.Replace(url("ws"), "/fire", "/nothing", 1), "--queue", "jobs", "x"}, exitFailure, "404"},
	} {
		if got := runWith(t.Context(), nil, "", c.args...); got.status != c.status || !isOneLine(got.err) || !strings.Contains(got.err, c.want) {
			t.Errorf("%q: %+v, want %q", c.args, got, c.want)
		}
	}
}

// issue writes a certificate that signs itself, and its key.
func issue(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// deaf logs in over AMQP at the process's broker and then hears nothing more.
func deaf(t *testing.T, p *process) {
	t.Helper()
	banner := p.banner()
	url := regexp.MustCompile(`amqp://\S+`).FindString(banner)
	if url == "" {
		t.Fatalf("no URL in the banner:\n%s\n%s", banner, p.err)
	}
	hears := make(chan struct{}, 1)
	config := amqp091.Config{Dial: func(network, addr string) (net.Conn, error) {
		c, err := net.Dial(network, addr)
		return &deafConn{Conn: c, deaf: hears, closed: make(chan struct{})}, err
	}}
	conn, err := amqp091.DialConfig(url, config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Channel(); err != nil {
		t.Fatal(err)
	}
	hears <- struct{}{}
	t.Cleanup(func() { conn.CloseDeadline(time.Now()) })
}

// deafConn gives nothing more to its reader, until it is closed, once there is a token in deaf.
type deafConn struct {
	net.Conn
	deaf   chan struct{}
	closed chan struct{} // by Close
	once   sync.Once     // for closed
}

func (c *deafConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *deafConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.deaf:
		<-c.closed
	default:
	}
	return n, err
}

// A client that does not answer is cut off when the time is over, and the end is orderly.
func TestStopWithoutTheClientsAnswer(t *testing.T) {
	p := startProcess(t, append(anyPorts, "--shutdown-timeout", "1s")...)
	deaf(t, p)
	begin := time.Now()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	status := p.status(t)
	if took := time.Since(begin); status != 0 || took < time.Second || !strings.Contains(p.err.String(), "cut off") {
		t.Errorf("status %d after %s\n%s", status, took, p.err)
	}
}

func TestSecondSignalLeavesAtOnce(t *testing.T) {
	p := startProcess(t, append(anyPorts, "--shutdown-timeout", "1m")...)
	deaf(t, p)
	// Two different ones: equal signals may become one.
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		if err := p.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	if status := p.status(t); status != 130 && status != 143 {
		t.Errorf("status %d\n%s", status, p.err)
	}
}

// On SIGHUP the settings file is read again: what may change does, and the log says what does not.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "mine.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("[limits]\nmemory = '1GB'\n")
	p, errs := followed(t, dir, append(anyPorts, "--config", "mine.toml", "--max-connections", "50")...)
	if p.banner() == "" {
		t.Fatal("it did not start")
	}
	hangup := func(last string) (lines []string) {
		t.Helper()
		if err := p.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		for line := range errs {
			if lines = append(lines, line); strings.Contains(line, last) {
				return lines
			}
		}
		t.Fatalf("it ended after %q", lines)
		return nil
	}
	says := func(lines []string, want ...string) {
		t.Helper()
		text := strings.Join(lines, "\n")
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("no %q in\n%s", w, text)
			}
		}
	}
	write("[limits]\nmemory = '2GB'\nconnections = 7\n[users]\ndefault_pass = 'hunter2'\n[log]\nlevel = 'debug'\n")
	lines := hangup("settings reloaded")
	says(lines, `msg="setting changed" setting=limits.memory old=1GB new=2GB`, `msg="setting changed" setting=log.level old=info new=debug`,
		`level=WARN msg="a setting was changed that needs a restart" setting=users.default_pass running=******** file=********`, "changed=2 need_restart=1")
	write("[limits]\nmemory = 'much'\n")
	says(hangup("not reloaded"), `level=ERROR msg="the settings are wrong and were not reloaded" error="mine.toml:2: limits.memory`)
	write("")
	says(hangup("settings reloaded"), "setting=limits.memory old=2GB new=40%", "setting=log.level old=debug new=info", "changed=2 need_restart=0")
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range errs { // to the end
	}
	if status := p.status(t); status != 0 {
		t.Errorf("status %d", status)
	}
}

// Whatever keeps a broker from starting is said in one line that names the cause and the cure.
func TestStartErrors(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	port := busy.Addr().String()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	used := filepath.Join(t.TempDir(), "data")
	first := startProcess(t, append(anyPorts, "--data", used)...)
	if first.banner() == "" {
		t.Fatal(first.err)
	}
	defer func() {
		first.Process.Kill()
		first.status(t)
	}()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"AMQP port in use":        {[]string{"--ephemeral", "--amqp", port, "--fire", "off", "--http", "off"}, "--amqp"},
		"FireMQ port in use":      {[]string{"--ephemeral", "--amqp", "off", "--fire", port, "--http", "off"}, "--fire"},
		"HTTP port in use":        {[]string{"--ephemeral", "--amqp", "off", "--fire", "off", "--http", port}, "--http"},
		"directory is a file":     {append([]string{"--data", file}, anyPorts...), "--data"},
		"directory in a file":     {append([]string{"--data", filepath.Join(file, "data")}, anyPorts...), "--data"},
		"directory of another":    {append([]string{"--data", used}, anyPorts...), "--data"},
		"address of another host": {[]string{"--ephemeral", "--amqp", "192.0.2.1:0", "--fire", "off", "--http", "off"}, "--amqp"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProcess(t, c.args...)
			status := p.status(t)
			if got := p.err.String(); status != exitFailure || !isOneLine(got) || !strings.Contains(got, c.want) {
				t.Errorf("status %d, error %q; want 1 and one line with %q", status, got, c.want)
			}
		})
	}
}

func TestServeStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := runWith(ctx, nil, "", append(anyPorts, "--ephemeral", "--log-level", "off")...); got.status != 0 || got.err != "" || got.out != "" {
		t.Errorf("%+v", got)
	}
}

// The parts of the broker carry the names that --log-level promises.
func TestLogLevelOfOnePart(t *testing.T) {
	for levels, want := range map[string]bool{"off,amqp=info": true, "info,amqp=off": false, "off,broker=info": false} {
		t.Run(levels, func(t *testing.T) {
			var b bytes.Buffer // read after the broker's end
			parsed, err := server.ParseLogLevels(levels)
			if err != nil {
				t.Fatal(err)
			}
			log := server.NewLog(&b, false, parsed)
			s, err := server.Start(t.Context(), server.Options{AMQP: "127.0.0.1:0", Ephemeral: true, Log: log.Logger})
			if err != nil {
				t.Fatal(err)
			}
			c, err := amqp091.Dial("amqp://" + s.AMQPAddr().String())
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			if err := s.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(b.String(), `level=INFO msg="connection open" module=amqp`); got != want {
				t.Errorf("the connection is logged: %v, want %v\n%s", got, want, b.String())
			}
		})
	}
}
