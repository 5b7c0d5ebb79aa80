package oracle

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/firemq/firemq/frames/amqp/text"
)

// A script is what clients do, one step a line, the same on both brokers:
//
//	== queue: a name begins a case; it is unique among all files
//	1 queue.declare queue="q" arguments={x-max-length=I2}     connection a, channel 1, one frame
//	b 2 basic.consume queue="q" consumer-tag="t"              connection b, channel 2
//	1 publish routing-key="q" "hello" priority=3              basic.publish, header and body
//	1 basic.ack delivery-tag=$0                               $0: oldest unsettled, $-1: newest
//	1 queue.bind queue="$gen1" exchange="amq.fanout"          names the server made: $gen1 $ctag1 $reply1
//
// Frames are in the words of package text. A connection is opened by its first use, as guest
// without heartbeats, and a channel too; the handshake and the open-ok are not compared. A close
// by the server is answered, unless the script itself sends that close-ok.
//
// After every step a fence waits until the brokers have carried it out: each open channel
// answers a channel.flow, and each queue of the script a passive declare, twice over. A line that
// starts with "+" has no fence: what follows is sent right behind it.
//
//	a connect                    a TCP connection without a handshake
//	a raw "AMQP\x00\x00\x09\x01" octets
//	a open user="u" caps={}      a handshake with other user, password, vhost, heartbeat, frame-max, channel-max or caps
//	a lose                       the client drops the socket
//	a nofence                    no fences on this connection from here on; a step on it and the await
//	                             behind it are one, because an answer may come before the await or after
//	await a "basic.deliver"      until connection a received a line with this text, since the last await
//	await a "closed"             until the server closed the socket of a
//	until "count=0" 1 queue.declare queue="q" passive    repeats the step until its answer has the text
//	quiet 100ms                  nothing may come
//	user name="u" tags="x" configure="" write="" read="" a user with password "pw" and its rights in the vhost
//	revoke name="u"              takes the rights away
//	topic user="u" exchange="e" write="" read=""         a topic permission
//	policy name="p" pattern="^q" apply-to="queues" priority=1 operator=true definition={max-length=I2}
//	unpolicy name="p" operator=true                      takes a policy away
//	limit user="u" name="max-channels" value=1           a limit of a user, or of the vhost without user
//	unuser name="u"                                      deletes a user
//	a kick "why"                                         an administrator closes connection a
//	trace on                                             the vhost is traced, until "trace off" or the end
//	alarm memory disk                                    the broker is low on both, one or, with "off", none: for cases that are alone
type script struct {
	name  string
	steps []step

	// random: made up, so that errors are part of it. Closed connections are opened again, and the
	// entries of x-death behind the first are compared as a set: RabbitMQ 3.10 reverses them at each death.
	random bool
}

type step struct {
	src   string // the line
	op    string // "send", "raw", or a directive
	conn  string
	ch    uint16
	arg   string // of send: the frame; else the rest of the line
	fence bool
}

func (s *script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "== %s\n", s.name)
	for i := range s.steps {
		b.WriteString(s.steps[i].src + "\n")
	}
	return b.String()
}

var isConn = regexp.MustCompile(`^[a-z]$`)

