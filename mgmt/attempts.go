package mgmt

import (
	"sync"
	"time"
)

// Bounds of failed logins from one address, felt by who guesses passwords: after a burst of wrong
// ones, one a second.
const (
	attemptBurst     = 20
	attemptPause     = time.Second
	attemptAddresses = 4096 // remembered at once
)

// attempts remembers from where wrong passwords came. Any goroutine.
type attempts struct {
	now func() time.Time // immutable

	mu   sync.Mutex
	debt map[string]time.Time // when all failures of an address are forgotten; guarded by mu
}

func newAttempts() *attempts { return &attempts{now: time.Now, debt: make(map[string]time.Time)} }

// blocked says whether an address has to wait.
func (a *attempts) blocked(ip string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.debt[ip].Sub(a.now()) > (attemptBurst-1)*attemptPause
}

// failed counts a wrong password.
func (a *attempts) failed(ip string) {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.debt) >= attemptAddresses {
		for k, until := range a.debt {
			if until.Before(now) {
				delete(a.debt, k)
			}
		}
		if len(a.debt) >= attemptAddresses {
			clear(a.debt)
		}
	}
	until := a.debt[ip]
	if until.Before(now) {
		until = now
	}
	a.debt[ip] = until.Add(attemptPause)
}
