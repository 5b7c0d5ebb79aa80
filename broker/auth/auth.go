// Package auth knows users, password hashes and permissions.
//
// A Store answers two questions. Who is this: Authenticate, at login. What may they do: Access,
// a snapshot of one user's rights in one vhost that answers from a small cache. Every change
// moves the Store's Epoch, so a session keeps an Access, or a decision it took, for as long as
// Epoch stays what it was before:
//
//	if e := store.Epoch(); e != c.epoch {
//		c.access, c.epoch = store.Access(user, vhost), e // in this order: e was read first
//	}
//
// Which vhosts, exchanges and queues exist is not known here.
package auth

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Right is one of the three permissions of a user in a vhost.
type Right uint8

const (
	Configure Right = iota
	Write
	Read
)

func (r Right) String() string { return [...]string{"configure", "write", "read"}[r] }

// Store holds users and their permissions. Any goroutine may call any method; its lock is a
// leaf and never held while a password is hashed or a pattern compiled.
type Store struct {
	epoch atomic.Uint64

	mu       sync.RWMutex
	users    map[string]*User  // guarded by mu
	grants   map[member]*grant // guarded by mu
	loopback []string          // guarded by mu; the slice is never changed in place
}

// User is one user, a snapshot: immutable once it is in a Store.
type User struct {
	Name      string
	Hash      string    // see Algorithm; empty: cannot log in with a password
	Algorithm Algorithm // empty: DefaultAlgorithm
	Tags      []string
	Limits    map[string]int // "max-connections", "max-channels"; negative: no limit
}

// HasTag reports whether the user has that tag, such as "administrator".
func (u *User) HasTag(tag string) bool { return slices.Contains(u.Tags, tag) }

// Limit gives the user's limit of that name; false when there is none.
func (u *User) Limit(name string) (n int, limited bool) {
	n, ok := u.Limits[name]
	return n, ok && n >= 0
}

// member is a user in a vhost.
type member struct{ user, vhost string }

// Errors of the methods that change a Store.
var (
	ErrNoName     = errors.New("a user needs a name")
	ErrUserExists = errors.New("user exists")
	ErrNoUser     = errors.New("no such user")
	ErrBadHash    = errors.New("password hash is not base64")
)

// LoginError is a refused login. Its text is for the log only, after "PLAIN login refused: "; a
// client is never told which of its credentials was wrong.
type LoginError struct {
	User   string
	Reason string
}

func (e *LoginError) Error() string { return fmt.Sprintf("user '%s' - %s", e.User, e.Reason) }

// NewStore makes a Store without users, in which "guest" is a loopback user.
func NewStore() *Store {
	return &Store{
		users:    make(map[string]*User),
		grants:   make(map[member]*grant),
		loopback: []string{"guest"},
	}
}

// Epoch counts the changes of users and permissions.
func (s *Store) Epoch() uint64 { return s.epoch.Load() }

// Authenticate checks a password. The error is a *LoginError. How long it takes does not tell
// whether the user exists; a blank password is refused whoever it is.
func (s *Store) Authenticate(name, password string) (*User, error) {
	u, known := s.User(name)
	if !known {
		u = &nobody
	}
	if !u.verify(password) || !known || password == "" {
		return nil, refuse(name, "invalid credentials")
	}
	return u, nil
}

// SetLoopbackUsers replaces the users that may log in from this machine only.
func (s *Store) SetLoopbackUsers(names ...string) {
	names = slices.Clone(names)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loopback = names
	s.epoch.Add(1)
}

// LoopbackOnly refuses a loopback user that comes from elsewhere: then the error is a *LoginError.
func (s *Store) LoopbackOnly(name string, remote net.Addr) error {
	s.mu.RLock()
	loopback := s.loopback
	s.mu.RUnlock()
	if !slices.Contains(loopback, name) || isLoopback(remote) {
		return nil
	}
	return refuse(name, "can only connect via localhost")
}

