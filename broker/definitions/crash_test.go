package definitions

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
	"github.com/firemq/firemq/journal"
)

// rawCodec keeps no properties.
type rawCodec struct{}

func (rawCodec) Decode([]byte) (table.Properties, error)       { return table.Properties{}, nil }
func (rawCodec) Append(dst []byte, _ *table.Properties) []byte { return dst }
func (rawCodec) Headers(dst table.Table, _ []byte) table.Table { return dst }
func (rawCodec) Properties([]byte) table.Properties            { return table.Properties{} }
func codecs() map[message.Encoding]message.Codec {
	return map[message.Encoding]message.Codec{message.AMQP: rawCodec{}}
}

// thing is something that definitions.json and the journal hold: set gives it a value, "" takes it
// away, and get reads it.
type thing struct {
	set func(w *world, value string) error
	get func(b *broker.Broker) string
}

func refused(e *broker.Error) error {
	if e != nil {
		return e
	}
	return nil
}

// things are independent of each other.
func things() map[string]thing {
	all := map[string]thing{
		"exchange": {
			func(w *world, v string) error {
				if v == "" {
					return refused(w.conn.DeleteExchange("x", false))
				}
				if e := w.conn.DeleteExchange("x", false); e != nil {
					return e
				}
				return refused(w.conn.DeclareExchange(&broker.ExchangeDeclare{Name: "x", Type: "topic", Durable: true,
					Args: table.Table{{Name: "is", Value: table.StringValue(v)}}}))
			},
			func(b *broker.Broker) string {
				x, _ := b.Exchange("/", "x")
				v, _ := x.Args.Get("is")
				s, _ := v.AsString()
				return s
			},
		},
		"binding": {
			func(w *world, v string) error {
				for _, key := range []string{"1", "2", "3"} {
					if e := w.conn.UnbindQueue("bound", "amq.topic", key, nil); e != nil {
						return e
					}
				}
				if v == "" {
					return nil
				}
				return refused(w.conn.BindQueue("bound", "amq.topic", v, nil))
			},
			func(b *broker.Broker) string {
				source := "amq.topic"
				keys := ""
				for _, r := range b.Bindings("/", broker.BindingFilter{Source: &source}) {
					keys += r.Key
				}
				return keys
			},
		},
		"policy": {
			func(w *world, v string) error {
				if v == "" {
					w.b.DeletePolicy("/", "p", false)
					return nil
				}
				n, _ := strconv.Atoi(v)
				p, err := policy.Make("p", ".*", table.Table{{Name: "max-length", Value: table.IntValue(int64(1000 + n))}}, 0, "queues", false)
				if err != nil {
					return err
				}
				return refused(w.b.PutPolicy(broker.PolicyDef{VHost: "/", Policy: p}))
			},
			func(b *broker.Broker) string {
				for _, p := range b.Policies() {
					for _, f := range p.Definition {
						n, _ := f.Value.AsInt()
						return strconv.Itoa(int(n - 1000))
					}
				}
				return ""
			},
		},
		"global": {
			func(w *world, v string) error {
				if v == "" {
					w.b.DeleteGlobal("g")
				} else {
					w.b.SetGlobal("g", []byte(v))
				}
				return nil
			},
			func(b *broker.Broker) string { return string(b.Globals()["g"]) },
		},
		"vhost": {
			func(w *world, v string) error {
				w.b.DeleteVHost("v")
				if v == "" {
					return nil
				}
				w.b.AddVHost("v")
				if e := w.b.ChangeVHostMeta("v", func(m *broker.VHostMeta) { *m = broker.VHostMeta{Description: v} }); e != nil {
					return e
				}
				_, err := w.b.Users().SetPermissions(auth.Permission{User: "guest", VHost: "v", Configure: v})
				w.b.UsersChanged("guest")
				return err
			},
			func(b *broker.Broker) string {
				if !b.HasVHost("v") {
					return ""
				}
				return b.VHostMeta("v").Description
			},
		},
		"limit": {
			func(w *world, v string) error {
				n, err := strconv.Atoi(v)
				if err != nil {
					n = -1
				}
				return refused(w.b.SetVHostLimit("/", broker.MaxConnections, n))
			},
			func(b *broker.Broker) string {
				if n, ok := b.VHostLimits("/")[broker.MaxConnections]; ok {
					return strconv.Itoa(n)
				}
				return ""
			},
		},
	}
	for i := range 3 {
		q, u := fmt.Sprint("q", i), fmt.Sprint("u", i)
		all["queue "+q] = thing{
			func(w *world, v string) error {
				if _, e := w.conn.DeleteQueue(q, false, false); e != nil || v == "" {
					return refused(e)
				}
				_, e := w.conn.DeclareQueue(&broker.QueueDeclare{Name: q, Durable: true, Args: table.Table{{Name: "is", Value: table.StringValue(v)}}})
				return refused(e)
			},
			func(b *broker.Broker) string {
				if x, ok := b.Queue("/", q); ok {
					v, _ := x.View().Args.Get("is")
					s, _ := v.AsString()
					return s
				}
				return ""
			},
		}
		all["user "+u] = thing{
			func(w *world, v string) error {
				if v == "" {
					w.b.DeleteUser(u)
					return nil
				}
				_, err := w.b.Users().PutUser(auth.User{Name: u, Tags: []string{v}})
				if err == nil {
					_, err = w.b.Users().SetPermissions(auth.Permission{User: u, VHost: "/", Read: v})
				}
				w.b.UsersChanged(u)
				return err
			},
			func(b *broker.Broker) string {
				x, ok := b.Users().User(u)
				if !ok {
					return ""
				}
				for _, p := range b.Users().Permissions() {
					if p.User == u && p.Read == x.Tags[0] {
						return x.Tags[0]
					}
				}
				return "without permissions"
			},
		}
	}
	return all
}

