package auth

import (
	"hash/maphash"
	"net"
	"net/netip"
	"sync"
)

// Bounds of wrong passwords, in ms where they are times, felt by who guesses them: after a burst, one in a
// pause. A name has its own bound, so that who guesses one from behind an address keeps nobody else there from
// logging in; an address has one for who tries names.
const (
	nameBurst    = 20
	namePause    = 1000
	addressBurst = 100
	addressPause = 200

	origins = 4096 // remembered at once
)

// Attempts remembers from where wrong passwords came. Right ones cost nothing, and the time they take does not
// depend on others. The zero value is ready to be used. Any goroutine.
type Attempts struct {
	mu   sync.Mutex
	seed maphash.Seed
	debt map[origin]int64 // Unix ms when all wrong passwords are forgotten; guarded by mu
}

// origin is where passwords come from: a name tried from an address, or all that comes from it.
type origin struct {
	from netip.Addr // of IPv6 the network of 64 bits, which is one client's
	name uint64     // a hash; 0: any
}

// Blocked says whether the next attempt with that name from there is refused unseen, right or wrong. now is in
// Unix ms.
func (a *Attempts) Blocked(name string, from net.Addr, now int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.debt) == 0 {
		return false
	}
	one, all := a.origins(name, from)
	return a.debt[one]-now > (nameBurst-1)*namePause || a.debt[all]-now > (addressBurst-1)*addressPause
}

// Failed counts a wrong password.
func (a *Attempts) Failed(name string, from net.Addr, now int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.debt == nil {
		a.debt, a.seed = make(map[origin]int64), maphash.MakeSeed()
	}
	if len(a.debt) >= origins-1 {
		for o, until := range a.debt {
			if until <= now {
				delete(a.debt, o)
			}
		}
		if len(a.debt) >= origins-1 {
			clear(a.debt)
		}
	}
	one, all := a.origins(name, from)
	a.debt[one] = max(a.debt[one], now) + namePause
	a.debt[all] = max(a.debt[all], now) + addressPause
}

// origins are the two that an attempt counts for. mu is held.
func (a *Attempts) origins(name string, from net.Addr) (one, all origin) {
	ip := addressOf(from)
	return origin{ip, maphash.String(a.seed, name) | 1}, origin{from: ip}
}

// addressOf is the address without its port; none for what never left the machine.
func addressOf(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	ip := ap.Addr().Unmap().WithZone("")
	if ip.Is6() && !ip.IsLoopback() {
		ip = netip.PrefixFrom(ip, 64).Masked().Addr()
	}
	return ip
}
