package server

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write the tables of docs/configuration.md again")

// samples are, for each setting, values that are taken and values that are not: the latter with a part of
// what is said about them. toml says how the value stands in a file when that is not as a string.
var samples = map[string]struct {
	good []sample
	bad  []sample
}{
	"amqp":             listenerSamples,
	"fire":             listenerSamples,
	"http":             listenerSamples,
	"amqps":            autoSamples,
	"fires":            autoSamples,
	"ws-origins":       {good: []sample{{"*", ""}, {"https://a.example,http://b:8080", ""}, {"", ""}}, bad: []sample{{"a.example", "no origin"}, {"https://a.example/", "without a path"}}},
	"tls-cert":         {good: []sample{{"/etc/tls/cert.pem", ""}, {"b.pem", ""}}},
	"tls-key":          {good: []sample{{"/etc/tls/key.pem", ""}, {"b.pem", ""}}},
	"data":             {good: []sample{{"/var/lib/firemq", ""}, {`a "b" \c`, ""}}, bad: []sample{{"", "empty"}}},
	"fsync":            boolSamples,
	"ephemeral":        boolSamples,
	"import":           {good: []sample{{"/etc/firemq/definitions.json", ""}, {"b.json", ""}}},
	"memory-limit":     {good: []sample{{"512MB", ""}, {"2GiB", ""}, {"1000000000", ""}, {"60%", ""}, {"0", ""}, {"64mib", ""}}, bad: []sample{{"much", "512MB"}, {"101%", "between 1% and 100%"}, {"0%", "between"}, {"1MB", "less than 32MiB"}, {"9999999999GiB", "too large"}}},
	"disk-free-limit":  {good: []sample{{"1GB", ""}, {"0", ""}, {"5 GB", ""}}, bad: []sample{{"-1", "not a size"}, {"5PB", "not a size"}, {"", "not a size"}}},
	"max-message-size": {good: []sample{{"1MiB", ""}, {"512MiB", ""}}, bad: []sample{{"1", "not between 1KiB and 512MiB"}, {"1GiB", "not between"}, {"MiB", "not a size"}}},
	"max-frame":        {good: []sample{{"64KiB", ""}, {"32MiB", ""}}, bad: []sample{{"4096", "not between 64KiB and 512MiB"}, {"x", "not a size"}}},
	"max-connections":  {good: []sample{{"0", ""}, {"10000", ""}}, bad: []sample{{"-1", "whole number"}, {"many", "whole number"}, {"1e3", "whole number"}}},
	"channel-max":      {good: []sample{{"1", ""}, {"65535", ""}}, bad: []sample{{"0", "between 1 and 65535"}, {"65536", "between"}}},
	"heartbeat":        {good: []sample{{"0", ""}, {"30", ""}, {"1m30s", ""}}, bad: []sample{{"1500ms", "whole seconds"}, {"20h", "not between 0s and"}, {"-1s", "not between"}, {"soon", "neither"}}},
	"handshake-timeout": {good: []sample{{"1s", ""}, {"1500ms", ""}, {"5", ""}},
		bad: []sample{{"0", "not between 1s and"}, {"x", "neither seconds"}, {"", "neither seconds"}}},
	"consumer-timeout": {good: []sample{{"0", ""}, {"45m", ""}, {"1500ms", ""}, {"90", ""}},
		bad: []sample{{"-1s", "not between 0s and"}, {"1us", "not in whole milliseconds"}, {"never", "neither seconds"}}},
	"shutdown-timeout": {good: []sample{{"0", ""}, {"30s", ""}}, bad: []sample{{"2h", "not between"}}},
	"default-user":     {good: []sample{{"me", ""}, {"ü=#", ""}}, bad: []sample{{"", "empty"}}},
	"default-pass":     {good: []sample{{"secret", ""}, {"\"\\\t", ""}}, bad: []sample{{"", "empty"}}},
	"loopback-users":   {good: []sample{{"", ""}, {"a,b", ""}, {"a", ""}}},
	"tracing-endpoint": {good: []sample{{"http://localhost:4318", ""}, {"https://[::1]:4318/v1/traces", ""}, {"http://a:65535", ""}}, bad: []sample{{"localhost:4318", "not a URL"}, {"ftp://a", "not a URL"}, {"http://", "not a URL"}, {"http://u:p@a", "without user and password"},
		{"http://a:99999", "1 to 65535"}, {"http://a:65536/v1/traces", "1 to 65535"}, {"http://[::1]:0", "1 to 65535"}}},
	"tracing-sample-ratio": {good: []sample{{"0.25", ""}, {"1", ""}, {"0", ""}, {"1e-3", ""}},
		bad: []sample{{"2", "between 0 and 1"}, {"-0.1", "between 0 and 1"}, {"NaN", "between 0 and 1"}, {"", "between 0 and 1"}}},
	"tracing-service-name": {good: []sample{{"orders-broker", ""}, {"b", ""}}, bad: []sample{{"", "empty"}}},
	"tracing-timeout":      {good: []sample{{"1500ms", ""}, {"5", ""}}, bad: []sample{{"0", "not between"}, {"x", "neither seconds"}}},
	"tracing-headers": {good: []sample{{"authorization=Bearer%20abc", ""}, {"a=1,b=2%2c3", ""}, {"", ""}},
		bad: []sample{{"hunter 2", "not headers"}, {"a b=c", "not headers"}, {"= c d", "not headers"}, {"a=%zz b", "not headers"}, {"a=%0d%0ab: c", "not headers"}}},
	"log-level":  {good: []sample{{"debug", ""}, {"warn,amqp=trace", ""}}, bad: []sample{{"loud", `"loud"`}, {"", "none of"}, {"info,amqp=", "none of"}, {"info,ampq=debug", `log module "ampq" is none of amqp, broker, fire, http, loop, tracing`}}},
	"log-format": {good: []sample{{"json", ""}, {"text", ""}}, bad: []sample{{"xml", "neither text nor json"}}},
}

