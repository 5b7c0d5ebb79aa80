package broker

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"github.com/firemq/firemq/frames/table"
)

// Filter picks messages by what is in them. All that is set must hold.
type Filter struct {
	Exchange *string // that it was published to
	Key      *Text   // the routing key
	Body     *Text   // a part of the body
	Headers  []NamedText
	// Properties are those with a name, "content_type" or "priority".
	Properties []NamedText
	// Before and After bound since when the message is there, Unix ms; 0: no bound. One whose time is not known
	// is older than everything.
	Before, After int64
}

// NamedText is a header or a property, and what its value must be; nil: it must be there.
type NamedText struct {
	Name string
	Text *Text
}

// Text is a plain text or a regular expression (RE2, so that it takes linear time).
type Text struct {
	plain string
	re    *regexp.Regexp // nil: plain
}

// maxPattern is the longest text to look for, in bytes; who asks is told.
const maxPattern = 4 << 10

// NewText makes a Text. Error: PreconditionFailed.
func NewText(s string, isRegexp bool) (*Text, *Error) {
	if len(s) > maxPattern {
		return nil, refuse(PreconditionFailed, "a text to look for is longer than %d bytes", maxPattern)
	}
	if !isRegexp {
		return &Text{plain: s}, nil
	}
	re, err := regexp.Compile(s)
	if err != nil {
		return nil, refuse(PreconditionFailed, "'%s' is no regular expression: %s", s, err)
	}
	return &Text{s, re}, nil
}

// is reports whether s is the text, or the expression matches somewhere in it.
func (t *Text) is(s string) bool {
	if t.re != nil {
		return t.re.MatchString(s)
	}
	return s == t.plain
}

// in reports whether the text or a match of the expression is somewhere in b.
func (t *Text) in(b []byte) bool {
	if t.re != nil {
		return t.re.Match(b)
	}
	return bytes.Contains(b, []byte(t.plain))
}

func (f *Filter) matches(b *Broker, m *Browsed) bool {
	if f.Before != 0 && m.Since >= f.Before || f.After != 0 && m.Since <= f.After {
		return false
	}
	if f.Exchange == nil && f.Key == nil && f.Body == nil && len(f.Headers)+len(f.Properties) == 0 {
		return true
	}
	msg := m.Msg
	switch {
	case msg == nil: // it cannot be read
		return false
	case f.Exchange != nil && string(msg.Exchange()) != *f.Exchange,
		f.Key != nil && !f.Key.is(string(msg.Key())),
		f.Body != nil && !f.Body.in(msg.Body()):
		return false
	case len(f.Headers)+len(f.Properties) == 0:
		return true
	}
	p, err := b.properties(msg)
	if err != nil {
		return false
	}
	for _, h := range f.Headers {
		v, ok := p.Headers.Get(h.Name)
		if !ok || h.Text != nil && !h.Text.is(spell(v)) {
			return false
		}
	}
	for _, want := range f.Properties {
		v, ok := property(&p, want.Name)
		if !ok || want.Text != nil && !want.Text.is(v) {
			return false
		}
	}
	return true
}

// spell is a header's value as text.
func spell(v table.Value) string {
	if v.Kind == table.String {
		return v.Str
	}
	return strings.TrimSpace(fmt.Sprint(v.Any()))
}

// property is the text of a property; false: the message does not have it, or there is none of that name.
func property(p *table.Properties, name string) (string, bool) {
	for _, t := range p.Texts() {
		if t.Name == name {
			return *t.Value, p.Has&t.Bit != 0
		}
	}
	switch name {
	case "delivery_mode":
		return fmt.Sprint(p.DeliveryMode), p.Has&table.HasDeliveryMode != 0
	case "priority":
		return fmt.Sprint(p.Priority), p.Has&table.HasPriority != 0
	case "timestamp":
		return fmt.Sprint(p.Timestamp), p.Has&table.HasTimestamp != 0
	}
	return "", false
}
