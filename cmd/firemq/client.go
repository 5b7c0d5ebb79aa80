package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	fire "github.com/firemq/firemq/sdk/go"
)

// dialTimeout bounds connecting and logging in.
const dialTimeout = 10 * time.Second

const defaultURL = "fire://localhost"

// clientFlags say which broker to connect to.
type clientFlags struct {
	url string
	trust
}

// trust says whose certificates are accepted over TLS.
type trust struct {
	caFile   string
	insecure bool
}

func (f *trust) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.caFile, "ca-file", "", "PEM `file` with the authority of the broker's certificate, beside the system's")
	flags.BoolVar(&f.insecure, "insecure", false, "accept any certificate: for tests")
	withEnv(flags, "ca-file")
}

func (f *clientFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "url", defaultURL, "the broker, `fire://user:pass@host:port/vhost`; fires://, ws://host:port/fire?vhost=name or wss://")
	withEnv(flags, "url")
	f.trust.add(flags)
}

// connect logs in. Its errors name the cure. onFlow, unless nil, is told when the broker asks publishers to pause, and to go on.
func (f *clientFlags) connect(ctx context.Context, onFlow func(paused bool)) (*fire.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	cfg, err := fire.ParseURL(f.url)
	if err != nil {
		return nil, usagef("--url: %s", plain(err))
	}
	cfg.CAFile, cfg.Insecure, cfg.OnFlow = f.caFile, f.insecure, onFlow
	cfg.Reconnect.Off = true // a command that fails says so
	c, err := cfg.Dial(ctx)
	if err == nil {
		return c, nil
	}
	at := f.url
	if u, e := url.Parse(f.url); e == nil {
		at = u.Redacted()
	}
	if _, ok := errors.AsType[*fire.ServerError](err); ok {
		return nil, fmt.Errorf("log in at %s: %s: check user, password and vhost in --url", at, plain(err))
	}
	if _, ok := errors.AsType[*fire.InvalidError](err); ok {
		return nil, usagef("--ca-file: %s", plain(err))
	}
	if unverified(err) {
		return nil, fmt.Errorf("the certificate at %s is not trusted (%s): give its authority with --ca-file", at, cause(err))
	}
	return nil, fmt.Errorf("no broker answers at %s (%s): start one with \"firemq\", or give its --url", at, cause(err))
}

func unverified(err error) bool {
	_, ok := errors.AsType[*tls.CertificateVerificationError](err)
	return ok
}

// plain is an error of the SDK without the package's name.
func plain(err error) string { return strings.TrimPrefix(err.Error(), "fire: ") }

// cause is the last part of a network error: "connection refused".
func cause(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "timed out"
	}
	return plain(err)
}

// explain adds the cure to an error that a queue's name caused.
func explain(err error, queue string) error {
	if e, ok := errors.AsType[*fire.ServerError](err); ok && e.Code == 404 {
		return fmt.Errorf("%s: declare the queue first", e.Msg)
	}
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted before everything was confirmed: what was sent may be published")
	}
	if errors.Is(err, fire.ErrUnroutable) && queue != "" {
		return fmt.Errorf("there is no queue '%s': declare the queue first", queue)
	}
	return errors.New(plain(err))
}
