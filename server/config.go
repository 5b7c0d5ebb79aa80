package server

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// DefaultFile is the settings file that is read from the working directory when none is named.
const DefaultFile = "firemq.toml"

// Setting is one row of the table of settings. Everything about settings is made from the table: flags,
// environment names, the keys of the file, defaults, the file that firemq init writes, and the tables of
// docs/configuration.md.
type Setting struct {
	Flag    string // the flag's name without dashes
	Section string // of the settings file
	Key     string // in the section
	Default string // as given to the flag
	Arg     string // what a value is, in a word
	Help    string // what it does, a phrase
	Live    bool   // a reload changes it while the broker runs
	Secret  bool   // not shown

	kind     kind
	auto     string                             // of a TLS listener: its port when there is a certificate
	standard []standard                         // OpenTelemetry's variables for it, in the order in which they count
	apply    func(c *Config, text string) error // checks text and stores it
}

// standard is an environment variable of OpenTelemetry's, which counts when nothing else gives the setting.
type standard struct {
	name  string
	value func(string) string // makes the setting's value of it; nil: it is one
}

// Env is the setting's environment variable.
func (s *Setting) Env() string {
	return "FIREMQ_" + strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_"))
}

// Name is the setting's full name in the settings file.
func (s *Setting) Name() string { return s.Section + "." + s.Key }

// Boolean reports whether the flag may stand without a value, which is true then.
func (s *Setting) Boolean() bool { return s.kind == boolean }

// Bounds of settings.
const (
	minMemoryLimit = 32 << 20 // below, an idle broker would hold its own alarm
	minMessageSize = 1 << 10
	maxMessageSize = 512 << 20 // what AMQP's content headers may announce at all
	minFrame       = 64 << 10  // what the protocols accept before a login anyway
	maxFrame       = 512 << 20
)