func parseStep(line string) (s step, err error) {
	s.src, s.fence, s.conn = line, true, "a"
	if rest, ok := strings.CutPrefix(line, "+"); ok {
		s.fence = false
		line = strings.TrimSpace(rest)
	}
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "quiet":
		s.op, s.arg = word, rest
		_, err := time.ParseDuration(rest)
		return s, err
	case "trace":
		if s.op, s.arg = word, rest; rest != "on" && rest != "off" {
			return s, fmt.Errorf("trace is on or off: %q", line)
		}
		return s, nil
	case "alarm":
		s.op, s.arg = word, rest
		for _, name := range strings.Fields(rest) {
			if !slices.Contains([]string{"memory", "disk", "off"}, name) {
				return s, fmt.Errorf("no alarm: %q", line)
			}
		}
		return s, nil
	case "user", "unuser", "revoke", "topic", "policy", "unpolicy", "limit":
		s.op, s.arg = word, rest
		_, err := fields(rest)
		return s, err
	case "until":
		s.op = word
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return s, fmt.Errorf("until wants a quoted text: %q", line)
		}
		again, err := parseStep(strings.TrimSpace(rest[len(quoted):]))
		if err != nil || again.op != "send" {
			return s, fmt.Errorf("until wants a frame: %q: %w", line, err)
		}
		s.conn, s.ch, s.arg = again.conn, again.ch, quoted+" "+again.arg
		return s, nil
	case "await":
		s.op = word
		s.conn, s.arg, _ = strings.Cut(rest, " ")
		if _, err := strconv.Unquote(s.arg); err != nil || !isConn.MatchString(s.conn) {
			return s, fmt.Errorf("await wants a connection and a quoted text: %q", line)
		}
		return s, nil
	}
	if isConn.MatchString(word) {
		s.conn = word
		word, rest, _ = strings.Cut(rest, " ")
	}
	switch word {
	case "connect", "lose", "nofence":
		s.op = word
	case "open":
		s.op, s.arg = word, rest
		_, err = fields(rest)
	case "kick":
		s.op = word
		s.arg, err = strconv.Unquote(rest)
	case "raw":
		s.op, s.arg = word, rest
		s.fence = false
	default:
		n, e := strconv.ParseUint(word, 10, 16)
		if e != nil || rest == "" {
			return s, fmt.Errorf("no step: %q", line)
		}
		s.op, s.ch, s.arg = "send", uint16(n), rest
	}
	return s, err
}

// tokens splits at the spaces outside of quotes and braces.
func tokens(s string) (all []string) {
	start, depth, quoted := 0, 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ' ' && depth == 0:
			if start < i {
				all = append(all, s[start:i])
			}
			start = i + 1
		}
	}
	if start < len(s) {
		all = append(all, s[start:])
	}
	return all
}

// fields reads k=v words; quotes around a value are taken off.
func fields(s string) (map[string]string, error) {
	m := make(map[string]string)
	for _, t := range tokens(s) {
		k, v, ok := strings.Cut(t, "=")
		if !ok {
			return nil, fmt.Errorf("no key=value: %q", t)
		}
		if strings.HasPrefix(v, `"`) {
			u, err := strconv.Unquote(v)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t, err)
			}
			v = u
		}
		m[k] = v
	}
	return m, nil
}

// publishLines is the three frames of a "publish" step: words before the body belong to the
// method, those behind it to the properties.
func publishLines(arg string) ([]string, error) {
	all := tokens(arg)
	i := slices.IndexFunc(all, func(t string) bool { return strings.HasPrefix(t, `"`) })
	if i < 0 {
		return nil, fmt.Errorf("publish wants a quoted body: %q", arg)
	}
	quoted, err := strconv.QuotedPrefix(all[i])
	if err != nil {
		return nil, err
	}
	body, err := strconv.Unquote(quoted)
	if err != nil {
		return nil, err
	}
	size := len(body)
	if times, ok := strings.CutPrefix(all[i][len(quoted):], "*"); ok {
		n, err := strconv.Atoi(times)
		if err != nil {
			return nil, err
		}
		size *= n
	}
	lines := []string{
		strings.Join(append([]string{"basic.publish"}, all[:i]...), " "),
		strings.Join(append([]string{"header size=" + strconv.Itoa(size)}, all[i+1:]...), " "),
	}
	if size > 0 {
		lines = append(lines, "body "+all[i])
	}
	return lines, nil
}

// loadScripts reads the cases of testdata in the order of their files.
func loadScripts(t *testing.T) (all []*script) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, file := range files {
		if filepath.Base(file) == differencesFile {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		scripts, err := parseScripts(string(text))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, s := range scripts {
			if names[s.name] {
				t.Fatalf("%s: a second case is named %q", file, s.name)
			}
			names[s.name] = true
		}
		all = append(all, scripts...)
	}
	return all
}

