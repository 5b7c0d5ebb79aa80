package server

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// certPoll is how often the files of the certificate are looked at. Whatever replaces them need not
// know this process.
const certPoll = 5 * time.Second

// certificates is the certificate that clients get, and its files. A new one is for new
// connections; those that are open go on.
type certificates struct {
	cert, key string // files
	log       *slog.Logger
	current   atomic.Pointer[tls.Certificate]

	mu sync.Mutex
	// Guarded by mu.
	loaded [2]version // of the files that were tried last
	failed string     // what was wrong with them, as logged

	quit, over chan struct{}
}

// version tells one content of a file from the next.
type version struct {
	info fs.FileInfo // nil: the file cannot be seen
}

func versionOf(file string) version {
	info, err := os.Stat(file) // follows links, which is how some replace files
	if err != nil {
		return version{}
	}
	return version{info}
}

func (v version) same(w version) bool {
	if v.info == nil || w.info == nil {
		return v.info == nil && w.info == nil
	}
	return os.SameFile(v.info, w.info) && v.info.Size() == w.info.Size() && v.info.ModTime().Equal(w.info.ModTime())
}

// openCertificates loads the pair and watches its files every poll until stop.
func openCertificates(cert, key string, poll time.Duration, log *slog.Logger) (*certificates, error) {
	c := &certificates{cert: cert, key: key, log: log, quit: make(chan struct{}), over: make(chan struct{})}
	if err := c.reload(); err != nil {
		return nil, err
	}
	go c.watch(poll)
	return c, nil
}

// config is what TLS listeners use.
func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
	}
}

// reload reads the files now. On an error the certificate stays as it was.
func (c *certificates) reload() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read()
}

// read: mu held.
func (c *certificates) read() error {
	c.loaded = [2]version{versionOf(c.cert), versionOf(c.key)}
	pair, err := loadPair(c.cert, c.key)
	if err != nil {
		c.failed = err.Error()
		return err
	}
	c.failed = ""
	c.current.Store(pair)
	leaf := pair.Leaf
	c.log.Info("TLS certificate loaded", "file", c.cert, "subject", leaf.Subject.String(), "expires", leaf.NotAfter.Format(time.RFC3339))
	if time.Now().After(leaf.NotAfter) {
		c.log.Warn("the TLS certificate has expired: clients will refuse it", "file", c.cert, "expired", leaf.NotAfter.Format(time.RFC3339))
	}
	return nil
}

func (c *certificates) watch(poll time.Duration) {
	defer close(c.over)
	t := time.NewTicker(poll)
	defer t.Stop()
	for {
		select {
		case <-c.quit:
			return
		case <-t.C:
			c.look()
		}
	}
}

// look reads the files if they changed, or could not be used: the second of the two may be replaced after
// the first was read.
func (c *certificates) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.failed
	if before == "" && c.loaded[0].same(versionOf(c.cert)) && c.loaded[1].same(versionOf(c.key)) {
		return
	}
	if err := c.read(); err != nil && err.Error() != before {
		c.log.Error("the new TLS certificate cannot be used, the old one stays", "error", err)
	}
}

func (c *certificates) stop() {
	close(c.quit)
	<-c.over
}

// loadPair reads a certificate with its chain, and its key. An error is one line that names the cause and
// the cure.
func loadPair(certFile, keyFile string) (*tls.Certificate, error) {
	cert, err := readPEM(certFile, "certificate", "--tls-cert")
	if err != nil {
		return nil, err
	}
	key, err := readPEM(keyFile, "key", "--tls-key")
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		text             []byte
		file, want, flag string
	}{{cert, certFile, "CERTIFICATE", "--tls-cert"}, {key, keyFile, "PRIVATE KEY", "--tls-key"}} {
		if !hasBlock(f.text, f.want) {
			return nil, fmt.Errorf("TLS file %s has no %s in PEM form: give the right file with %s", f.file, f.want, f.flag)
		}
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("TLS certificate %s and key %s cannot be used: %w; give the two files of one pair, the certificate before its chain and the key without a password", certFile, keyFile, err)
	}
	return &pair, nil // with its Leaf parsed
}

func readPEM(file, what, flag string) ([]byte, error) {
	b, err := readFile(file, maxSettings)
	if err != nil {
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			err = p.Err
		}
		return nil, fmt.Errorf("TLS %s %s cannot be read: %w; give a file that this user may read with %s", what, file, err, flag)
	}
	return b, nil
}

// hasBlock looks for a PEM block whose type ends in kind: "EC PRIVATE KEY" is one of "PRIVATE KEY".
func hasBlock(text []byte, kind string) bool {
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return false
		}
		if strings.HasSuffix(block.Type, kind) {
			return true
		}
		text = rest
	}
}

// leaf is the certificate that clients are shown now. Any goroutine.
func (c *certificates) leaf() *x509.Certificate {
	if current := c.current.Load(); current != nil {
		return current.Leaf
	}
	return nil
}