// table has the settings in the order in which they are shown; a section's stand together.
var table = []Setting{
	{
		Flag: "amqp", Section: "listeners", Key: "amqp", Default: "5672", Arg: "host:port", kind: listener,
		Help:  "AMQP 0-9-1 listener: host:port, a port on all interfaces, or off",
		apply: field(func(c *Config) *string { return &c.Options.AMQP }, parseListener),
	},
	{
		Flag: "fire", Section: "listeners", Key: "fire", Default: "5673", Arg: "host:port", kind: listener,
		Help:  "FireMQ protocol listener: host:port, port or off",
		apply: field(func(c *Config) *string { return &c.Options.Fire }, parseListener),
	},
	{
		Flag: "amqps", Section: "listeners", Key: "amqps", Default: auto, Arg: "host:port", kind: listener, auto: "5671",
		Help:  "AMQP 0-9-1 over TLS: host:port, port or off; auto is 5671 with a certificate, else off",
		apply: field(func(c *Config) *string { return &c.Options.AMQPS }, parseAuto),
	},
	{
		Flag: "fires", Section: "listeners", Key: "fires", Default: auto, Arg: "host:port", kind: listener, auto: "5674",
		Help:  "FireMQ protocol over TLS: host:port, port or off; auto is 5674 with a certificate, else off",
		apply: field(func(c *Config) *string { return &c.Options.Fires }, parseAuto),
	},
	{
		Flag: "http", Section: "listeners", Key: "http", Default: "15672", Arg: "host:port", kind: listener,
		Help:  "HTTP listener for management, metrics and WebSocket: host:port, port or off",
		apply: field(func(c *Config) *string { return &c.Options.HTTP }, parseListener),
	},

	{
		Flag: "ws-origins", Section: "listeners", Key: "ws_origins", Default: "", Arg: "origins", kind: list,
		Help:  "comma-separated origins of web pages that may connect over WebSocket, https://app.example.com, or * for all; empty: those of the broker's own host",
		apply: field(func(c *Config) *[]string { return &c.Options.Origins }, parseOrigins),
	},

	{
		Flag: "tls-cert", Section: "tls", Key: "cert", Default: "", Arg: "file", kind: text,
		Help:  "PEM file with the TLS certificate and its chain; read again when it changes, and on SIGHUP",
		apply: field(func(c *Config) *string { return &c.Options.TLSCert }, parseText),
	},
	{
		Flag: "tls-key", Section: "tls", Key: "key", Default: "", Arg: "file", kind: text,
		Help:  "PEM file with the certificate's key",
		apply: field(func(c *Config) *string { return &c.Options.TLSKey }, parseText),
	},

	{
		Flag: "data", Section: "storage", Key: "data", Default: "firemq-data", Arg: "directory", kind: text,
		Help:  "data directory",
		apply: field(func(c *Config) *string { return &c.Options.Data }, notEmpty("name a directory, or keep everything in memory with --ephemeral")),
	},
	{
		Flag: "fsync", Section: "storage", Key: "fsync", Default: "true", kind: boolean,
		Help:  "sync persistent messages to disk before confirming them",
		apply: field(func(c *Config) *bool { return &c.Options.NoSync }, func(s string) (bool, error) { on, err := parseBool(s); return !on, err }),
	},
	{
		Flag: "ephemeral", Section: "storage", Key: "ephemeral", Default: "false", kind: boolean,
		Help:  "keep everything in memory",
		apply: field(func(c *Config) *bool { return &c.Options.Ephemeral }, parseBool),
	},
	{
		Flag: "import", Section: "storage", Key: "import", Default: "", Arg: "file", kind: text,
		Help:  "definitions of FireMQ or RabbitMQ, JSON, that every start loads before clients can connect",
		apply: field(func(c *Config) *string { return &c.Options.Import }, parseText),
	},

	{
		Flag: "memory-limit", Section: "limits", Key: "memory", Default: "40%", Arg: "size", kind: size, Live: true,
		Help:  "resident memory from which on publishers are paused: a size, a percentage of the machine's or container's memory, or 0 for no limit",
		apply: field(func(c *Config) *MemoryLimit { return &c.Options.MemoryLimit }, parseMemory),
	},
	{
		Flag: "disk-free-limit", Section: "limits", Key: "disk_free", Default: "50MB", Arg: "size", kind: size, Live: true,
		Help:  "free space of the data directory's file system below which publishers are paused; 0 for no limit",
		apply: field(func(c *Config) *int64 { return &c.Options.DiskFreeLimit }, parseSize),
	},
	{
		Flag: "max-message-size", Section: "limits", Key: "message_size", Default: "128MiB", Arg: "size", kind: size, Live: true,
		Help:  "largest body of a message; over the FireMQ protocol a message also fits in one frame",
		apply: field(func(c *Config) *int { return &c.Options.MaxMessageSize }, sizeWithin(minMessageSize, maxMessageSize)),
	},
	{
		Flag: "max-frame", Section: "limits", Key: "frame", Default: "16MiB", Arg: "size", kind: size, Live: true,
		Help:  "largest frame of the FireMQ protocol; AMQP frames are never larger than 131072 bytes",
		apply: field(func(c *Config) *int { return &c.Options.MaxFrame }, sizeWithin(minFrame, maxFrame)),
	},
	{
		Flag: "max-connections", Section: "limits", Key: "connections", Default: "0", Arg: "count", kind: count, Live: true,
		Help:  "connections at a time, one more is closed at once; 0 for no limit",
		apply: field(func(c *Config) *int { return &c.Options.MaxConnections }, countWithin(0, 10_000_000)),
	},
	{
		Flag: "channel-max", Section: "limits", Key: "channel_max", Default: "2047", Arg: "count", kind: count, Live: true,
		Help:  "channels of an AMQP connection",
		apply: field(func(c *Config) *uint16 { return &c.Options.ChannelMax }, parseChannelMax),
	},
	{
		Flag: "heartbeat", Section: "limits", Key: "heartbeat", Default: "60s", Arg: "duration", kind: duration, Live: true,
		Help:  "heartbeat interval offered to clients, in whole seconds; 0 offers none",
		apply: field(func(c *Config) *time.Duration { return &c.Options.Heartbeat }, parseHeartbeat),
	},
	{
		Flag: "handshake-timeout", Section: "limits", Key: "handshake_timeout", Default: "10s", Arg: "duration", kind: duration, Live: true,
		Help:  "time a client has to log in",
		apply: field(func(c *Config) *time.Duration { return &c.Options.HandshakeTimeout }, durationWithin(time.Second, 10*time.Minute)),
	},
	{
		Flag: "consumer-timeout", Section: "limits", Key: "consumer_timeout", Default: "30m", Arg: "duration", kind: duration, Live: true,
		Help:  "time a consumer has to acknowledge a message, where neither it nor the queue says otherwise; 0 for no limit",
		apply: field(func(c *Config) *time.Duration { return &c.Options.ConsumerTimeout }, parseConsumerTimeout),
	},
	{
		Flag: "shutdown-timeout", Section: "limits", Key: "shutdown_timeout", Default: "8s", Arg: "duration", kind: duration, Live: true,
		Help:  "time clients, and the disk, have when the broker is told to stop",
		apply: field(func(c *Config) *time.Duration { return &c.ShutdownTimeout }, durationWithin(0, time.Hour)),
	},

	{
		Flag: "default-user", Section: "users", Key: "default_user", Default: "guest", Arg: "user", kind: text,
		Help:  "first user, created when there is none",
		apply: field(func(c *Config) *string { return &c.Options.DefaultUser }, notEmpty("name the first user")),
	},
	{
		Flag: "default-pass", Section: "users", Key: "default_pass", Default: "guest", Arg: "password", kind: text, Secret: true,
		Help:  "the first user's password",
		apply: field(func(c *Config) *string { return &c.Options.DefaultPass }, notEmpty("the first user needs a password")),
	},
	{
		Flag: "loopback-users", Section: "users", Key: "loopback_users", Default: "guest", Arg: "users", kind: list,
		Help:  "comma-separated users who may only connect from this machine; empty: nobody is held to it",
		apply: field(func(c *Config) *[]string { return &c.Options.LoopbackUsers }, parseList),
	},

	{
		Flag: "tracing-endpoint", Section: "tracing", Key: "endpoint", Default: "", Arg: "url", kind: text,
		Help:  "OpenTelemetry collector that gets the spans of messages, by OTLP over HTTP: http://host:4318, without a path /v1/traces is meant; empty: nothing is traced",
		apply: field(func(c *Config) *string { return &c.Options.Tracing.Endpoint }, parseEndpoint),
		standard: []standard{
			{name: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"},
			{"OTEL_EXPORTER_OTLP_ENDPOINT", func(s string) string { return strings.TrimSuffix(s, "/") + tracesPath }},
		},
	},
	{
		Flag: "tracing-sample-ratio", Section: "tracing", Key: "sample_ratio", Default: "0", Arg: "ratio", kind: fraction,
		Help:     "part of the messages without a traceparent that are traced, 0 to 1; those with one say it themselves",
		apply:    field(func(c *Config) *float64 { return &c.Options.Tracing.SampleRatio }, parseRatio),
		standard: []standard{{name: samplerArg}},
	},
	{
		Flag: "tracing-service-name", Section: "tracing", Key: "service_name", Default: "firemq", Arg: "name", kind: text,
		Help:     "the broker's service.name in spans",
		apply:    field(func(c *Config) *string { return &c.Options.Tracing.Service }, notEmpty("name the service")),
		standard: []standard{{name: "OTEL_SERVICE_NAME"}},
	},
	{
		Flag: "tracing-timeout", Section: "tracing", Key: "timeout", Default: "10s", Arg: "duration", kind: duration,
		Help:  "time the collector has for a request",
		apply: field(func(c *Config) *time.Duration { return &c.Options.Tracing.Timeout }, durationWithin(time.Millisecond, time.Hour)),
		standard: []standard{
			{"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", milliseconds}, {"OTEL_EXPORTER_OTLP_TIMEOUT", milliseconds},
		},
	},
	{
		Flag: "tracing-headers", Section: "tracing", Key: "headers", Default: "", Arg: "headers", kind: list, Secret: true,
		Help:     "comma-separated headers of requests to the collector, name=value, where a value may be percent-encoded",
		apply:    field(func(c *Config) *http.Header { return &c.Options.Tracing.Headers }, parseHeaders),
		standard: []standard{{name: "OTEL_EXPORTER_OTLP_TRACES_HEADERS"}, {name: "OTEL_EXPORTER_OTLP_HEADERS"}},
	},

	{
		Flag: "log-level", Section: "log", Key: "level", Default: "info", Arg: "level", kind: text, Live: true,
		Help:  "log level: trace, debug, info, warn, error or off; also by module (amqp, broker, fire, http, loop, tracing): info,amqp=debug",
		apply: field(func(c *Config) *LogLevels { return &c.LogLevels }, ParseLogLevels),
	},
	{
		Flag: "log-format", Section: "log", Key: "format", Default: "text", Arg: "format", kind: text,
		Help:  "log format: text or json",
		apply: field(func(c *Config) *bool { return &c.LogJSON }, parseFormat),
	},
}

// development is what --dev stands for, by flag.
var development = map[string]string{"ephemeral": "true", "loopback-users": "", "log-level": "debug"}

// Settings gives the table of settings. The caller must not change it.
func Settings() []Setting { return table }

// Config is a complete, checked set of settings. Immutable once resolved, but for Adopt.
type Config struct {
	Options         Options // all that the broker needs; Log is left to the caller
	LogLevels       LogLevels
	LogJSON         bool
	ShutdownTimeout time.Duration
	File            string // the settings file that was read, "" for none

	values []given // by position in the table
}

// given is a value and where it comes from.
type given struct {
	text   string
	source source
	line   int    // of the file
	name   string // byStandard: the variable
}

// source is where a value comes from; the greater one wins.
type source uint8

const (
	byDefault source = iota
	byStandard
	byFile
	byDev
	byEnv
	byFlag
)

// Sources are where settings come from.
type Sources struct {
	Flags map[string]string                // by name, those that were given
	Dev   bool                             // --dev: comes before the file, after environment and flags
	Env   func(name string) (string, bool) // nil: nothing is set
	File  string                           // a settings file that must exist; "": DefaultFile if it exists
}

// Resolve reads all sources and checks them. The error has everything that is wrong, each with its
// place and the cure, joined by errors.Join.
func Resolve(from Sources) (*Config, error) {
	c := &Config{values: make([]given, len(table))}
	var errs []error
	bad := func(err error) { errs = append(errs, err) }
	for i := range table {
		c.values[i].text = table[i].Default
	}
	if text, err := c.openFile(from.File); err != nil {
		bad(err)
	} else if c.File != "" {
		errs = append(errs, c.readFile(text)...)
	}
	for i := range table {
		s := &table[i]
		v := &c.values[i]
		if v.source == byDefault && from.Env != nil {
			c.readStandard(i, from.Env)
		}
		if text, ok := development[s.Flag]; ok && from.Dev {
			*v = given{text: text, source: byDev}
		}
		// An empty variable counts as not set, but where empty is a value.
		if from.Env != nil {
			if text, ok := from.Env(s.Env()); ok && (text != "" || s.kind == list) {
				*v = given{text: text, source: byEnv}
			}
		}
		if text, ok := from.Flags[s.Flag]; ok {
			*v = given{text: text, source: byFlag}
		}
		if err := s.apply(c, v.text); err != nil {
			bad(fmt.Errorf("%s: %w", c.place(i), err))
		}
	}
	if len(errs) == 0 {
		c.Options.AMQPS, c.Options.Fires = c.listener(c.at("amqps")), c.listener(c.at("fires"))
		errs = c.combinations()
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return c, nil
}

const samplerArg = "OTEL_TRACES_SAMPLER_ARG"

// readStandard takes a value from OpenTelemetry's variables, unless they say that there is to be no export, or one
// that is not by HTTP.
func (c *Config) readStandard(i int, env func(string) (string, bool)) {
	get := func(name string) string { s, _ := env(name); return s }
	protocol := cmp.Or(get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), get("OTEL_EXPORTER_OTLP_PROTOCOL"))
	exporter := get("OTEL_TRACES_EXPORTER")
	if get("OTEL_SDK_DISABLED") == "true" || exporter != "" && exporter != "otlp" || protocol == "grpc" {
		return
	}
	for _, s := range table[i].standard {
		text := get(s.name)
		// The argument is a ratio for the samplers of that name alone.
		if text == "" || s.name == samplerArg && !strings.HasSuffix(get("OTEL_TRACES_SAMPLER"), "traceidratio") {
			continue
		}
		if s.value != nil {
			text = s.value(text)
		}
		c.values[i] = given{text: text, source: byStandard, name: s.name}
		return
	}
}

// CheckFile reads a settings file alone, without environment and flags.
func CheckFile(name string) error {
	_, err := Resolve(Sources{File: name})
	return err
}

// openFile gives the settings file's content and notes its name.
func (c *Config) openFile(name string) ([]byte, error) {
	named := name != ""
	if !named {
		name = DefaultFile
	}
	b, err := readFile(name, maxSettings)
	switch {
	case err == nil:
		c.File = name
		return b, nil
	case !named && errors.Is(err, fs.ErrNotExist):
		return nil, nil
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	return nil, fmt.Errorf("settings file %s cannot be read: %w; name another with --config, or make one with firemq init", name, err)
}

// maxSettings is the size of a settings file, a certificate or a key at most, maxDefinitions that of a file of definitions.
const (
	maxSettings    = 1 << 20
	maxDefinitions = 256 << 20
)

// readFile is os.ReadFile for files of that many bytes at most: a device may have no end.
func readFile(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("larger than %s", formatSize(most))
	}
	return b, err
}

// place says where a value is, with the value but for secrets and passwords in URLs: firemq.toml:3: amqp = "x".
func (c *Config) place(i int) string {
	s, v := &table[i], &c.values[i]
	text := v.text
	if s.Secret && text != "" {
		text = hidden
	} else if u, err := url.Parse(text); err == nil && u.User != nil {
		text = u.Redacted()
	}
	switch v.source {
	case byFlag:
		return fmt.Sprintf("--%s %q", s.Flag, text)
	case byEnv:
		return fmt.Sprintf("environment variable %s=%q", s.Env(), text)
	case byStandard:
		return fmt.Sprintf("environment variable %s=%q", v.name, text)
	case byFile:
		return fmt.Sprintf("%s:%d: %s = %s", c.File, v.line, s.Name(), s.kind.toml(text))
	}
	return s.Name()
}

// listener is the value of a listener, with auto decided.
func (c *Config) listener(i int) string {
	switch v := c.values[i].text; {
	case v != auto:
		return v
	case c.Options.TLSCert != "":
		return table[i].auto
	}
	return "off"
}

// auto is the value of a TLS listener that is on when there is a certificate.
const auto = "auto"

// combinations checks what no setting shows alone.
func (c *Config) combinations() (errs []error) {
	listeners := make(map[string]string) // by address: the place
	for i := range table {
		s := &table[i]
		if s.kind != listener {
			continue
		}
		addr, ok := address(c.listener(i))
		if !ok {
			continue
		}
		place := c.place(i)
		if s.auto != "" && c.Options.TLSCert == "" && c.Options.TLSKey == "" {
			errs = append(errs, fmt.Errorf("%s: TLS needs a certificate: give its files with --tls-cert and --tls-key", place))
		}
		if first, taken := listeners[addr]; taken && !strings.HasSuffix(addr, ":0") {
			errs = append(errs, fmt.Errorf("%s: the address is that of another listener (%s): give each its own port", place, first))
		}
		listeners[addr] = place
	}
	if len(listeners) == 0 {
		errs = append(errs, fmt.Errorf("%s: every listener is off, nobody could connect: turn one on", c.place(c.at("amqp"))))
	}
	for _, pair := range [][2]string{{"tls-cert", "tls-key"}, {"tls-key", "tls-cert"}} {
		if given, other := c.at(pair[0]), c.at(pair[1]); c.values[given].text != "" && c.values[other].text == "" {
			errs = append(errs, fmt.Errorf("%s: a certificate and its key belong together: give --%s, too", c.place(given), pair[1]))
		}
	}
	// The default message size is for large and small brokers.
	if m, limit := c.at("max-message-size"), c.Options.MemoryLimit.Bytes; limit > 0 && int64(c.Options.MaxMessageSize) > limit && c.values[m].text != table[m].Default {
		errs = append(errs, fmt.Errorf("%s: a message could be larger than the memory limit (%s): make one of them fit", c.place(m), c.place(c.at("memory-limit"))))
	}
	return errs
}

// at is the place in the table of a flag.
func (c *Config) at(flag string) int {
	i := slices.IndexFunc(table, func(s Setting) bool { return s.Flag == flag })
	if i < 0 {
		panic("BUG: no setting has the flag " + flag)
	}
	return i
}

// NewLog makes the log that the settings ask for.
func (c *Config) NewLog(w io.Writer) *Log { return NewLog(w, c.LogJSON, c.LogLevels) }

// Change is a setting whose value is another one; secrets are hidden.
type Change struct{ Name, Old, New string }

// Adopt takes the values of next that may change while the broker runs. It says which it took, and which
// of the others differ and need a restart. One caller at a time.
func (c *Config) Adopt(next *Config) (changed, restart []Change) {
	for i := range table {
		s := &table[i]
		old, v := c.values[i].text, next.values[i]
		if old == v.text {
			c.values[i] = v // the source may differ
			continue
		}
		change := Change{s.Name(), old, v.text}
		if s.Secret {
			change.Old, change.New = hidden, hidden
		}
		if !s.Live {
			restart = append(restart, change)
			continue
		}
		if err := s.apply(c, v.text); err != nil {
			panic("BUG: a setting that was resolved is refused: " + err.Error())
		}
		c.values[i] = v
		changed = append(changed, change)
	}
	c.File = next.File
	return changed, restart
}
