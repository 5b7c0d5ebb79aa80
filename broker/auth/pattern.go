package auth

import (
	"hash/maphash"
	"regexp"
	"strings"
	"sync/atomic"
	"unsafe"
)

// decisions is how many answers a pattern remembers. Names beyond that, or longer than
// maxRemembered bytes, cost their user a run of the pattern: about a microsecond.
const (
	decisions     = 256 // a power of two
	maxRemembered = 255
)

// pattern is a compiled permission pattern with its latest answers. Any goroutine.
type pattern struct {
	re    *regexp.Regexp // nil: all decides
	all   bool           // everything matches, else the empty name alone
	ahead []lookahead    // all must hold as well

	seed maphash.Seed
	seen []atomic.Pointer[decision] // by hash of the name
}

type decision struct {
	name    string
	matches bool
}

// compile reads a pattern. It is found anywhere in a name unless it anchors itself; the empty
// one stands for "^$".
//
// Syntax is Go's (RE2), RabbitMQ's is PCRE. What differs: RE2 has no back references, atomic
// groups or possessive repeats, and lookahead is understood in one place only, the widespread
// "^(?!amq\\.)..." (see lookahead). Such a pattern is refused when it is set, never taken for
// another. Counted repeats end at 1,000; "$" means the very end where PCRE also accepts a final
// line feed; "." and classes take a UTF-8 character where PCRE takes a byte. In return, no
// pattern takes more than linear time.
func compile(expr string) (*pattern, error) {
	switch expr {
	case "":
		return &pattern{}, nil
	case ".*":
		return &pattern{all: true}, nil
	}
	ahead, rest := cutLookaheads(expr)
	re, err := regexp.Compile(rest)
	if err != nil {
		return nil, &PatternError{expr, err}
	}
	return &pattern{re: re, ahead: ahead, seed: maphash.MakeSeed(), seen: make([]atomic.Pointer[decision], decisions)}, nil
}

// expand puts names in place of a topic pattern's variables, taken literally.
func expand(expr, user, vhost string) string {
	return strings.NewReplacer("{username}", regexp.QuoteMeta(user), "{vhost}", regexp.QuoteMeta(vhost)).Replace(expr)
}

func (p *pattern) match(name string) bool {
	if p.re == nil {
		return p.all || name == ""
	}
	at := &p.seen[maphash.String(p.seed, name)%decisions]
	if d := at.Load(); d != nil && d.name == name {
		return d.matches
	}
	d := &decision{name, p.run(name)}
	if len(name) <= maxRemembered {
		d.name = strings.Clone(name)
		at.Store(d)
	}
	return d.matches
}

func (p *pattern) run(name string) bool {
	for _, l := range p.ahead {
		if l.re.MatchString(name) != l.want {
			return false
		}
	}
	return p.re.MatchString(name)
}

// matchBytes looks at name during the call only.
func (p *pattern) matchBytes(name []byte) bool {
	return p.match(unsafe.String(unsafe.SliceData(name), len(name)))
}
