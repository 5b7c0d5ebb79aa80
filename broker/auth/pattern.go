package auth

import (
	"hash/maphash"
	"regexp"
	"strings"
	"sync/atomic"
	"unsafe"

	compiled "github.com/firemq/firemq/broker/pattern"
)

// decisions is how many answers a pattern remembers. Names beyond that, or longer than
// maxRemembered bytes, cost their user a run of the pattern: about a microsecond.
const (
	decisions     = 256 // a power of two
	maxRemembered = 255
)

// pattern is a compiled permission pattern with its latest answers. Any goroutine.
type pattern struct {
	re  *compiled.Regexp // nil: all decides
	all bool             // everything matches, else the empty name alone

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
// Syntax is that of package pattern (RE2 and the widespread lookahead), RabbitMQ's is PCRE. What else
// differs: counted repeats end at 1,000; "$" means the very end where PCRE also accepts a final line feed;
// "." and classes take a UTF-8 character where PCRE takes a byte. What cannot be read is refused when
// it is set.
func compile(expr string) (*pattern, error) {
	switch expr {
	case "":
		return &pattern{}, nil
	case ".*":
		return &pattern{all: true}, nil
	}
	re, err := compiled.Compile(expr)
	if err != nil {
		return nil, &PatternError{expr, err}
	}
	return &pattern{re: re, seed: maphash.MakeSeed(), seen: make([]atomic.Pointer[decision], decisions)}, nil
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
	d := &decision{name, p.re.MatchString(name)}
	if len(name) <= maxRemembered {
		d.name = strings.Clone(name)
		at.Store(d)
	}
	return d.matches
}

// matchBytes looks at name during the call only.
func (p *pattern) matchBytes(name []byte) bool {
	return p.match(unsafe.String(unsafe.SliceData(name), len(name)))
}
