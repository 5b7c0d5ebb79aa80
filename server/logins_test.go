package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/broker"
	fire "github.com/firemq/firemq/sdk/go"
)

// Passwords that are wrong over one protocol count for all: after a burst of them that name is refused there,
// right or wrong, in the words that clients understand, after a pause. Other names, and that one when a pause has
// passed, log in at once.
func TestGuessersAreSlowedDown(t *testing.T) {
	s, stop := run(t, Options{AMQP: free, Fire: free, HTTP: free})
	defer stop()
	if err := s.Broker().AddFirstUser("app", "secret"); err != nil {
		t.Fatal(err)
	}
	if err := s.Broker().AddFirstUser("victim", "secret"); err != nil {
		t.Fatal(err)
	}
	overAMQP := func(user, password string) error {
		c, err := amqp.Dial(fmt.Sprintf("amqp://%s:%s@%s", user, password, s.AMQPAddr()))
		if err == nil {
			c.Close()
		}
		return err
	}
	overFire := func(user, password string) error {
		c, err := fire.Dial(within(t), fmt.Sprintf("fire://%s:%s@%s", user, password, s.FireAddr()))
		if err == nil {
			c.Close()
		}
		return err
	}
	refusedAMQP := func(err error) bool {
		e, ok := errors.AsType[*amqp.Error](err)
		return ok && e.Code == amqp.AccessRefused
	}
	refusedFire := func(err error) bool {
		e, ok := errors.AsType[*fire.ServerError](err)
		return ok && e.Code == amqp.AccessRefused
	}
	begin := time.Now()
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			if i%2 == 0 {
				if err := overAMQP("victim", "wrong"); !refusedAMQP(err) {
					t.Errorf("over AMQP: %v, want 403", err)
				}
			} else if err := overFire("victim", "wrong"); !refusedFire(err) {
				t.Errorf("over the FireMQ protocol: %v, want 403", err)
			}
		})
	}
	all.Wait()
	if took := time.Since(begin); took < broker.LoginPause {
		t.Errorf("60 wrong passwords took %s", took)
	}
	get := func() int {
		req, err := http.NewRequestWithContext(within(t), "GET", "http://"+s.HTTPAddr().String()+"/api/whoami", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth("victim", "secret")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	eventually(t, "the right password is taken after the pause", func() bool { return get() == 200 })
	for range 25 { // as many as count
		s.Broker().Authenticate("victim", "wrong", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	}
	begin = time.Now()
	if err := overAMQP("victim", "secret"); !refusedAMQP(err) {
		t.Errorf("the right password at once, over AMQP: %v", err)
	}
	if took := time.Since(begin); took < broker.LoginPause {
		t.Errorf("the answer came after %s", took)
	}
	for _, log := range []func(user, password string) error{overAMQP, overFire} {
		if err := log("app", "secret"); err != nil { // who waits is refused in the end
			t.Errorf("another user from there: %v", err)
		}
	}
}

// A client that leaves while its refusal waits leaves nothing behind, and so does one that stays longer than it
// may.
func TestRefusedClientsLeave(t *testing.T) {
	s, stop := run(t, Options{AMQP: free, Fire: free})
	defer stop()
	for range 25 {
		s.Broker().Authenticate("guest", "wrong", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	}
	ctx, cancel := context.WithTimeout(t.Context(), broker.LoginPause/4)
	defer cancel()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if c, err := fire.Dial(ctx, "fire://"+s.FireAddr().String()); err == nil {
				c.Close()
				t.Error("a client is let in")
			}
		})
	}
	all.Wait()
	eventually(t, "no connection is left", func() bool { return s.loop.Len() == 0 })
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(time.Minute); !ok(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("not in time: " + what)
		}
	}
}

// Clients with right passwords come as fast as they like, beside one who guesses: none is refused, as one is that has to wait.
func TestRightPasswordsAreNotSlowed(t *testing.T) {
	s, stop := run(t, Options{AMQP: free})
	defer stop()
	if err := s.Broker().AddFirstUser("app", "secret"); err != nil {
		t.Fatal(err)
	}
	here := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
	for i := range 2000 {
		s.Broker().Authenticate("guest", "wrong", here)
		if i%8 != 0 { // the rest without the time of a handshake
			if _, e := s.Broker().Authenticate("app", "secret", here); e != nil {
				t.Fatalf("login %d: %s", i, e.Cause)
			}
			continue
		}
		c, err := amqp.Dial("amqp://app:secret@" + s.AMQPAddr().String())
		if err != nil {
			t.Fatalf("login %d: %v", i, err)
		}
		c.Close()
	}
}
