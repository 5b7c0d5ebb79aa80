package bench

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestNextNATS cuts each stream after every byte: what is not complete asks for more, and the rest comes out alike.
func TestNextNATS(t *testing.T) {
	type said struct{ op, subject, sid, reply, header, payload string }
	const stream = "INFO {\"a\": 1}\r\nPING\r\nPONG\r\n+OK\r\n-ERR 'Slow Consumer'\r\nMSG q 7 3\r\na\r\n\r\nMSG q 7 reply.to 0\r\n\r\n" +
		"HMSG in.1 0 30 30\r\nNATS/1.0 503 No Responders\r\n\r\n\r\nHMSG q 2 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
	want := []said{
		{op: "INFO", payload: `{"a": 1}`}, {op: "PING"}, {op: "PONG"}, {op: "+OK"}, {op: "-ERR", payload: "'Slow Consumer'"},
		{"MSG", "q", "7", "", "", "a\r\n"}, {"MSG", "q", "7", "reply.to", "", ""},
		{"HMSG", "in.1", "0", "", "NATS/1.0 503 No Responders\r\n\r\n", ""}, {"HMSG", "q", "2", "r", "NATS/1.0\r\n\r\n", "hi"},
	}
	for cut := range len(stream) + 1 {
		var got []said
		rest := []byte(stream[:cut])
		for _, more := range []string{"", stream[cut:]} {
			rest = append(rest, more...)
			for {
				m, n, err := nextNATS(rest, 1024)
				if err != nil {
					t.Fatalf("cut at %d: %v", cut, err)
				}
				if n == 0 {
					break
				}
				s := said{string(m.op), string(m.subject), "", string(m.reply), string(m.header), string(m.payload)}
				if s.subject != "" {
					s.sid = fmt.Sprint(m.sid)
				}
				got, rest = append(got, s), rest[n:]
			}
		}
		if !reflect.DeepEqual(got, want) || len(rest) > 0 {
			t.Fatalf("cut at %d: %q, %q left", cut, got, rest)
		}
	}
}

func TestNextNATSRefuses(t *testing.T) {
	for _, text := range []string{
		"\n", "PING\n", "MSG q 1\r\n", "MSG q x 1\r\na\r\n", "MSG q 1 -1\r\n", "MSG q 1 9999999999999999999\r\n", "MSG q 1 2000\r\n",
		"MSG q 1 r 1 1 1\r\n", "MSG q 1 1\r\nab\r\n", "HMSG q 1 3 2\r\n", "HMSG q 1 2\r\n", strings.Repeat("x", 1025),
	} {
		if m, n, err := nextNATS([]byte(text), 1024); !errors.Is(err, errNATS) {
			t.Errorf("%.40q: %q, %d bytes, %v", text, m.op, n, err)
		}
	}
}

func TestNATSNumbers(t *testing.T) {
	w := &natsWire{inbox: "_INBOX.x."}
	for _, seq := range []uint64{0, 1, 1<<63 + 5} {
		b := []byte(w.inbox + strings.Repeat("?", hexDigits))
		putHex(b[len(w.inbox):], seq)
		if got, err := w.numberOf(b); got != seq || err != nil {
			t.Errorf("%d: %d, %v", seq, got, err)
		}
	}
	for _, subject := range []string{"_INBOX.x.ask", "_INBOX.x.0000000000000000a", "_INBOX.x.00000000000000-1"} {
		if _, err := w.numberOf([]byte(subject)); err == nil {
			t.Errorf("no error for %s", subject)
		}
	}
}

// natsSays runs a run against a server that answers each line of the client that has a prefix.
func natsSays(t *testing.T, url string, answers map[string]string) error {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				c.Write([]byte(answers[""]))
				var all []byte
				for b := make([]byte, 4096); ; {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					all = append(all, b[:n]...)
					for {
						line, rest, ok := bytes.Cut(all, []byte(crlf))
						if !ok {
							break
						}
						all = rest
						for prefix, answer := range answers {
							if prefix != "" && bytes.HasPrefix(line, []byte(prefix)) {
								inbox, _, _ := bytes.Cut(line[max(0, bytes.Index(line, []byte("_INBOX"))):], []byte(" "))
								c.Write([]byte(strings.ReplaceAll(answer, "INBOX", string(inbox))))
							}
						}
					}
				}
			}()
		}
	}()
	o := counted(url + "://" + ln.Addr().String())
	o.Patience = 2 * time.Second
	rep, err := Run(t.Context(), o)
	if err == nil {
		err = rep.Err()
	}
	return err
}