// companions are the flags without which a setting is refused.
var companions = map[string]map[string]string{
	"amqps":    {"tls-cert": "cert.pem", "tls-key": "key.pem"},
	"fires":    {"tls-cert": "cert.pem", "tls-key": "key.pem"},
	"tls-cert": {"tls-key": "key.pem"},
	"tls-key":  {"tls-cert": "cert.pem"},
}

type sample struct{ value, want string }

type sampleSet = struct{ good, bad []sample }

var (
	listenerSamples = sampleSet{
		good: []sample{{"6001", ""}, {"127.0.0.1:6001", ""}, {"[::1]:0", ""}, {"localhost:6001", ""}, {"off", ""}},
		bad:  []sample{{"localhost", "neither host:port"}, {"70000", "between 0"}, {"a:b:c", "neither"}, {"host:", "neither"}, {"", "neither"}, {"-1", "neither"}},
	}
	autoSamples = sampleSet{good: append([]sample{{"auto", ""}}, listenerSamples.good...), bad: listenerSamples.bad}
	boolSamples = sampleSet{good: []sample{{"true", ""}, {"false", ""}}, bad: []sample{{"perhaps", "neither true nor false"}, {"1", "neither"}, {"TRUE", "neither"}}}
)

// environment is a process environment.
func environment(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// settingsFile writes a file with these lines.
func settingsFile(t *testing.T, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "settings.toml")
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func value(c *Config, flag string) string { return c.values[c.at(flag)].text }

// Every setting is taken from each source, and each source comes before those after it.
func TestEverySettingFromEverySource(t *testing.T) {
	for i := range table {
		s := &table[i]
		set, ok := samples[s.Flag]
		if !ok {
			t.Errorf("--%s has no samples", s.Flag)
			continue
		}
		for _, g := range set.good {
			t.Run(s.Flag+"="+g.value, func(t *testing.T) {
				file := settingsFile(t, "["+s.Section+"]", s.Key+" = "+s.kind.toml(g.value))
				flags, env := map[string]string{s.Flag: g.value}, environment(s.Env(), g.value)
				beside := companions[s.Flag]
				// A value that each source can be told by, where the kind has two.
				other := set.good[0].value
				if other == g.value {
					other = set.good[1].value
				}
				otherFile := settingsFile(t, "["+s.Section+"]", s.Key+" = "+s.kind.toml(other))
				otherEnv := environment(s.Env(), other)
				for name, from := range map[string]Sources{
					"flag":                       {Flags: flags},
					"environment":                {Env: env},
					"file":                       {File: file},
					"flag before environment":    {Flags: flags, Env: otherEnv},
					"flag before file":           {Flags: flags, File: otherFile},
					"flag before both":           {Flags: flags, Env: otherEnv, File: otherFile},
					"environment before file":    {Env: env, File: otherFile},
					"flag before --dev":          {Flags: flags, Dev: true},
					"environment before --dev":   {Env: env, Dev: true},
					"empty environment and file": {Env: environment(s.Env(), ""), File: file},
				} {
					if name == "empty environment and file" && s.kind == list {
						continue // empty is a value
					}
					from.Flags = maps.Clone(from.Flags)
					if from.Flags == nil {
						from.Flags = make(map[string]string)
					}
					maps.Copy(from.Flags, beside)
					c, err := Resolve(from)
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if got := value(c, s.Flag); got != g.value {
						t.Errorf("%s: got %q, want %q", name, got, g.value)
					}
				}
			})
		}
		for _, b := range set.bad {
			t.Run(s.Flag+"="+b.value+" is wrong", func(t *testing.T) {
				toml := s.kind.toml(b.value)
				if s.kind == boolean || s.kind == count {
					toml = quoteTOML(b.value)
				}
				file := settingsFile(t, "# comment", "["+s.Section+"]", s.Key+" = "+toml)
				for name, c := range map[string]struct {
					from  Sources
					place string
				}{
					"flag":        {Sources{Flags: map[string]string{s.Flag: b.value}}, "--" + s.Flag + " "},
					"environment": {Sources{Env: environment(s.Env(), b.value)}, "environment variable " + s.Env() + "="},
					"file":        {Sources{File: file}, file + ":3: " + s.Name()},
				} {
					want := b.want
					if name == "environment" && b.value == "" {
						continue // not set
					}
					if name == "file" && (s.kind == boolean || s.kind == count) {
						want = "wants"
					}
					_, err := Resolve(c.from)
					if err == nil || !strings.Contains(err.Error(), c.place) || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: error %v; want %q with %q", name, err, c.place, want)
					}
					if s.Secret && err != nil && b.value != "" && strings.Contains(err.Error(), b.value) {
						t.Errorf("%s: the secret is in %q", name, err)
					}
				}
			})
		}
	}
	for flag := range samples {
		if !slices.ContainsFunc(table, func(s Setting) bool { return s.Flag == flag }) {
			t.Errorf("no setting is called --%s", flag)
		}
	}
}

