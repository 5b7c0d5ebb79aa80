package mgmt

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/mgmt/api"
)

// noProperties is a codec for messages without any.
type noProperties struct{}

func (noProperties) Decode([]byte) (p table.Properties, err error) { return p, nil }
func (noProperties) Append(dst []byte, _ *table.Properties) []byte { return dst }
func (noProperties) Headers(dst table.Table, _ []byte) table.Table { return dst }
func (noProperties) Properties([]byte) (p table.Properties)        { return p }

// TestReportOverTime looks at a broker whose clock is the test's.
func TestReportOverTime(t *testing.T) {
	now := time.Now()
	b, _, err := broker.Open(broker.Options{
		Start:  broker.Snapshot{VHosts: []string{"/"}},
		Codecs: map[message.Encoding]message.Codec{message.AMQP: noProperties{}},
		Now:    func() int64 { return now.UnixMilli() },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var resources Resources
	s := &Server{opt: Options{Broker: b, Node: "n", Resources: func() Resources { return resources }}, sampler: newSampler(b)}
	c, e := b.Administer("/")
	if e != nil {
		t.Fatal(e)
	}
	defer c.Close()
	if _, e := c.DeclareQueue(&broker.QueueDeclare{Name: "q"}); e != nil {
		t.Fatal(e)
	}
	ch, e := c.Open(1, &outcome{})
	if e != nil {
		t.Fatal(e)
	}
	publish := func(n int) {
		for range n {
			m, err := b.NewMessage(new(table.Properties), "", "q", nil)
			if err != nil {
				t.Fatal(err)
			}
			if e := ch.Publish(&broker.Publish{Msg: m}); e != nil {
				t.Fatal(e)
			}
		}
		if _, e := c.EndTurn(); e != nil {
			t.Fatal(e)
		}
	}
	codes := func() string {
		var list []string
		for _, f := range s.report([]string{"/"}, time.Minute, now).Findings {
			list = append(list, f.Severity+" "+f.Code)
		}
		return strings.Join(list, ", ")
	}
	publish(10)
	s.sampler.sample(now.UnixMilli())
	if got := codes(); got != "" {
		t.Errorf("at once: %s", got)
	}
	now = now.Add(50 * time.Second)
	publish(5)
	if got := codes(); got != "" {
		t.Errorf("after less than a minute: %s", got)
	}
	now = now.Add(11 * time.Second)
	if got := codes(); got != "warning queue-without-consumer" {
		t.Errorf("after a minute: %s", got)
	}
	f := s.report([]string{"/"}, time.Minute, now).Findings[0]
	if want := "15 messages wait, the oldest for 61 seconds. It grew by 5 in 61 seconds."; f.Cause != want {
		t.Errorf("cause %q, want %q", f.Cause, want)
	}
	s.sampler.reset()
	now = now.Add(24 * time.Hour)
	s.sampler.sample(now.UnixMilli())
	if got := codes(); got != "note messages-without-consumer" {
		t.Errorf("after a day: %s", got)
	}
	resources = Resources{MemoryLimit: 1 << 40, DiskFreeLimit: 1 << 60, MemoryAlarm: true, DiskAlarm: true}
	if got := codes(); !strings.HasPrefix(got, "critical memory-alarm, critical disk-alarm, ") {
		t.Errorf("with alarms: %s", got)
	}
	if got := s.report(nil, time.Minute, now); got.Status != api.Critical || slices.ContainsFunc(got.Findings, func(f api.Finding) bool { return f.Kind != "node" }) {
		t.Errorf("without vhosts: %+v", got)
	}
}
