package mgmt_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/mgmt"
	"github.com/firemq/firemq/mgmt/api"
)

// found is the finding with a code about an object, nil if there is none.
func found(r api.Report, code, name string) *api.Finding {
	i := slices.IndexFunc(r.Findings, func(f api.Finding) bool { return f.Code == code && f.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Findings[i]
}

func TestReport(t *testing.T) {
	c := start(t)
	if r := get[api.Report](c, "/health/report"); r.Status != "ok" || len(r.Findings) != 0 {
		t.Errorf("an idle broker: %+v", r)
	}
	put := func(name string, args object) {
		c.want(201, "PUT", "/queues/%2F/"+name, object{"arguments": args})
	}
	fill := func(name string, n int) {
		for range n {
			c.do("POST", "/exchanges/%2F/amq.default/publish", message(name, "x"))
		}
	}
	put("lonely", nil)
	put("full", object{"x-max-length": 2, "x-overflow": "reject-publish"})
	put("dropping", object{"x-max-length": 2})
	put("dlx-missing", object{"x-dead-letter-exchange": "nowhere"})
	put("dlx-unbound", object{"x-dead-letter-exchange": "amq.fanout"})
	put("dlx-queue-missing", object{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "absent"})
	put("dlx-good", object{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "lonely"})
	put("stuck", nil)
	put("single", object{"x-single-active-consumer": true})
	fill("lonely", 1)
	fill("full", 3)
	fill("dropping", 3)
	fill("stuck", 5)
	fill("single", 5)
	c.want(201, "PUT", "/policies/%2F/useless", object{"pattern": "^nothing$", "definition": object{"max-length": 5}})
	c.want(201, "PUT", "/policies/%2F/useful", object{"pattern": "^lonely$", "definition": object{"max-length": 5}})
	ch := dial(t, c)
	if err := ch.Qos(2, 0, false); err != nil {
		t.Fatal(err)
	}
	for _, q := range [...]string{"stuck", "single"} {
		got, err := ch.Consume(q, q+"-worker", false, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		<-got
		<-got
	}
	if _, err := dial(t, c).Consume("single", "stand-by", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}

	r := get[api.Report](c, "/health/report?patience=0")
	if r.Status != api.Warning {
		t.Errorf("status %s", r.Status)
	}
	for _, w := range [][2]string{
		{"messages-without-consumer", "lonely"}, {"queue-full", "full"}, {"queue-at-limit", "dropping"},
		{"dead-letter-exchange-missing", "dlx-missing"}, {"dead-letters-unroutable", "dlx-unbound"}, {"dead-letters-unroutable", "dlx-queue-missing"},
		{"policy-without-effect", "useless"}, {"consumer-stuck", "stuck"},
	} {
		mgmt.CheckFinding(t, r, w[0], w[1])
	}
	if f := found(r, "consumer-stuck", "stuck"); !strings.HasPrefix(f.Cause, "Consumer 'stuck-worker', user guest, channel 1 of connection 127.0.0.1:") {
		t.Error(f.Cause)
	}
	for _, never := range []string{"dlx-good", "useful"} {
		if i := slices.IndexFunc(r.Findings, func(f api.Finding) bool { return f.Name == never }); i >= 0 {
			t.Errorf("false alarm: %+v", r.Findings[i])
		}
	}
	if !slices.IsSortedFunc(r.Findings, func(a, b api.Finding) int { return strings.Compare(b.Severity, a.Severity) }) {
		t.Error("the worst findings are not the first ones")
	}
	// With patience nothing of that is worth a word, but what is wrong whatever the time.
	for _, f := range get[api.Report](c, "/health/report").Findings {
		if !slices.Contains([]string{"queue-full", "queue-at-limit", "dead-letter-exchange-missing", "dead-letters-unroutable", "policy-without-effect"}, f.Code) {
			t.Errorf("%+v", f)
		}
	}
	// Who may not open the vhost does not see its queues.
	if r := get[api.Report](c.addUser("foreign", "management"), "/health/report?patience=0"); len(r.Findings) != 0 {
		t.Errorf("%+v", r)
	}
	c.want(400, "GET", "/health/report?patience=-1", nil)
}

// TestReportOfBusyBroker: many publishers and consumers, none of them stuck, give no finding.
func TestReportOfBusyBroker(t *testing.T) {
	c := start(t)
	stop := make(chan struct{})
	var ended []chan error
	for i := range 3 {
		name := fmt.Sprint("busy", i)
		c.want(201, "PUT", "/queues/%2F/"+name, object{})
		in, out := dial(t, c), dial(t, c)
		if err := out.Qos(10, 0, false); err != nil {
			t.Fatal(err)
		}
		got, err := out.Consume(name, "", false, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for d := range got {
				d.Ack(false)
			}
		}()
		end := make(chan error, 1)
		ended = append(ended, end)
		go func() {
			for {
				select {
				case <-stop:
					end <- nil
					return
				default:
				}
				if err := in.PublishWithContext(t.Context(), "", name, false, false, amqp.Publishing{Body: make([]byte, 500)}); err != nil {
					end <- err
					return
				}
			}
		}()
	}
	for range 50 {
		if r := get[api.Report](c, "/health/report"); r.Status != "ok" {
			t.Errorf("false alarm: %+v", r)
		}
	}
	close(stop)
	for _, end := range ended {
		if err := <-end; err != nil {
			t.Error(err)
		}
	}
}
