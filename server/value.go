package server

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// kind is how the values of a setting are spelt.
type kind uint8

const (
	text     kind = iota
	boolean       // true, false
	listener      // host:port, port, off
	size          // 512MB, 2GiB, 1000000, for memory 40%
	count
	duration // 10s, 1m30s, or seconds
	list     // separated by commas, in the file an array
	fraction // 0.25
)

// toml spells a value of the kind for the settings file.
func (k kind) toml(value string) string {
	switch k {
	case boolean:
		return value
	case listener, size, count, duration:
		if isPort(value) && value != "" && (value == "0" || value[0] != '0') {
			return value
		}
	case fraction:
		whole, part, dotted := strings.Cut(value, ".")
		if isPort(whole) && isPort(part) && whole != "" && (part != "") == dotted && (whole == "0" || whole[0] != '0') {
			return value
		}
	case list:
		items, _ := parseList(value)
		for i := range items {
			items[i] = quoteTOML(items[i])
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	return quoteTOML(value)
}

// quoteTOML is a basic string of TOML.
func quoteTOML(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// field makes a Setting's apply of the place of its value and its parser.
func field[T any](at func(*Config) *T, parse func(string) (T, error)) func(*Config, string) error {
	return func(c *Config, text string) error {
		v, err := parse(text)
		if err == nil {
			*at(c) = v
		}
		return err
	}
}

func notEmpty(cure string) func(string) (string, error) {
	return func(s string) (string, error) {
		if s == "" {
			return "", errors.New("is empty: " + cure)
		}
		return s, nil
	}
}

func parseBool(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, errors.New("neither true nor false")
}

func parseFormat(s string) (json bool, err error) {
	switch s {
	case "json":
		return true, nil
	case "text":
		return false, nil
	}
	return false, errors.New("neither text nor json")
}

func parseListener(value string) (string, error) {
	if value == "off" {
		return value, nil
	}
	port := value
	if strings.Contains(value, ":") {
		var err error
		if _, port, err = net.SplitHostPort(value); err != nil {
			return "", errors.New("neither host:port nor a port nor off")
		}
	}
	if port == "" || !isPort(port) {
		return "", errors.New("neither host:port nor a port nor off")
	}
	if n, err := strconv.Atoi(port); err != nil || n > 65535 {
		return "", errors.New("a port is between 0 (any free one) and 65535")
	}
	return value, nil
}

func parseAuto(s string) (string, error) {
	if s == auto {
		return s, nil
	}
	return parseListener(s)
}

func parseText(s string) (string, error) { return s, nil }

// parseOrigins gives nil for the empty list: that is the default.
func parseOrigins(s string) ([]string, error) {
	origins, _ := parseList(s)
	for _, o := range origins {
		// What no browser sends as an origin matches none.
		u, err := url.Parse(o)
		if o != "*" && o != "null" && (err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != o) {
			return nil, fmt.Errorf("%q is no origin: scheme://host or scheme://host:port, without a path; * stands for all", o)
		}
	}
	if len(origins) == 0 {
		return nil, nil
	}
	return origins, nil
}

func parseList(s string) ([]string, error) {
	items := []string{} // not nil: empty is a value
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items, nil
}

// units of sizes, in lower case.
var units = map[string]int64{
	"": 1, "b": 1,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}

// parseSize reads 1000000, 512MB, 2GiB.
func parseSize(s string) (int64, error) {
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	unit, ok := units[strings.ToLower(strings.TrimSpace(s[digits:]))]
	if digits == 0 || !ok {
		return 0, errors.New("not a size such as 1000000, 512MB or 2GiB")
	}
	n, err := strconv.ParseInt(s[:digits], 10, 64)
	if err != nil || n > math.MaxInt64/unit {
		return 0, errors.New("too large for a size")
	}
	return n * unit, nil
}

func sizeWithin(low, high int64) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := parseSize(s)
		if err == nil && (n < low || n > high) {
			err = fmt.Errorf("not between %s and %s", formatSize(low), formatSize(high))
		}
		return int(n), err
	}
}

// formatSize writes n as short as parseSize reads it.
func formatSize(n int64) string {
	for _, u := range []string{"TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB"} {
		if unit := units[strings.ToLower(u)]; n > 0 && n%unit == 0 {
			return strconv.FormatInt(n/unit, 10) + u
		}
	}
	return strconv.FormatInt(n, 10)
}

// MemoryLimit is a size, or a percentage of the memory that the machine or container has. The zero
// value is no limit.
type MemoryLimit struct {
	Bytes   int64
	Percent int // 1 to 100; counts when Bytes is 0
}

func parseMemory(s string) (m MemoryLimit, err error) {
	if digits, ok := strings.CutSuffix(s, "%"); ok {
		m.Percent, err = strconv.Atoi(digits)
		if err != nil || m.Percent < 1 || m.Percent > 100 {
			return MemoryLimit{}, errors.New("a percentage is between 1% and 100%")
		}
		return m, nil
	}
	if m.Bytes, err = parseSize(s); err == nil && m.Bytes != 0 && m.Bytes < minMemoryLimit {
		err = fmt.Errorf("less than %s, which an idle broker comes close to; 0 for no limit", formatSize(minMemoryLimit))
	}
	return m, err
}

func countWithin(low, high int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return 0, fmt.Errorf("not a whole number between %d and %d", low, high)
		}
		return n, nil
	}
}

