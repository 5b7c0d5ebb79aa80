package broker

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// declares carries out so many declares in one turn that takes so long, and says when it is over whether the
// connection has to wait.
func (c *client) declares(n int, took time.Duration) (rests bool) {
	c.t.Helper()
	for range n {
		c.declare(QueueDeclare{Name: "q"})
	}
	<-time.After(took) // in the test's own time
	c.end()
	return c.Rests()
}

// paceTest has two processors: how long a connection rests, and so who asks beside it, depends on their number.
func paceTest(t *testing.T, f func(t *testing.T, b *Broker)) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	synctest.Test(t, func(t *testing.T) { f(t, memoryBroker(t, Options{})) })
}

// flow has messages go from another client to a queue.
func (c *client) flow() {
	c.t.Helper()
	c.publish("", "q", "x")
	c.end()
}

// parts is how long a connection rests that worked for so long, when n ask.
func parts(took time.Duration, n int) time.Duration {
	return took * paceShare * time.Duration(n) / time.Duration(runtime.GOMAXPROCS(0))
}

// While messages flow, a connection that asks for other things than messages gets its part of the time and not
// more, and those who ask get equal parts. While none do it goes on at once.
func TestOtherVerbsRestWhileMessagesFlow(t *testing.T) {
	paceTest(t, func(t *testing.T, b *Broker) {
		c, other, sender := connect(t, b), connect(t, b), connect(t, b)
		other.end()
		sender.end()
		if c.declares(10, time.Second) {
			t.Fatal("a connection waits while there are no messages")
		}
		<-time.After(time.Minute)
		sender.flow()
		if c.declares(1, time.Millisecond) {
			t.Error("a connection waits that asks for little")
		}
		<-time.After(time.Minute)

		for n, c := range []*client{c, other} {
			sender.flow()
			before, told := time.Now(), c.peer.answered.Load()
			if !c.declares(1, 40*time.Millisecond) {
				t.Fatal("a connection does not wait while messages flow")
			}
			for c.Rests() {
				<-time.After(time.Millisecond)
				synctest.Wait()
			}
			got, want := time.Since(before), 40*time.Millisecond+parts(40*time.Millisecond, n+1)-paceAhead
			if got < want || got > want+5*time.Millisecond {
				t.Errorf("connection %d rests for %s, want %s", n, got, want)
			}
			if c.peer.answered.Load() != told+1 {
				t.Errorf("connection %d is told %d times", n, c.peer.answered.Load()-told)
			}
		}
	})
}

// A turn is over after a slice of such verbs; then the connection goes on at once when nothing else is to be done.
func TestOtherVerbsComeInSlices(t *testing.T) {
	paceTest(t, func(t *testing.T, b *Broker) {
		c, sender := connect(t, b), connect(t, b)
		c.end()
		sender.end()
		for _, slice := range []int{paceRest, paceSlice} {
			for i := range slice {
				if c.Rests() {
					t.Fatalf("the turn is over after %d", i)
				}
				c.declare(QueueDeclare{Name: "q"})
			}
			told := c.peer.answered.Load()
			if !c.Rests() || !c.Kept() {
				t.Fatalf("the turn is not over after %d", slice)
			}
			c.end()
			if c.Rests() || c.Kept() || c.peer.answered.Load() != told+1 {
				t.Errorf("the connection does not go on: rests %t, told %d times", c.Rests(), c.peer.answered.Load()-told)
			}
			<-time.After(time.Minute)
			sender.flow()
		}
	})
}

// Messages pay for other verbs.
func TestMessagesPayForOtherVerbs(t *testing.T) {
	paceTest(t, func(t *testing.T, b *Broker) {
		c, sender := connect(t, b), connect(t, b)
		sender.end()
		c.declares(1, 0)
		for range 10 {
			c.flow()
			sender.flow()
			if c.declares(paceCredit, time.Second) {
				t.Fatal("a connection waits that sends messages")
			}
		}
		sender.flow()
		if !c.declares(1, time.Second) {
			t.Error("the messages paid for more than they should")
		}
		if c.Close(); c.paced.timer.Stop() {
			t.Error("a timer is left of a closed connection")
		}
	})
}

// Connections that come are taken as fast as they may while messages flow; those that send messages do not count.
func TestArrivalsRestWhileMessagesFlow(t *testing.T) {
	paceTest(t, func(t *testing.T, b *Broker) {
		for range 10_000 {
			if d := b.Admitted(); d != 0 {
				t.Fatalf("the next one waits for %s while there are no messages", d)
			}
		}
		<-time.After(time.Minute)
		sender := connect(t, b)
		sender.declare(QueueDeclare{Name: "q"})
		sender.end()
		<-time.After(time.Minute)
		flood := func() (n int) {
			for begin := time.Now(); time.Since(begin) < 10*time.Second; n++ {
				sender.flow()
				<-time.After(b.Admitted())
				connect(t, b).Close()
			}
			return n
		}
		want := int((10*time.Second + loginSaved) / parts(acceptCost+loginCost, 1))
		if n := flood(); n < want*9/10 || n > want*11/10 {
			t.Errorf("%d logins in ten seconds, want %d", n, want)
		}
		for range 10_000 {
			sender.flow()
			if d := b.Admitted(); d > time.Second {
				t.Fatalf("the next one waits for %s", d)
			}
			c := connect(t, b)
			c.flow()
			c.Close()
		}
	})
}

// TLS handshakes have a part of their own while messages flow: those who flood with them do not keep others out.
func TestHandshakesRestWhileMessagesFlow(t *testing.T) {
	const took = time.Millisecond
	paceTest(t, func(t *testing.T, b *Broker) {
		for range 10_000 {
			if d := b.Handshake(took) + b.Handshake(0); d != 0 {
				t.Fatalf("the next one waits for %s while there are no messages", d)
			}
		}
		<-time.After(time.Minute)
		sender := connect(t, b)
		sender.declare(QueueDeclare{Name: "q"})
		sender.end()
		<-time.After(time.Minute)
		n := 0
		for begin := time.Now(); time.Since(begin) < 10*time.Second; n++ {
			sender.flow()
			b.Handshake(took)
			<-time.After(b.Handshake(0))
		}
		want := int((10*time.Second + loginSaved) * paceShakes / parts(took, 1))
		if n < want*9/10 || n > want*11/10 {
			t.Errorf("%d handshakes in ten seconds, want %d", n, want)
		}
		sender.flow()
		if d := b.Admitted(); d > 0 {
			t.Errorf("who comes without TLS waits for %s", d)
		}
		b.Handshake(time.Hour)
		if d := b.Handshake(0); d > paceMost {
			t.Errorf("the next one waits for %s", d)
		}
	})
}

// Logins that no listener holds back do not keep the others out for longer than the longest rest.
func TestArrivalsRestForSoLongAtMost(t *testing.T) {
	paceTest(t, func(t *testing.T, b *Broker) {
		sender := connect(t, b)
		sender.declare(QueueDeclare{Name: "q"})
		sender.end()
		<-time.After(time.Minute)
		sender.flow()
		for range 100_000 {
			b.Login("nobody", "wrong", &ConnInfo{})
		}
		if d := b.Admitted(); d > paceMost {
			t.Errorf("the next one waits for %s", d)
		}
	})
}