func parseScripts(text string) (all []*script, err error) {
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if name, ok := strings.CutPrefix(line, "== "); ok {
			all = append(all, &script{name: name})
			continue
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("line %d: a step before the first case", n+1)
		}
		s, err := parseStep(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
		last := all[len(all)-1]
		last.steps = append(last.steps, s)
	}
	for _, s := range all {
		s.joinAwaits()
	}
	return all, nil
}

// joinAwaits takes the fences off that are none: see nofence.
func (s *script) joinAwaits() {
	unfenced := make(map[string]bool)
	for i := range s.steps {
		st := &s.steps[i]
		if st.op == "nofence" {
			unfenced[st.conn] = true
		}
		if i+1 < len(s.steps) && unfenced[st.conn] && s.steps[i+1].op == "await" && s.steps[i+1].conn == st.conn {
			st.fence = false
		}
	}
}

var (
	declaresQueue    = regexp.MustCompile(`^queue\.declare .*?\bqueue="([^"$]+)"`)
	declaresExchange = regexp.MustCompile(`^exchange\.declare .*?\bexchange="([^"$]+)"`)
)

// names lists what the script's lines that match declare.
func (s *script) names(declares *regexp.Regexp) (names []string) {
	for _, st := range s.steps {
		if m := declares.FindStringSubmatch(st.arg); m != nil && st.op == "send" && !slices.Contains(names, m[1]) {
			if name, err := strconv.Unquote(`"` + m[1] + `"`); err == nil && utf8.ValidString(name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// answers reports whether the script itself sends this close-ok.
func (s *script) answers(conn string, ch uint16, method string) bool {
	return slices.ContainsFunc(s.steps, func(st step) bool {
		return st.op == "send" && st.conn == conn && st.ch == ch && st.arg == method
	})
}

// TestScripts parses every line of every case, also of those made up or elsewhere, with RabbitMQ or without.
func TestScripts(t *testing.T) {
	all := loadScripts(t)
	for _, text := range []string{alarmCases, ackTimeoutCases} {
		scripts, err := parseScripts(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, scripts...)
	}
	for seed := range uint64(200) {
		all = append(all, generate(seed+1))
	}
	for _, sc := range all {
		for _, s := range sc.steps {
			arg := s.arg
			if s.op == "until" {
				quoted, _ := strconv.QuotedPrefix(arg)
				arg = strings.TrimSpace(arg[len(quoted):])
			}
			arg = numbered.ReplaceAllString(arg, "1")
			lines := []string{arg}
			var err error
			switch s.op {
			case "raw":
				lines[0] = "raw " + arg
			case "send", "until":
				if rest, ok := strings.CutPrefix(arg, "publish "); ok {
					if lines, err = publishLines(rest); err != nil {
						t.Errorf("%s: %s: %v", sc.name, s.src, err)
					}
				}
				for i := range lines {
					lines[i] = "1 " + lines[i]
				}
			case "policy":
				f, _ := fields(arg)
				if _, err := parseTable(f["definition"]); err != nil {
					t.Errorf("%s: %s: %v", sc.name, s.src, err)
				}
				continue
			default:
				continue
			}
			for _, line := range lines {
				if _, err := text.Append(nil, line); err != nil {
					t.Errorf("%s: %s: %v", sc.name, s.src, err)
				}
			}
		}
	}
}

func TestLinesThatAreNoStep(t *testing.T) {
	for _, line := range []string{
		"1", "queue.declare", "a", "await a", `await 1 "x"`, "until 1 basic.qos", `until "x" a lose`, "quiet", "quiet soon", "user name", "alarm fire", "a kick why", "70000 basic.qos",
	} {
		if s, err := parseStep(line); err == nil {
			t.Errorf("%q is %+v", line, s)
		}
	}
}
