package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/firemq/firemq/sdk/go"
	"github.com/firemq/firemq/test/internal/brokertest"
)

// changes are what a client makes and takes away again, one after another, each when the one before was
// answered: a kill may hit one that is not.
type changes struct {
	there   map[string]bool // as was answered last
	open    string          // the one that was not answered
	answers int
}

// objects is how many names a client changes in turn.
const objects = 40

// run changes until the broker is gone.
func (c *changes) run(kind string, change func(name string, there bool) error) {
	c.open = ""
	for n := c.answers; ; n++ {
		name := fmt.Sprintf("made.%s.%d", kind, n%objects)
		c.open = name
		if change(name, !c.there[name]) != nil {
			return
		}
		c.there[name] = !c.there[name]
		c.open = ""
		c.answers++
	}
}

// check compares with what is there after the restart, and takes the fate of the open one as it is.
func (c *changes) check(t *testing.T, what string, there []string) {
	t.Helper()
	if c.open != "" {
		c.there[c.open] = slices.Contains(there, c.open)
	}
	for name, want := range c.there {
		if got := slices.Contains(there, name); got != want {
			t.Errorf("%s %s is there: %t; what was answered says %t", what, name, got, want)
		}
	}
}

// changers change durable queues with a binding over AMQP, durable queues over the FireMQ protocol, and
// users over the management API.
type changers struct{ amqp, fire, users *changes }

func newChangers() *changers {
	return &changers{&changes{there: map[string]bool{}}, &changes{there: map[string]bool{}}, &changes{there: map[string]bool{}}}
}

func (c *changers) start(t *testing.T, b *brokertest.Broker, wg *sync.WaitGroup) {
	t.Helper()
	_, ch := dial(t, b.AMQPURL)
	wg.Go(func() {
		c.amqp.run("amqp", func(name string, there bool) error {
			if !there {
				_, err := ch.QueueDelete(name, false, false, false)
				return err
			}
			if _, err := ch.QueueDeclare(name, true, false, false, false, nil); err != nil {
				return err
			}
			return ch.QueueBind(name, "made", exchange, false, nil)
		})
	})
	client, err := brokertest.DialFire(t.Context(), b.FireURL)
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		c.fire.run("fire", func(name string, there bool) error {
			if !there {
				_, err := client.DeleteQueue(context.Background(), name, fire.DeleteOptions{})
				return err
			}
			_, err := client.DeclareQueue(context.Background(), name, fire.QueueOptions{})
			return err
		})
	})
	wg.Go(func() {
		c.users.run("user", func(name string, there bool) error {
			method := http.MethodDelete
			if there {
				method = http.MethodPut
			}
			return call(b, method, "/api/users/"+name, map[string]string{"password_hash": "", "tags": "monitoring"}, nil)
		})
	})
}

// check asks the broker, after a restart.
func (c *changers) check(t *testing.T, b *brokertest.Broker) {
	t.Helper()
	var queues, users []struct{ Name string }
	var bindings []struct{ Destination string }
	for path, list := range map[string]any{"/api/queues": &queues, "/api/users": &users, "/api/exchanges/%2F/" + exchange + "/bindings/source": &bindings} {
		if err := call(b, http.MethodGet, path, nil, list); err != nil {
			t.Fatal(err)
		}
	}
	var names, bound, known []string
	for _, q := range queues {
		names = append(names, q.Name)
	}
	for _, b := range bindings {
		bound = append(bound, b.Destination)
	}
	for _, u := range users {
		known = append(known, u.Name)
	}
	open := c.amqp.open // of which the queue may be there and the binding not
	c.amqp.check(t, "queue", names)
	c.fire.check(t, "queue", names)
	c.users.check(t, "user", known)
	for name, there := range c.amqp.there {
		if there && name != open && !slices.Contains(bound, name) {
			t.Errorf("queue %s has lost its binding", name)
		}
	}
}

// call is one request to the management API.
func call(b *brokertest.Broker, method, path string, send, receive any) error {
	body, err := json.Marshal(send)
	if err != nil {
		return err
	}
	r, err := http.NewRequest(method, b.HTTPURL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.SetBasicAuth("guest", "guest")
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s", method, path, answer.Status)
	}
	if receive == nil {
		return nil
	}
	return json.NewDecoder(answer.Body).Decode(receive)
}