// loggedName is how much of a name a log shows, in bytes: somebody not known may call himself anything.
const loggedName = 255

func refuse(name, reason string) error {
	return &LoginError{strings.Clone(name[:min(len(name), loggedName)]), reason}
}

// isLoopback is true for 127/8, ::1 and ::ffff:127/104, and for what never left the machine.
func isLoopback(a net.Addr) bool {
	if a == nil {
		return false
	}
	switch a.Network() {
	case "unix", "pipe":
		return true
	}
	ap, err := netip.ParseAddrPort(a.String())
	return err == nil && ap.Addr().IsLoopback()
}

// User finds a user.
func (s *Store) User(name string) (*User, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	u, ok := s.users[name]
	return u, ok
}

// Users lists all users by name.
func (s *Store) Users() []*User {
	s.mu.RLock()
	users := make([]*User, 0, len(s.users))
	for _, u := range s.users {
		users = append(users, u)
	}
	s.mu.RUnlock()
	slices.SortFunc(users, func(a, b *User) int { return strings.Compare(a.Name, b.Name) })
	return users
}

// AddUser makes a user with a hashed password; a blank one can not be used to log in. Errors:
// ErrUserExists, ErrNoName.
func (s *Store) AddUser(name, password string, tags ...string) error {
	if name == "" {
		return ErrNoName
	}
	u := &User{Name: name, Hash: HashPassword(password), Algorithm: DefaultAlgorithm, Tags: slices.Clone(tags)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[name] != nil {
		return ErrUserExists
	}
	s.users[name] = u
	s.epoch.Add(1)
	return nil
}

// PutUser makes or replaces a user as it is, hash included: an import. Permissions stay.
// Errors: ErrNoName, ErrBadHash, ErrBadAlgorithm.
func (s *Store) PutUser(def User) (created bool, err error) {
	if def.Algorithm == "" {
		def.Algorithm = DefaultAlgorithm
	}
	if err := def.Validate(); err != nil {
		return false, err
	}
	u := def.clone()
	s.mu.Lock()
	defer s.mu.Unlock()
	_, replaced := s.users[u.Name]
	s.users[u.Name] = u
	s.epoch.Add(1)
	return !replaced, nil
}

// SetPassword hashes a new password. Error: ErrNoUser.
func (s *Store) SetPassword(name, password string) error {
	hash := HashPassword(password)
	return s.change(name, func(u *User) { u.Hash, u.Algorithm = hash, DefaultAlgorithm })
}

// SetTags replaces a user's tags. Error: ErrNoUser.
func (s *Store) SetTags(name string, tags ...string) error {
	tags = slices.Clone(tags)
	return s.change(name, func(u *User) { u.Tags = tags })
}

// SetLimit sets one limit of a user; negative: none. Error: ErrNoUser.
func (s *Store) SetLimit(name, limit string, n int) error {
	return s.change(name, func(u *User) {
		if u.Limits == nil {
			u.Limits = make(map[string]int)
		}
		u.Limits[limit] = n
	})
}

// ClearLimits removes limits of a user, all of them if none is named. Error: ErrNoUser.
func (s *Store) ClearLimits(name string, limits ...string) error {
	return s.change(name, func(u *User) {
		if len(limits) == 0 {
			u.Limits = nil
		}
		for _, l := range limits {
			delete(u.Limits, l)
		}
	})
}

// change replaces a user by a changed copy.
func (s *Store) change(name string, edit func(*User)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.users[name]
	if u == nil {
		return ErrNoUser
	}
	u = u.clone()
	edit(u)
	s.users[name] = u
	s.epoch.Add(1)
	return nil
}

// DeleteUser removes a user and all of its permissions; false if there is none.
func (s *Store) DeleteUser(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[name] == nil {
		return false
	}
	delete(s.users, name)
	for m := range s.grants {
		if m.user == name {
			delete(s.grants, m)
		}
	}
	s.epoch.Add(1)
	return true
}