// world is a broker on a disk in memory whose power is cut at a chosen operation.
type world struct {
	t    *testing.T
	fs   *vfs.Mem
	b    *broker.Broker
	conn *broker.Conn

	mu      sync.Mutex
	left    int // operations until the power is cut; guarded by mu, like all below
	seed    uint64
	crashed *vfs.Mem            // what the crash left
	history map[string][]string // the values of a thing since the last one that is promised, that one first
	before  map[string][]string // of the moment of the crash
}

func (w *world) check(o vfs.Op) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !o.Changes() && o.Kind != vfs.OpSync && o.Kind != vfs.OpSyncDir || w.crashed != nil {
		return nil
	}
	if w.left--; w.left == 0 {
		w.crashed = w.fs.Crash(w.seed)
		w.before = make(map[string][]string)
		for k, h := range w.history {
			w.before[k] = append([]string(nil), h...)
		}
	}
	return nil
}

const testFile = "data/definitions.json"

func (w *world) open(fs *vfs.Mem) error {
	w.fs = fs
	faults := &vfs.Faults{FS: fs, Check: w.check}
	start, err := Load(faults, testFile)
	if err != nil {
		return err
	}
	if len(start.VHosts) == 0 {
		start.VHosts = []string{"/"}
	}
	w.b, _, err = broker.Open(broker.Options{FS: faults, JournalDir: "data/journal", Start: start, Codecs: codecs()})
	if err != nil {
		return err
	}
	if len(w.b.Users().Users()) == 0 {
		if err := w.b.AddFirstUser("guest", "guest"); err != nil {
			return err
		}
	}
	c, e := w.b.Administer("/")
	if e != nil {
		return e
	}
	w.conn = c
	_, e = c.DeclareQueue(&broker.QueueDeclare{Name: "bound", Durable: true})
	return refused(e)
}

