package auth

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Permission is what a user may do in a vhost: a pattern for each right (see Pattern syntax at
// compile), matched against queue and exchange names. An empty one matches the empty name only.
type Permission struct {
	User, VHost            string
	Configure, Write, Read string
}

// TopicPermission narrows what a user may publish to and bind on one exchange, by routing key.
// It says something about topic exchanges only; without one, every key is allowed.
// "{username}" and "{vhost}" in a pattern stand for the user's and the vhost's name.
type TopicPermission struct {
	User, VHost, Exchange string
	Write, Read           string
}

// PatternError is a pattern that does not compile.
type PatternError struct {
	Pattern string
	Err     error
}

func (e *PatternError) Error() string { return fmt.Sprintf("pattern %q: %v", e.Pattern, e.Err) }
func (e *PatternError) Unwrap() error { return e.Err }

// grant is all that a user was given in one vhost.
type grant struct {
	permission *Permission // nil: only topic permissions, which are of no use yet
	rights     [3]*pattern
	topics     map[string]*topic // by exchange; the map is never changed in place
	access     *Access           // of the above, nil without permission
}

type topic struct {
	TopicPermission
	rights [3]*pattern // Configure is nil
}

func (g *grant) refresh() {
	g.access = nil
	if g.permission != nil {
		g.access = &Access{rights: g.rights, topics: g.topics}
	}
}

func (g *grant) empty() bool { return g.permission == nil && len(g.topics) == 0 }

// edit changes the grant of a user that exists. Error: ErrNoUser.
func (s *Store) edit(m member, change func(*grant)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[m.user] == nil {
		return ErrNoUser
	}
	g := s.grants[m]
	if g == nil {
		g = &grant{}
		s.grants[m] = g
	}
	change(g)
	g.refresh()
	if g.empty() {
		delete(s.grants, m)
	}
	s.epoch.Add(1)
	return nil
}

// SetPermissions gives or replaces a user's rights in a vhost. Errors: ErrNoUser, *PatternError.
func (s *Store) SetPermissions(p Permission) (created bool, err error) {
	var rights [3]*pattern
	for r, expr := range [...]string{Configure: p.Configure, Write: p.Write, Read: p.Read} {
		if rights[r], err = compile(expr); err != nil {
			return false, err
		}
	}
	err = s.edit(member{p.User, p.VHost}, func(g *grant) {
		created = g.permission == nil
		g.permission, g.rights = &p, rights
	})
	return created, err
}

// ClearPermissions takes a user's rights in a vhost away; false if it had none.
func (s *Store) ClearPermissions(user, vhost string) (cleared bool) {
	s.edit(member{user, vhost}, func(g *grant) {
		cleared = g.permission != nil
		g.permission, g.rights = nil, [3]*pattern{}
	})
	return cleared
}

// SetTopicPermission gives or replaces a topic permission; the exchange need not exist. Errors:
// ErrNoUser, *PatternError.
func (s *Store) SetTopicPermission(p TopicPermission) (created bool, err error) {
	t := &topic{TopicPermission: p}
	for r, expr := range map[Right]string{Write: p.Write, Read: p.Read} {
		if t.rights[r], err = compile(expand(expr, p.User, p.VHost)); err != nil {
			return false, err
		}
	}
	err = s.edit(member{p.User, p.VHost}, func(g *grant) {
		topics := maps.Clone(g.topics)
		if topics == nil {
			topics = make(map[string]*topic)
		}
		created = topics[p.Exchange] == nil
		topics[p.Exchange] = t
		g.topics = topics
	})
	return created, err
}

// ClearTopicPermissions removes those of a user in a vhost for the named exchanges, all if none
// is named, and says how many there were.
func (s *Store) ClearTopicPermissions(user, vhost string, exchanges ...string) (cleared int) {
	s.edit(member{user, vhost}, func(g *grant) {
		topics := maps.Clone(g.topics)
		for x := range g.topics {
			if len(exchanges) == 0 || slices.Contains(exchanges, x) {
				delete(topics, x)
				cleared++
			}
		}
		g.topics = topics
	})
	return cleared
}

// DeleteVHost removes everybody's permissions in a vhost.
func (s *Store) DeleteVHost(vhost string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.grants {
		if m.vhost == vhost {
			delete(s.grants, m)
		}
	}
	s.epoch.Add(1)
}

// Permissions lists all permissions by user and vhost.
func (s *Store) Permissions() []Permission {
	s.mu.RLock()
	var all []Permission
	for _, g := range s.grants {
		if g.permission != nil {
			all = append(all, *g.permission)
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(all, func(a, b Permission) int {
		return cmp.Or(strings.Compare(a.User, b.User), strings.Compare(a.VHost, b.VHost))
	})
	return all
}

// TopicPermissions lists all topic permissions by user, vhost and exchange.
func (s *Store) TopicPermissions() []TopicPermission {
	s.mu.RLock()
	var all []TopicPermission
	for _, g := range s.grants {
		for _, t := range g.topics {
			all = append(all, t.TopicPermission)
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(all, func(a, b TopicPermission) int {
		return cmp.Or(strings.Compare(a.User, b.User), strings.Compare(a.VHost, b.VHost), strings.Compare(a.Exchange, b.Exchange))
	})
	return all
}

// Access gives a user's rights in a vhost as they are now; false if it has none and may not
// open it.
func (s *Store) Access(user, vhost string) (*Access, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	g := s.grants[member{user, vhost}]
	if g == nil || g.access == nil {
		return nil, false
	}
	return g.access, true
}

// Access is a snapshot of a user's rights in a vhost. Any goroutine; a repeated question takes
// no lock and allocates nothing.
type Access struct {
	rights [3]*pattern
	topics map[string]*topic
}

// Allowed reports whether the user has that right on the queue or exchange of that name. The
// default exchange is "amq.default" here.
func (a *Access) Allowed(r Right, name string) bool { return a.rights[r].match(name) }

// AllowedBytes is Allowed for a borrowed name.
func (a *Access) AllowedBytes(r Right, name []byte) bool { return a.rights[r].matchBytes(name) }

// TopicAllowed reports whether the user may publish to (Write) or bind with (Read) that routing
// key on a topic exchange. The arguments may be borrowed.
func (a *Access) TopicAllowed(r Right, exchange, key []byte) bool {
	if len(a.topics) == 0 {
		return true
	}
	t := a.topics[string(exchange)]
	return t == nil || t.rights[r] == nil || t.rights[r].matchBytes(key)
}

// Topics reports whether TopicAllowed can ever say no.
func (a *Access) Topics() bool { return len(a.topics) > 0 }

// Validate reports a pattern that does not compile: *PatternError.
func (p *Permission) Validate() error { return compileAll(p.Configure, p.Write, p.Read) }

// Validate reports a pattern that does not compile: *PatternError.
func (p *TopicPermission) Validate() error {
	return compileAll(expand(p.Write, p.User, p.VHost), expand(p.Read, p.User, p.VHost))
}

func compileAll(patterns ...string) error {
	for _, expr := range patterns {
		if _, err := compile(expr); err != nil {
			return err
		}
	}
	return nil
}