// Without a word about them, the TLS listeners are on when there is a certificate.
func TestTLSListeners(t *testing.T) {
	for name, c := range map[string]struct {
		flags        map[string]string
		amqps, fires string
	}{
		"no certificate": {nil, "off", "off"},
		"certificate":    {map[string]string{"tls-cert": "a", "tls-key": "b"}, "5671", "5674"},
		"one off":        {map[string]string{"tls-cert": "a", "tls-key": "b", "fires": "off"}, "5671", "off"},
		"one elsewhere":  {map[string]string{"tls-cert": "a", "tls-key": "b", "amqps": "localhost:1"}, "localhost:1", "5674"},
	} {
		got, err := Resolve(Sources{Flags: c.flags})
		if err != nil {
			t.Fatal(err)
		}
		if o := got.Options; o.AMQPS != c.amqps || o.Fires != c.fires {
			t.Errorf("%s: %s and %s, want %s and %s", name, o.AMQPS, o.Fires, c.amqps, c.fires)
		}
	}
}

func TestOrigins(t *testing.T) {
	for value, want := range map[string][]string{"": nil, " * ": {"*"}, "https://a.example, http://b:8080": {"https://a.example", "http://b:8080"}} {
		c, err := Resolve(Sources{Flags: map[string]string{"ws-origins": value}})
		if err != nil || !slices.Equal(c.Options.Origins, want) || (c.Options.Origins == nil) != (want == nil) {
			t.Errorf("%q: %q, %v", value, c.Options.Origins, err)
		}
	}
	for _, wrong := range []string{"example.com", "https://a.example/path", "https://"} {
		if _, err := Resolve(Sources{Env: environment("FIREMQ_WS_ORIGINS", wrong)}); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

// What the values become is what the broker is started with.
func TestOptions(t *testing.T) {
	c, err := Resolve(Sources{})
	if err != nil {
		t.Fatal(err)
	}
	o := c.Options
	got := fmt.Sprint(o.AMQP, o.Fire, o.HTTP, o.Data, o.Ephemeral, o.NoSync, o.DefaultUser, o.DefaultPass, o.LoopbackUsers, o.MemoryLimit, o.DiskFreeLimit,
		o.MaxConnections, o.MaxMessageSize, o.MaxFrame, o.ChannelMax, o.Heartbeat, o.HandshakeTimeout, o.ConsumerTimeout, c.ShutdownTimeout, c.LogJSON)
	want := fmt.Sprint("5672", "5673", "15672", "firemq-data", false, false, "guest", "guest", []string{"guest"}, MemoryLimit{Percent: 40}, 50_000_000,
		0, 128<<20, 16<<20, 2047, time.Minute, 10*time.Second, 30*time.Minute, 8*time.Second, false)
	if got != want {
		t.Errorf("defaults:\n%s, want\n%s", got, want)
	}
	c, err = Resolve(Sources{File: settingsFile(t,
		"[listeners]", `amqp = "127.0.0.1:1"`, "fire = 2", `http = "off"`,
		"[storage]", `data = 'C:\data'`, "fsync = false", "ephemeral = true",
		"[limits]", "memory = 1_000_000_000", `disk_free = "2GiB"`, `message_size = "1MB"`, "frame = 65536", "connections = 7", "channel_max = 8",
		"heartbeat = 0", `handshake_timeout = "3s"`, `consumer_timeout = "0"`, "shutdown_timeout = 90",
		"[users]", `default_user = "me"`, `default_pass = "x\u00e9"`, "loopback_users = []",
		"[log]", `level = "error"`, `format = "json"`)})
	if err != nil {
		t.Fatal(err)
	}
	o = c.Options
	got = fmt.Sprint(o.AMQP, o.Fire, o.HTTP, o.Data, o.Ephemeral, o.NoSync, o.DefaultUser, o.DefaultPass, o.LoopbackUsers != nil, len(o.LoopbackUsers), o.MemoryLimit, o.DiskFreeLimit,
		o.MaxConnections, o.MaxMessageSize, o.MaxFrame, o.ChannelMax, o.Heartbeat < 0, o.HandshakeTimeout, o.ConsumerTimeout < 0, c.ShutdownTimeout, c.LogJSON)
	want = fmt.Sprint("127.0.0.1:1", "2", "off", `C:\data`, true, true, "me", "xé", true, 0, MemoryLimit{Bytes: 1e9}, 2<<30,
		7, 1_000_000, 65536, 8, true, 3*time.Second, true, 90*time.Second, true)
	if got != want {
		t.Errorf("all set:\n%s, want\n%s", got, want)
	}
}

func TestDevelopment(t *testing.T) {
	file := settingsFile(t, "[storage]", "ephemeral = false", "[log]", `level = "warn"`)
	c, err := Resolve(Sources{Dev: true, File: file})
	if err != nil {
		t.Fatal(err)
	}
	if !c.Options.Ephemeral || len(c.Options.LoopbackUsers) != 0 || value(c, "log-level") != "debug" {
		t.Errorf("--dev with a file: %s", c.Text())
	}
}

// Everything that is wrong with a file is said at once, with its place and the name that was meant.
func TestWrongFiles(t *testing.T) {
	for name, c := range map[string]struct {
		lines []string
		want  []string // FILE stands for its name
	}{
		"unknown key":         {[]string{"[limits]", `memroy = "1GB"`}, []string{"FILE:2: unknown key limits.memroy: did you mean limits.memory?"}},
		"another unknown key": {[]string{"[limits]", "", "max_conections = 1"}, []string{"FILE:3: unknown key limits.max_conections: did you mean limits.connections?"}},
		"a flag's name":       {[]string{"[limits]", `memory-limit = "1GB"`}, []string{"FILE:2: unknown key limits.memory-limit: did you mean limits.memory?"}},
		"wrong section":       {[]string{"[storage]", "amqp = 1"}, []string{"FILE:2: unknown key storage.amqp: did you mean listeners.amqp?"}},
		"no section":          {[]string{"amqp = 1"}, []string{"FILE:1: unknown key amqp: did you mean listeners.amqp?"}},
		"unknown section":     {[]string{"[listener]", "amqp = 1"}, []string{"FILE:1: unknown section [listener]: did you mean [listeners]?"}},
		"array of tables":     {[]string{"[[log]]", `level = "info"`}, []string{"FILE:1: [[log]] would be one of several: write [log]"}},
		"unknown array":       {[]string{"[[logs]]", `level = "info"`}, []string{"FILE:1: unknown section [logs]: did you mean [log]?"}},
		"section in section":  {[]string{"[listeners.amqp]", "port = 1"}, []string{"FILE:1: unknown section [listeners.amqp]"}},
		"two problems":        {[]string{"[log]", `leevl = "info"`, `format = "xml"`}, []string{"FILE:2: unknown key log.leevl: did you mean log.level?", `FILE:3: log.format = "xml": neither text nor json`}},
		"key twice":           {[]string{"[log]", `level = "info"`, `level = "info"`}, []string{"FILE:3: "}},
		"section twice":       {[]string{"[log]", "[log]"}, []string{"FILE:2: "}},
		"no value":            {[]string{"[log]", "level = "}, []string{"FILE:2: "}},
		"not closed":          {[]string{"[log"}, []string{"FILE:1: "}},
		"not TOML":            {[]string{"level: info"}, []string{"FILE:1: "}},
		"not UTF-8":           {[]string{"# \xff"}, []string{"FILE:1: "}},
		"number for a name":   {[]string{"[users]", "default_user = 7"}, []string{"FILE:2: users.default_user: wants a string"}},
		"string for a bool":   {[]string{"[storage]", `fsync = "true"`}, []string{"FILE:2: storage.fsync: wants true or false"}},
		"bool for a listener": {[]string{"[listeners]", "amqp = true"}, []string{"FILE:2: listeners.amqp: wants"}},
		"float for a size":    {[]string{"[limits]", "memory = 1.5"}, []string{"FILE:2: limits.memory: wants a size"}},
		"string for a list":   {[]string{"[users]", `loopback_users = "a"`}, []string{"FILE:2: users.loopback_users: wants an array of strings"}},
		"numbers in a list":   {[]string{"[users]", "loopback_users = [1]"}, []string{"FILE:2: users.loopback_users: not an array of strings"}},
		"comma in a list":     {[]string{"[users]", `loopback_users = ["a,b"]`}, []string{"FILE:2: users.loopback_users: \"a,b\": one item each"}},
		"inline table":        {[]string{"log = {level = 'info'}"}, []string{"FILE:1: log is a section: write [log] on a line of its own, and its keys below"}},
		"not a section":       {[]string{"log = 3"}, []string{"FILE:1: log is a section"}},
		"a secret's value":    {[]string{"[users]", `default_pass = ""`}, []string{`FILE:2: users.default_pass = "": is empty`}},

		"one port twice":       {[]string{"[listeners]", "amqp = 1000", "fire = 1000"}, []string{"FILE:3: listeners.fire = 1000: the address is that of another listener (FILE:2: listeners.amqp = 1000)"}},
		"a default port twice": {[]string{"[listeners]", "fire = 5672"}, []string{"FILE:2: listeners.fire = 5672: the address is that of another listener (listeners.amqp)"}},
		"TLS without files":    {[]string{"[listeners]", "amqps = 5671"}, []string{"FILE:2: listeners.amqps = 5671: TLS needs a certificate"}},
		"cert without key":     {[]string{"[tls]", "cert = 'a.pem'"}, []string{"FILE:2: tls.cert = \"a.pem\": a certificate and its key belong together: give --tls-key, too"}},
		"key without cert":     {[]string{"[tls]", "key = 'a.pem'"}, []string{"FILE:2: tls.key = \"a.pem\": a certificate and its key belong together: give --tls-cert, too"}},
		"TLS port twice":       {[]string{"[listeners]", "amqp = 5671", "[tls]", "cert = 'a'", "key = 'b'"}, []string{"listeners.amqps: the address is that of another listener (FILE:2: listeners.amqp = 5671)"}},
		"all off":              {[]string{"[listeners]", `amqp = "off"`, `fire = "off"`, `http = "off"`}, []string{`FILE:2: listeners.amqp = "off": every listener is off`}},
		"message over memory":  {[]string{"[limits]", `memory = "100MB"`, `message_size = "200MB"`}, []string{"FILE:3: limits.message_size = \"200MB\": a message could be larger than the memory limit (FILE:2: limits.memory = \"100MB\")"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := settingsFile(t, c.lines...)
			err := CheckFile(file)
			if err == nil {
				t.Fatal("no error")
			}
			got := strings.Split(strings.ReplaceAll(err.Error(), file, "FILE"), "\n")
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for i, want := range c.want {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("got %q, want %q", got[i], want)
				}
			}
		})
	}
}

func TestDottedKeysAreSections(t *testing.T) {
	c, err := Resolve(Sources{File: settingsFile(t, "listeners.amqp = 1", `log . "level" = 'debug'`)})
	if err != nil || value(c, "amqp") != "1" || value(c, "log-level") != "debug" {
		t.Errorf("%v", err)
	}
}

// Files as Windows writes them.
func TestForeignFiles(t *testing.T) {
	c, err := Resolve(Sources{File: settingsFile(t, "\ufeff[listeners]\r", "amqp = 1\r", "\r")})
	if err != nil || value(c, "amqp") != "1" {
		t.Errorf("%v", err)
	}
}

// A file without an end, or one that is no settings file, is refused before it takes memory.
func TestHugeFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "huge.toml")
	if err := os.WriteFile(name, bytes.Repeat([]byte("#\n"), maxSettings/2+1), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "settings file " + name + " cannot be read: larger than 1MiB; "
	if err := CheckFile(name); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := os.Truncate(name, maxSettings); err != nil {
		t.Fatal(err)
	}
	if err := CheckFile(name); err != nil {
		t.Error(err)
	}
}