func (w *world) save() error {
	snap := w.b.Snapshot()
	if err := w.b.Commit(&snap); err != nil {
		return err
	}
	if err := Save(&vfs.Faults{FS: w.fs, Check: w.check}, testFile, &snap); err != nil {
		return err
	}
	w.b.Saved(&snap)
	return nil
}

func (w *world) close() {
	w.conn.EndTurn()
	w.conn.Close()
	if err := w.b.Close(); err != nil {
		w.t.Error(err)
	}
}

// newDisk is an empty data directory whose journal has small segments.
func newDisk(t *testing.T) *vfs.Mem {
	fs := vfs.NewMem()
	fs.MakeDir("data")
	j, _, err := journal.Open(journal.Options{FS: fs, Dir: "data/journal", SegmentBytes: 8192}, nil)
	if err != nil {
		t.Fatal(err)
	}
	j.Lock()
	j.Settle(1<<40, 1, 1)
	j.Unlock()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return fs
}

// TestCrash changes everything that definitions.json and the journal hold, rewrites the file now and
// then, and cuts the power at a random operation of the disk. Afterwards each thing has the last value
// that was promised, or one that it got later.
func TestCrash(t *testing.T) {
	seeds, first := uint64(300), uint64(1)
	if testing.Short() {
		seeds = 50
	}
	if s, err := strconv.ParseUint(os.Getenv("FIREMQ_SEED"), 10, 64); err == nil {
		seeds, first = 1, s
	}
	crashes := 0
	for seed := first; seed < first+seeds; seed++ {
		if !t.Run(fmt.Sprint("seed", seed), func(t *testing.T) { crashes += crashRun(t, seed) }) {
			t.Fatalf("failed with FIREMQ_SEED=%d", seed)
		}
	}
	if crashes < int(seeds) {
		t.Errorf("%d crashes in %d runs", crashes, seeds)
	}
}

func crashRun(t *testing.T, seed uint64) (crashes int) {
	r := rand.New(rand.NewPCG(seed, 1))
	all := things()
	w := &world{t: t, history: map[string][]string{}}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		w.history[name] = []string{""}
	}
	fs := newDisk(t)
	for range 3 {
		w.mu.Lock()
		w.left, w.seed, w.crashed = 1+r.IntN(400), r.Uint64(), nil
		w.mu.Unlock()
		if err := w.open(fs); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			got, ok := all[name].get(w.b), false
			for _, v := range w.history[name] {
				ok = ok || got == v
			}
			if !ok {
				t.Fatalf("%s is %q after the crash, and may be %q", name, got, w.history[name])
			}
			w.mu.Lock()
			w.history[name] = []string{got}
			w.mu.Unlock()
		}
		down := func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.crashed != nil
		}
		for range 200 {
			if down() {
				break
			}
			switch r.IntN(8) {
			case 0:
				if err := w.save(); err != nil {
					t.Fatal(err)
				}
				continue
			case 1:
				<-w.b.Settled()
				w.mu.Lock()
				for name, h := range w.history {
					w.history[name] = h[len(h)-1:]
				}
				w.mu.Unlock()
				continue
			}
			name := names[r.IntN(len(names))]
			value := []string{"", "1", "2", "3"}[r.IntN(4)]
			w.mu.Lock()
			// Some are replaced in two steps.
			w.history[name] = append(w.history[name], "", value)
			if strings.HasPrefix(name, "user") {
				w.history[name] = append(w.history[name], "without permissions", value)
			}
			w.mu.Unlock()
			if err := all[name].set(w, value); err != nil {
				t.Fatal(name, err)
			}
		}
		w.mu.Lock()
		if w.crashed == nil { // the power is cut when nothing goes on
			w.crashed, w.before = w.fs.Crash(w.seed), w.history
		}
		fs, w.history = w.crashed, w.before
		w.mu.Unlock()
		crashes++
		w.close()
	}
	return crashes
}

