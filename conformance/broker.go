package conformance

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// readyLimit is how long a broker may take from its start to its banner.
const readyLimit = 30 * time.Second

// broker is the firemq binary with its data in a folder. It can be killed and started again on the same ports.
type broker struct {
	ctx    context.Context
	bin    string
	folder string
	caFile string          // immutable
	cert   tls.Certificate // immutable

	ports map[string]string // of the banner: what -> host:port; immutable once the first start has found them
	cmd   *exec.Cmd
	out   *banner
	gone  chan struct{} // closed when the process is
}

// The lines of the banner, and their flags.
var listeners = []struct{ line, flag string }{
	{"AMQP 0-9-1", "--amqp"}, {"FireMQ", "--fire"}, {"FireMQ, TLS", "--fires"}, {"Management", "--http"},
}

func newBroker(ctx context.Context, bin, folder string) (*broker, error) {
	b := &broker{ctx: ctx, folder: folder, caFile: filepath.Join(folder, "cert.pem"), ports: map[string]string{}}
	for _, l := range listeners {
		b.ports[l.line] = "127.0.0.1:0"
	}
	if bin == "" {
		bin = os.Getenv("FIREMQ_BIN")
	}
	var err error
	if bin == "" {
		b.bin = filepath.Join(folder, "firemq")
		build := exec.CommandContext(ctx, "go", "build", "-o", b.bin, "github.com/firemq/firemq/cmd/firemq")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build firemq: %w: name the binary with --broker\n%s", err, out)
		}
	} else if b.bin, err = exec.LookPath(bin); err != nil {
		return nil, err
	}
	if b.cert, err = b.certificate(); err != nil {
		return nil, err
	}
	return b, b.start()
}

// certificate makes one for this machine that is its own authority, and writes the broker's files.
func (b *broker) certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	t := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, &t, &t, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	if err := errors.Join(os.WriteFile(b.caFile, certPEM, 0o600), os.WriteFile(b.keyFile(), keyPEM, 0o600)); err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certPEM, keyPEM)
}

func (b *broker) keyFile() string { return filepath.Join(b.folder, "key.pem") }

// start starts the process and waits for its banner.
func (b *broker) start() error {
	args := []string{
		"--data", filepath.Join(b.folder, "data"), "--fsync=false", "--amqps", "off", "--ws-origins", "*",
		"--tls-cert", b.caFile, "--tls-key", b.keyFile(),
	}
	for _, l := range listeners {
		args = append(args, l.flag, b.ports[l.line])
	}
	b.out = &banner{ready: make(chan struct{})}
	b.cmd = exec.CommandContext(b.ctx, b.bin, args...)
	b.cmd.Dir = b.folder
	b.cmd.Stdout, b.cmd.Stderr = b.out, b.out
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "FIREMQ_") {
			b.cmd.Env = append(b.cmd.Env, v)
		}
	}
	if err := b.cmd.Start(); err != nil {
		return fmt.Errorf("start the broker: %w", err)
	}
	b.gone = make(chan struct{})
	go func() {
		b.cmd.Wait()
		close(b.gone)
	}()
	timer := time.NewTimer(readyLimit)
	defer timer.Stop()
	select {
	case <-b.out.ready:
	case <-b.gone:
		return fmt.Errorf("the broker ended before it was ready:\n%s", b.out)
	case <-timer.C:
		b.kill()
		return fmt.Errorf("the broker was not ready after %s:\n%s", readyLimit, b.out)
	}
	for _, l := range listeners {
		m := regexp.MustCompile(`(?m)^ +` + l.line + ` +\S+//(?:\S+@)?localhost(:\d+)`).FindStringSubmatch(b.out.String())
		if m == nil {
			b.kill()
			return fmt.Errorf("the banner has no line %q:\n%s", l.line, b.out)
		}
		if addr := "127.0.0.1" + m[1]; b.ports[l.line] != addr {
			b.ports[l.line] = addr
		}
	}
	return nil
}

// kill ends the process as kill -9 does.
func (b *broker) kill() {
	if b.gone == nil {
		return
	}
	b.cmd.Process.Kill()
	<-b.gone
}

func (b *broker) fire() string { return b.ports["FireMQ"] }

// addr is the listener of a scheme, "" when the broker has none.
func (b *broker) addr(scheme string) string {
	return b.ports[map[string]string{"fire": "FireMQ", "fires": "FireMQ, TLS", "ws": "Management"}[scheme]]
}

// address is a URL for drivers.
func address(scheme, login, addr, vhost string) string {
	if strings.HasPrefix(scheme, "ws") {
		return fmt.Sprintf("%s://%s%s/fire?vhost=%s", scheme, login, addr, url.QueryEscape(vhost))
	}
	return fmt.Sprintf("%s://%s%s/%s", scheme, login, addr, url.PathEscape(vhost))
}

// do makes a request to the management API as guest.
func (b *broker) do(method, path, body string) error {
	ctx, cancel := context.WithTimeout(b.ctx, commandLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+b.ports["Management"]+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.SetBasicAuth("guest", "guest")
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)); resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return nil
}

// addVHost makes a vhost that guest may use.
func (b *broker) addVHost(name string) error {
	name = url.PathEscape(name)
	if err := b.do(http.MethodPut, "/api/vhosts/"+name, "{}"); err != nil {
		return err
	}
	return b.do(http.MethodPut, "/api/permissions/"+name+"/guest", `{"configure":".*","write":".*","read":".*"}`)
}

func (b *broker) deleteVHost(name string) error {
	return b.do(http.MethodDelete, "/api/vhosts/"+url.PathEscape(name), "")
}

// banner collects what the broker prints and says when its banner is complete.
type banner struct {
	ready chan struct{}

	mu   sync.Mutex
	buf  bytes.Buffer // guarded by mu; no more than the log of a run
	done bool         // guarded by mu: ready is closed
}

// The banner's last line says where the data is.
var lastLine = regexp.MustCompile(`(?m)^ +Data +.*\n`)

func (b *banner) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf.Write(p)
	if !b.done && lastLine.Match(b.buf.Bytes()) {
		b.done = true
		close(b.ready)
	}
	return len(p), nil
}

func (b *banner) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