func TestDefaultFile(t *testing.T) {
	t.Chdir(t.TempDir())
	if c, err := Resolve(Sources{}); err != nil || c.File != "" {
		t.Fatalf("without a file: %v", err)
	}
	if err := CheckFile("firemq.toml"); err == nil || !strings.Contains(err.Error(), "no such file") && !strings.Contains(err.Error(), "cannot find") {
		t.Errorf("a named file that is missing: %v", err)
	}
	if err := os.WriteFile(DefaultFile, []byte("[listeners]\namqp = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Resolve(Sources{}); err != nil || c.File != DefaultFile || c.Options.AMQP != "1" {
		t.Errorf("with a file: %v", err)
	}
}

// The file that firemq init writes is what a broker without one does, setting by setting.
func TestDefaultTextIsTheDefaults(t *testing.T) {
	c, err := Resolve(Sources{File: settingsFile(t, DefaultText())})
	if err != nil {
		t.Fatal(err)
	}
	for i := range table {
		if v := c.values[i]; v.source != byFile || v.text != table[i].Default {
			t.Errorf("--%s is %q of source %d, want %q of the file", table[i].Flag, v.text, v.source, table[i].Default)
		}
	}
	for line := range strings.Lines(DefaultText()) {
		if len(line) > commentColumns+1 {
			t.Errorf("long line %q", line)
		}
	}
}

// What config show prints is a settings file of the same settings, but for secrets.
func TestText(t *testing.T) {
	file := settingsFile(t, "[users]", `default_pass = "hunter2"`, "[limits]", "connections = 5")
	c, err := Resolve(Sources{File: file, Flags: map[string]string{"amqp": "localhost:1"}, Env: environment("FIREMQ_LOOPBACK_USERS", "a,b")})
	if err != nil {
		t.Fatal(err)
	}
	text := c.Text()
	for _, want := range []string{"# --amqp\n", "# FIREMQ_LOOPBACK_USERS\n", "# " + file + ":4\n", "# default\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "hunter2") {
		t.Errorf("the secret is in\n%s", text)
	}
	again, err := Resolve(Sources{File: settingsFile(t, text)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range table {
		if got, want := again.values[i].text, c.values[i].text; got != want && !table[i].Secret {
			t.Errorf("--%s is %q, want %q", table[i].Flag, got, want)
		}
	}
}

func TestAdopt(t *testing.T) {
	c, err := Resolve(Sources{File: settingsFile(t, "[users]", `default_pass = "hunter2"`)})
	if err != nil {
		t.Fatal(err)
	}
	next, err := Resolve(Sources{File: settingsFile(t, "[limits]", `memory = "1GB"`, "connections = 9", "[storage]", `data = "x"`, "[log]", `level = "debug"`)})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // what needs a restart is said as long as it does
		changed, restart := c.Adopt(next)
		if got, want := fmt.Sprint(restart), fmt.Sprint([]Change{{"storage.data", "firemq-data", "x"}, {"users.default_pass", hidden, hidden}}); got != want {
			t.Errorf("restart for %s, want %s", got, want)
		}
		if len(changed) == 0 {
			continue
		}
		if got, want := fmt.Sprint(changed), fmt.Sprint([]Change{{"limits.memory", "40%", "1GB"}, {"limits.connections", "0", "9"}, {"log.level", "info", "debug"}}); got != want {
			t.Errorf("changed %s, want %s", got, want)
		}
	}
	if o := c.Options; o.MemoryLimit.Bytes != 1e9 || o.MaxConnections != 9 || o.Data != "firemq-data" || o.DefaultPass != "hunter2" {
		t.Errorf("%+v", o)
	}
}

func TestTable(t *testing.T) {
	for i := range table {
		s := &table[i]
		if s.Help == "" || strings.HasSuffix(s.Help, ".") || s.kind != boolean && s.Arg == "" {
			t.Errorf("--%s: help %q, argument %q", s.Flag, s.Help, s.Arg)
		}
		if i > 0 && table[i-1].Section != s.Section && slices.ContainsFunc(table[:i], func(o Setting) bool { return o.Section == s.Section }) {
			t.Errorf("--%s stands apart from its section", s.Flag)
		}
		for _, o := range table[:i] {
			if o.Flag == s.Flag || o.Name() == s.Name() {
				t.Errorf("%s or --%s is there twice", s.Name(), s.Flag)
			}
		}
		// The commands' own variables.
		if slices.Contains(commandVariables, s.Env()) {
			t.Errorf("%s has another meaning", s.Env())
		}
	}
}

// docs/configuration.md has the table; -rewrite puts it there.
func TestDocs(t *testing.T) {
	const name, begin, end = "../docs/configuration.md", "<!-- settings -->\n", "<!-- end of settings -->\n"
	doc, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(doc, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		t.Fatal("the marks of the table are missing")
	}
	want := slices.Concat(before, []byte(begin), []byte(settingsTable()), []byte(end), after)
	if bytes.Equal(doc, want) {
		return
	}
	if !*rewrite {
		t.Fatal("the table is not that of the settings: go test ./server -run TestDocs -rewrite")
	}
	if err := os.WriteFile(name, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

// settingsTable is the table of settings in Markdown, by section.
func settingsTable() string {
	var b strings.Builder
	section := ""
	for i := range table {
		s := &table[i]
		if s.Section != section {
			section = s.Section
			fmt.Fprintf(&b, "\n### [%s]\n\n| flag | environment | key | default | | what it is |\n| --- | --- | --- | --- | --- | --- |\n", section)
		}
		live := ""
		if s.Live {
			live = "live"
		}
		fmt.Fprintf(&b, "| `--%s` | `%s` | `%s` | `%s` | %s | %s |\n", s.Flag, s.Env(), s.Key, s.kind.toml(s.Default), live, s.Help)
	}
	return b.String() + "\n"
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "1": 1, "1b": 1, "2KiB": 2048, "2kB": 2000, "3 MB": 3e6, "4mib": 4 << 20, "5GB": 5e9, "6GiB": 6 << 30, "7TB": 7e12, "8TiB": 8 << 40, "9223372036854775807": 1<<63 - 1} {
		got, err := parseSize(text)
		if err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
		if back, err := parseSize(formatSize(want)); err != nil || back != want {
			t.Errorf("%d is written %q, which is %d", want, formatSize(want), back)
		}
	}
	for _, text := range []string{"", "x", "1.5GB", "-1", "1K", "9223372036854775808", "8388608TiB", "1 2", "MB", "0x10"} {
		if n, err := parseSize(text); err == nil {
			t.Errorf("%q is taken as %d", text, n)
		}
	}
}

func TestMisspelt(t *testing.T) {
	got := Misspelt([]string{"PATH=/bin", "FIREMQ_AMPQ=1", "FIREMQ_AMQP=1", "FIREMQ_MEMORY_LIMT=1GB", "FIREMQ_URL=x", "FIREMQ_SERVICE_HOST=10.0.0.1", "FIREMQ_PORT_5672_TCP=x", "FIREMQ_"})
	if want := map[string]string{"FIREMQ_AMPQ": "FIREMQ_AMQP", "FIREMQ_MEMORY_LIMT": "FIREMQ_MEMORY_LIMIT"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestResolveJoinsErrors(t *testing.T) {
	_, err := Resolve(Sources{Flags: map[string]string{"amqp": "x", "log-format": "y"}})
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) || len(joined.Unwrap()) != 2 {
		t.Errorf("%v", err)
	}
}

// OpenTelemetry's variables count where nothing else gives a setting, and not when they ask for no export or for
// another protocol.
func TestStandardVariables(t *testing.T) {
	all := []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4318/base/", "OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%2Cb, x=1", "OTEL_EXPORTER_OTLP_TIMEOUT", "1500",
		"OTEL_SERVICE_NAME", "orders", "OTEL_TRACES_SAMPLER", "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG", "0.5",
	}
	show := func(o Tracing) string {
		return fmt.Sprint(o.Endpoint, " ", o.SampleRatio, " ", o.Service, " ", o.Timeout, " ", o.Headers)
	}
	const off = " 0 firemq 10s map[]"
	for name, c := range map[string]struct {
		env   []string // comes before all
		flags map[string]string
		want  string
	}{
		"all":                 {nil, nil, "https://collector:4318/base/v1/traces 0.5 orders 1.5s map[Api-Key:[a,b] X:[1]]"},
		"of traces":           {[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a/x", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "7", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "h=1"}, nil, "http://a/x 0.5 orders 7ms map[H:[1]]"},
		"the settings' own":   {[]string{"FIREMQ_TRACING_SERVICE_NAME", "b"}, map[string]string{"tracing-endpoint": "http://c", "tracing-headers": ""}, "http://c/v1/traces 0.5 b 1.5s map[]"},
		"disabled":            {[]string{"OTEL_SDK_DISABLED", "true"}, nil, off},
		"another exporter":    {[]string{"OTEL_TRACES_EXPORTER", "none"}, nil, off},
		"another protocol":    {[]string{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}, nil, off},
		"the same protocol":   {[]string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_TRACES_EXPORTER", "otlp"}, nil, "https://collector:4318/base/v1/traces 0.5 orders 1.5s map[Api-Key:[a,b] X:[1]]"},
		"a sampler of others": {[]string{"OTEL_TRACES_SAMPLER", "jaeger_remote"}, nil, "https://collector:4318/base/v1/traces 0 orders 1.5s map[Api-Key:[a,b] X:[1]]"},
	} {
		got, err := Resolve(Sources{Env: environment(append(c.env, all...)...), Flags: c.flags})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := show(got.Options.Tracing); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
	file := settingsFile(t, "[tracing]", `endpoint = "http://file"`, "sample_ratio = 0.125", `headers = ["secret=hunter2"]`)
	c, err := Resolve(Sources{Env: environment(all...), File: file})
	if err != nil {
		t.Fatal(err)
	}
	text := c.Text()
	for _, want := range []string{`endpoint = "http://file"`, file + ":2\n", "sample_ratio = 0.125", `service_name = "orders"`, "# OTEL_SERVICE_NAME\n", `headers = ["` + hidden + `"]`} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	_, err = Resolve(Sources{Env: environment("OTEL_EXPORTER_OTLP_HEADERS", "hunter2")})
	if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "environment variable OTEL_EXPORTER_OTLP_HEADERS") {
		t.Errorf("error %v", err)
	}
}

func TestErrorsTellNoPasswords(t *testing.T) {
	_, err := Resolve(Sources{Flags: map[string]string{"tracing-endpoint": "http://u:hush@host"}})
	if err == nil || strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), "u:xxxxx@host") {
		t.Error(err)
	}
}