// TestNoFlippedBitYieldsAWrongMessage flips single bits of definitions.json: the broker refuses it, or a
// queue has its own messages alone, each once and in order.
func TestNoFlippedBitYieldsAWrongMessage(t *testing.T) {
	fs := newDisk(t)
	w := &world{t: t}
	if err := w.open(fs); err != nil {
		t.Fatal(err)
	}
	body := func(queue string, n int) string { return fmt.Sprintf("%s message %d", queue, n) }
	put := func(queue string) {
		ch, e := w.conn.Open(1, sink{})
		if e != nil {
			t.Fatal(e)
		}
		for n := range 20 {
			b := body(queue, n)
			m := message.New(message.Attributes{Encoding: message.AMQP, Persistent: true, Expiration: -1}, nil, []byte(queue), nil, len(b))
			copy(m.Body(), b)
			if e := ch.Publish(&broker.Publish{Msg: m}); e != nil {
				t.Fatal(e)
			}
		}
		w.conn.EndTurn()
	}
	for _, q := range []string{"q1", "q2"} {
		if _, e := w.conn.DeclareQueue(&broker.QueueDeclare{Name: q, Durable: true}); e != nil {
			t.Fatal(e)
		}
		put(q)
	}
	if err := w.save(); err != nil {
		t.Fatal(err)
	}
	w.close()
	p, err := vfs.ReadFile(fs, testFile, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	refusals, lost := 0, 0
	for bit := rand.IntN(5); bit < 8*len(p); bit += 5 { // all of them in a few runs
		flipped := append([]byte(nil), p...)
		flipped[bit/8] ^= 1 << (bit % 8)
		again := fs.Crash(0)
		if err := vfs.WriteFile(again, testFile, flipped); err != nil {
			t.Fatal(err)
		}
		w := &world{t: t}
		if err := w.open(again); err != nil {
			refusals++
			if w.b != nil {
				w.b.Close()
			}
			continue
		}
		ch, e := w.conn.Open(1, sink{})
		if e != nil {
			t.Fatal(e)
		}
		seen := map[string]bool{}
		for _, q := range w.b.Queues("/") {
			name, last := q.View().Name, -1
			for {
				got := ""
				ok, e := ch.Get(name, true, func(d *broker.Delivery, _ int) { got = string(d.Msg.Body()) })
				if e != nil || !ok {
					break
				}
				var queue string
				var n int
				if k, err := fmt.Sscanf(got, "%s message %d", &queue, &n); k != 2 || err != nil || got != body(queue, n) {
					t.Fatalf("bit %d: %q was never published", bit, got)
				}
				if n <= last || seen[got] {
					t.Fatalf("bit %d: %q comes again, or out of order, in %s", bit, got, name)
				}
				last, seen[got] = n, true
			}
		}
		if len(seen) < 40 {
			lost++
		}
		w.close()
	}
	t.Logf("%d refused, %d with lost messages", refusals, lost)
}

type sink struct{}

func (sink) Deliver(*broker.Delivery)                  {}
func (sink) Confirm(uint64, bool)                      {}
func (sink) Nack(uint64, *broker.Error)                {}
func (sink) Return(uint64, *message.Message)           {}
func (sink) Cancelled(*broker.Consumer, *broker.Error) {}
func (sink) Committed()                                {}
func (sink) Answer([]byte)                             {}

// FuzzDecode reads damaged and made-up documents: what is taken is written and read again as the same.
func FuzzDecode(f *testing.F) {
	s := sample()
	p, err := encode(&s)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p)
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"users":[{"name":"a","tags":"x,y","limits":[]}],"vhosts":[{"name":"/"}],"queues":[{"name":"q","vhost":"/","arguments":{"a":[1,"b",{"c":1.5}]}}]}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := Decode(p)
		if err != nil {
			return
		}
		first, err := encode(&s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(first)
		if err != nil {
			t.Fatalf("what was read cannot be read again: %v\n%s", err, first)
		}
		second, err := encode(&again)
		if err != nil || string(first) != string(second) {
			t.Fatalf("%v\n%s\n%s", err, first, second)
		}
	})
}
