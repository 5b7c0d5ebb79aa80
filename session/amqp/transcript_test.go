package amqp

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/broker"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the server's lines in testdata/*.txt")

// A transcript is what both sides of one or more connections say, in the lines of package
// frames/amqp/text. A connection's name comes first: "a> LINE" is sent by the client, "a< LINE" came
// from the server. The "a>" lines of a block arrive in one read; then every connection's answers are
// listed. Instead of a line a client may say:
//
//	a! open [user password]   the handshake, its frames not shown
//	a! connect                nothing but a connection
//	a! lose                   the socket breaks
//	a! tick N                 N seconds pass
//	a! full, a! drained       the outbox is full, or has room again
//	a! forced TEXT            the broker closes the connection with 320
//	a! alarm [memory] [disk]  what the broker is low on from now on
//
// Names that the broker makes up, and the times of deaths, are shown as "?"; a client that names a reply token so means the last
// one. "a< closed" is the end by the server.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, newBroker(t), string(want), nil)
			if got == string(want) {
				return
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("%s differs (-rewrite to accept):\n%s", file, diff(string(want), got))
		})
	}
}

// diff shows the first place where two texts differ.
func diff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d\n got %s\nwant %s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

var madeUp = regexp.MustCompile(`(amq\.gen-|amq\.ctag-|amq\.rabbitmq\.reply-to\.)[A-Za-z0-9_-]{22}|(platform=S"Go )[^"]*|( time=T)\d+`)

// player runs one transcript. feed, when set, replaces a client's read.
type player struct {
	t       testing.TB
	b       *broker.Broker
	clients map[string]*client
	order   []string
	feed    func(c *client, b []byte)
	token   string // of direct reply-to, the last one seen
}

func play(t testing.TB, b *broker.Broker, script string, feed func(c *client, b []byte)) string {
	t.Helper()
	p := &player{t: t, b: b, clients: map[string]*client{}, feed: feed}
	if feed == nil {
		p.feed = func(c *client, b []byte) { c.feed(b) }
	}
	var out strings.Builder
	var pending []byte
	var from *client
	flush := func() {
		if from != nil {
			p.feed(from, pending)
			from, pending = nil, nil
			out.WriteString(p.answers())
		}
	}
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		who, rest, _ := strings.Cut(line, " ")
		switch {
		case strings.HasSuffix(who, "<"):
			continue
		case strings.HasSuffix(who, ">") && !strings.HasPrefix(line, "#"):
			c := p.clients[who[:len(who)-1]]
			if c == nil {
				t.Fatalf("%s: no such connection", line)
			}
			if from != nil && from != c {
				flush()
			}
			from = c
			out.WriteString(line + "\n")
			pending = append(pending, encode(t, strings.ReplaceAll(rest, broker.ReplyTo+".?", p.token))...)
		case strings.HasSuffix(who, "!"):
			flush()
			out.WriteString(line + "\n")
			p.command(who[:len(who)-1], strings.Fields(rest))
			out.WriteString(p.answers())
		default:
			flush()
			out.WriteString(line + "\n")
		}
	}
	flush()
	return out.String()
}

func (p *player) command(name string, words []string) {
	c := p.clients[name]
	switch words[0] {
	case "connect", "open":
		opt := Options{ClusterName: "test", Version: "1.0", MaxMessageSize: 200000, Heartbeat: 60 * time.Second}
		c = newClient(p.t, p.b, opt)
		p.clients[name] = c
		if !slices.Contains(p.order, name) {
			p.order = append(p.order, name)
		}
		if words[0] == "open" {
			c.send(login...)
			if got := c.got(); len(got) != 3 || got[2] != "0 connection.open-ok" {
				p.t.Fatalf("handshake: %s", list(got))
			}
		}
	case "lose":
		c.lose()
		delete(p.clients, name)
	case "tick":
		n, _ := strconv.Atoi(words[1])
		c.tick(n)
	case "full":
		c.out.full = true
	case "drained":
		c.out.full = false
		c.s.OnDrained()
	case "forced":
		c.s.peer.Close(&broker.Error{Kind: broker.ConnectionForced, Text: strings.Join(words[1:], " ")})
		c.runTasks()
	case "alarm":
		p.b.SetAlarm(slices.Contains(words, "memory"), slices.Contains(words, "disk"))
		for _, c := range p.clients {
			c.runTasks()
		}
	default:
		p.t.Fatalf("unknown command %q", words[0])
	}
}

// answers lists what every connection got.
func (p *player) answers() string {
	var b strings.Builder
	for _, name := range p.order {
		c := p.clients[name]
		if c == nil {
			continue
		}
		for _, line := range c.got() {
			line = madeUp.ReplaceAllStringFunc(line, func(s string) string {
				if rest, ok := strings.CutPrefix(s, `platform=S"Go `); ok && rest != "" {
					return `platform=S"Go ?`
				}
				if strings.HasPrefix(s, " time") {
					return " time=T?"
				}
				if strings.HasPrefix(s, broker.ReplyTo) {
					p.token = s
				}
				return s[:len(s)-22] + "?"
			})
			b.WriteString(name + "< " + line + "\n")
		}
	}
	return b.String()
}