func TestNATSSaysWhatIsWrong(t *testing.T) {
	const info, created = "INFO {\"version\":\"2\",\"max_payload\":1000}\r\n", "MSG INBOX 0 2\r\n{}\r\n"
	refusal := `{"error":{"code":503,"description":"insufficient resources"}}`
	for name, c := range map[string]struct {
		scheme  string
		answers map[string]string
		want    string
	}{
		"not NATS":        {"nats", map[string]string{"": "220 hello\r\n"}, "does not speak NATS"},
		"TLS":             {"nats", map[string]string{"": "INFO {\"tls_required\":true}\r\n"}, "insists on TLS"},
		"large bodies":    {"nats", map[string]string{"": "INFO {\"max_payload\":10}\r\n"}, "max_payload of 10"},
		"password":        {"nats", map[string]string{"": info, "PING": "-ERR 'Authorization Violation'\r\n"}, "Authorization Violation"},
		"no JetStream":    {"jetstream", map[string]string{"": info, "PING": "PONG\r\n", "PUB $JS": "HMSG INBOX 0 30 30\r\nNATS/1.0 503 No Responders\r\n\r\n\r\n"}, "is it on?"},
		"stream refused":  {"jetstream", map[string]string{"": info, "PING": "PONG\r\n", "PUB $JS": fmt.Sprintf("MSG INBOX 0 %d\r\n%s\r\n", len(refusal), refusal)}, "insufficient resources"},
		"publish refused": {"jetstream", map[string]string{"": info, "PING": "PONG\r\n", "PUB $JS.API.STREAM": created, "PUB $JS.API.CONSUMER.CREATE": created, "PUB firemq": fmt.Sprintf("MSG INBOX 0 %d\r\n%s\r\n", len(refusal), refusal)}, "insufficient resources"},
		"early message":   {"nats", map[string]string{"": info, "PING": "PONG\r\n", "SUB firemq": "MSG q 1 2\r\nhi\r\n"}, "nobody asked for"},
		"nobody's ack":    {"jetstream", map[string]string{"": info, "PING": "PONG\r\n", "PUB $JS.API.STREAM": created, "PUB $JS.API.CONSUMER.CREATE": created, "PUB firemq": created + created}, "confirmed publish 1"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := natsSays(t, c.scheme, c.answers); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// natsServer starts the real one, or skips the test where it is not installed.
func natsServer(t *testing.T) (addr string) {
	t.Helper()
	path, err := filepath.Abs("../.cache/bin/nats-server")
	if err == nil {
		if _, err = os.Stat(path); err != nil {
			path, err = exec.LookPath("nats-server")
		}
	}
	if err != nil {
		t.Skip("nats-server is not installed: see make deps")
	}
	dir := t.TempDir()
	cmd := exec.Command(path, "--addr", "127.0.0.1", "--port", "-1", "--jetstream", "--store_dir", dir, "--ports_file_dir", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-exited
	})
	file := filepath.Join(dir, fmt.Sprintf("nats-server_%d.ports", cmd.Process.Pid))
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.After(30 * time.Second); ; {
		if raw, err := os.ReadFile(file); err == nil && bytes.HasSuffix(bytes.TrimSpace(raw), []byte("}")) {
			_, rest, _ := strings.Cut(string(raw), "nats://")
			addr, _, _ = strings.Cut(rest, `"`)
			return addr
		}
		select {
		case <-poll.C:
		case err := <-exited:
			exited <- err
			t.Fatalf("nats-server ended: %v", err)
		case <-deadline:
			t.Fatal("nats-server does not say its port")
		}
	}
}

func TestRunOverNATS(t *testing.T) {
	addr := natsServer(t)
	for name, c := range map[string]struct {
		scheme string
		change func(*Options)
	}{
		"core":             {"nats", func(o *Options) {}},
		"core, four":       {"nats", func(o *Options) { o.Publishers, o.Consumers, o.Queues = 4, 4, 2 }},
		"core, large":      {"nats", func(o *Options) { o.Size, o.Count = tailCopy+5000, 200 }},
		"core, paced":      {"nats", func(o *Options) { o.Rate = 5000 }},
		"streams":          {"jetstream", func(o *Options) {}},
		"streams, on disk": {"jetstream", func(o *Options) { o.Persistent = true }},
		"streams, sizes":   {"jetstream", func(o *Options) { o.Sizes, o.Queues = []int{16, 20_000, 500}, 2 }},
		"streams, four":    {"jetstream", func(o *Options) { o.Publishers, o.Consumers, o.Queues = 4, 3, 7 }},
		"streams, large":   {"jetstream", func(o *Options) { o.Size, o.Count = tailCopy+5000, 200 }},
		"streams, drained": {"jetstream", func(o *Options) { o.Count, o.Backlog, o.Drain, o.Consumers = 0, 1001, true, 2 }},
		"window of one":    {"jetstream", func(o *Options) { o.Window, o.Prefetch, o.Count = 1, 1, 100 }},
	} {
		t.Run(name, func(t *testing.T) {
			o := counted(c.scheme + "://" + addr)
			o.Patience = 20 * time.Second
			c.change(&o)
			rep := mustRun(t, o)
			if err := rep.Err(); err != nil {
				t.Error(err)
			}
			// What is left is not looked at: the server takes the last acks when it likes.
			if want := o.Count + o.Backlog; rep.Published != want || rep.Confirmed != want || rep.Consumed != want {
				t.Errorf("published %d, confirmed %d, consumed %d of %d", rep.Published, rep.Confirmed, rep.Consumed, want)
			}
			if !strings.HasPrefix(rep.Broker.Product, "nats-server 2.") {
				t.Errorf("product %q", rep.Broker.Product)
			}
		})
	}
	t.Run("kept and left", func(t *testing.T) {
		o := counted("jetstream://" + addr)
		o.Consumers, o.Persistent = 0, true
		if rep := mustRun(t, o); rep.Left != o.Count || rep.Lost != 0 {
			t.Errorf("left %d, lost %d of %d", rep.Left, rep.Lost, o.Count)
		}
	})
	t.Run("nobody listens", func(t *testing.T) {
		o := counted("nats://" + addr)
		o.Consumers = 0
		if rep := mustRun(t, o); rep.Lost != o.Count {
			t.Errorf("lost %d of %d, and core NATS keeps nothing", rep.Lost, o.Count)
		}
	})
}