func parseChannelMax(s string) (uint16, error) {
	n, err := countWithin(1, math.MaxUint16)(s)
	return uint16(n), err
}

// parseDuration reads 1m30s, or seconds without a unit.
func parseDuration(s string) (time.Duration, error) {
	if s != "" && isPort(s) {
		s += "s"
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, errors.New("neither seconds nor a duration such as 1m30s")
	}
	return d, nil
}

func durationWithin(low, high time.Duration) func(string) (time.Duration, error) {
	return func(s string) (time.Duration, error) {
		d, err := parseDuration(s)
		if err == nil && (d < low || d > high) {
			err = fmt.Errorf("not between %s and %s", low, high)
		}
		return d, err
	}
}

// parseHeartbeat gives a negative duration for none, as sessions have it.
func parseHeartbeat(s string) (time.Duration, error) {
	d, err := durationWithin(0, math.MaxUint16*time.Second)(s)
	switch {
	case err != nil:
		return 0, err
	case d%time.Second != 0:
		return 0, errors.New("not in whole seconds")
	case d == 0:
		return -1, nil
	}
	return d, nil
}

// parseConsumerTimeout gives a negative duration for none.
func parseConsumerTimeout(s string) (time.Duration, error) {
	d, err := durationWithin(0, 10*365*24*time.Hour)(s)
	switch {
	case err != nil:
		return 0, err
	case d%time.Millisecond != 0:
		return 0, errors.New("not in whole milliseconds")
	case d == 0:
		return -1, nil
	}
	return d, nil
}

// tracesPath is where an OTLP collector takes spans.
const tracesPath = "/v1/traces"

// parseEndpoint reads the URL of a collector.
func parseEndpoint(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "", errors.New("not a URL such as http://localhost:4318")
	case u.User != nil:
		return "", errors.New("a URL without user and password is wanted: give those as a header, with --tracing-headers")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", errors.New("a port is a number from 1 to 65535")
		}
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = tracesPath
	}
	return u.String(), nil
}

func parseRatio(s string) (float64, error) {
	r, err := strconv.ParseFloat(s, 64)
	if err != nil || !(r >= 0 && r <= 1) {
		return 0, errors.New("not a number between 0 and 1")
	}
	return r, nil
}

// parseHeaders reads name=value, and so on. The errors do not show what may be a secret.
func parseHeaders(s string) (http.Header, error) {
	items, _ := parseList(s)
	var h http.Header
	for _, item := range items {
		name, value, ok := strings.Cut(item, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !ok || err != nil || !isToken(name) || strings.ContainsFunc(value, unicode.IsControl) {
			return nil, errors.New("not headers such as authorization=secret,x-tenant=a")
		}
		if h == nil {
			h = make(http.Header)
		}
		h.Add(name, value)
	}
	return h, nil
}

// isToken reports whether s may be the name of a header (RFC 9110, 5.6.2).
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// milliseconds is the value of one of OpenTelemetry's variables as a duration.
func milliseconds(s string) string { return s + "ms" }
