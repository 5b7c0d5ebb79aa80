package route

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/firemq/firemq/frames/table"
)

// headersIndex compares binding arguments with the message's headers.
//
// A binding that demands a string value is filed under it: an "all" binding under one of its
// criteria, whichever is the rarest so far, an "any" binding under each, if all are strings. So a
// route tries only bindings filed under the values that the message has, and those that could
// not be filed.
type headersIndex[Q comparable] struct {
	filed map[text]*set[*binding[Q]]
	other set[*binding[Q]]
}

// text is a header with a string value.
type text struct{ name, value string }

// textOf is false for values of other kinds. Strings and byte arrays of the same octets are equal.
func textOf(f *table.Field) (text, bool) {
	return text{f.Name, f.Value.Str}, f.Value.Kind == table.String || f.Value.Kind == table.Bytes
}

func (x *headersIndex[Q]) add(b *binding[Q]) {
	b.rule.under = x.places(b.rule)
	for _, t := range b.rule.under {
		s := x.filed[t]
		if s == nil {
			if x.filed == nil {
				x.filed = make(map[text]*set[*binding[Q]])
			}
			s = &set[*binding[Q]]{}
			x.filed[t] = s
		}
		s.add(b)
	}
	if len(b.rule.under) == 0 {
		x.other.add(b)
	}
}

func (x *headersIndex[Q]) remove(b *binding[Q]) {
	for _, t := range b.rule.under {
		s := x.filed[t]
		s.remove(b)
		if len(s.items) == 0 {
			delete(x.filed, t)
		}
	}
	if len(b.rule.under) == 0 {
		x.other.remove(b)
	}
}

// places says where to file a rule, nil if it cannot be filed.
func (x *headersIndex[Q]) places(r *rule) (under []text) {
	for i := range r.criteria {
		t, ok := textOf(&r.criteria[i])
		switch {
		case r.any && !ok:
			return nil
		case r.any:
			under = append(under, t)
		case ok && (under == nil || x.count(t) < x.count(under[0])):
			under = []text{t}
		}
	}
	return under
}

func (x *headersIndex[Q]) count(t text) int {
	if s := x.filed[t]; s != nil {
		return len(s.items)
	}
	return 0
}

func (x *headersIndex[Q]) match(w *walk[Q]) bool {
	matched := w.takeMatching(x.other.items)
	if len(x.filed) == 0 {
		return matched
	}
	for i := range w.headers {
		t, ok := textOf(&w.headers[i])
		if !ok {
			continue
		}
		if s := x.filed[t]; s != nil && w.takeMatching(s.items) {
			matched = true
		}
	}
	return matched
}

// takeMatching takes the destinations of those bindings whose rule the headers meet.
func (w *walk[Q]) takeMatching(bindings []*binding[Q]) (matched bool) {
	for _, b := range bindings {
		if b.rule.match(w.headers) {
			w.takeNode(b.id.dst)
			matched = true
		}
	}
	return matched
}

// rule is what one binding's arguments demand of headers.
type rule struct {
	any      bool        // immutable; one criterion is enough
	criteria table.Table // immutable

	under []text // guarded by the exchange's shard; where the binding is filed
}

// newRule reads binding arguments. x-match says how many criteria must hold, and whether the
// arguments whose names begin with "x-" are among them.
func newRule(args table.Table) (*rule, error) {
	r := &rule{}
	withX := false
	if v, ok := args.Get("x-match"); ok {
		if v.Kind != table.String {
			return nil, &ArgumentError{fmt.Sprintf("Invalid x-match field type %s (value %s); expected longstr", v.Kind, term(v))}
		}
		switch v.Str {
		case "all":
		case "any":
			r.any = true
		case "all-with-x":
			withX = true
		case "any-with-x":
			r.any, withX = true, true
		default:
			return nil, &ArgumentError{fmt.Sprintf("Invalid x-match field value %s; expected all, any, all-with-x, or any-with-x", term(v))}
		}
	}
	for _, f := range args {
		if f.Name != "x-match" && (withX || !strings.HasPrefix(f.Name, "x-")) {
			r.criteria = append(r.criteria, f)
		}
	}
	return r, nil
}

// match reports whether the headers meet the rule. A criterion without a value (void) asks only
// that the header is there.
func (r *rule) match(headers table.Table) bool {
	for i := range r.criteria {
		c := &r.criteria[i]
		v, ok := headers.Get(c.Name)
		if ok && c.Value.Kind != table.Void {
			ok = table.Equal(c.Value, v)
		}
		if ok == r.any {
			return r.any
		}
	}
	return !r.any
}

// term prints a value as an Erlang term, as RabbitMQ's texts do.
func term(v table.Value) string {
	switch v.Kind {
	case table.String, table.Bytes:
		return binaryTerm(v.Str)
	case table.Array:
		parts := make([]string, len(v.List))
		for i, e := range v.List {
			parts[i] = "{" + e.Kind.String() + "," + term(e) + "}"
		}
		return "[" + strings.Join(parts, ",") + "]"
	case table.Nested:
		parts := make([]string, len(v.Table))
		for i, f := range v.Table {
			parts[i] = "{" + binaryTerm(f.Name) + "," + f.Value.Kind.String() + "," + term(f.Value) + "}"
		}
		return "[" + strings.Join(parts, ",") + "]"
	case table.Decimal:
		return "{" + strconv.Itoa(int(v.Scale)) + "," + strconv.FormatUint(v.Num, 10) + "}"
	case table.Float32, table.Float64:
		s := v.String()
		if strings.ContainsRune(s, '.') {
			return s
		}
		if mantissa, exponent, ok := strings.Cut(s, "e"); ok {
			return mantissa + ".0e" + exponent
		}
		return s + ".0"
	}
	return v.String()
}

// binaryTerm prints octets: quoted if all can be shown, else one by one.
func binaryTerm(s string) string {
	plain, printable := true, s != "" && utf8.ValidString(s)
	for _, r := range s {
		plain = plain && r < utf8.RuneSelf
		printable = printable && strconv.IsPrint(r)
	}
	if !printable {
		parts := make([]string, len(s))
		for i := range len(s) {
			parts[i] = strconv.Itoa(int(s[i]))
		}
		return "<<" + strings.Join(parts, ",") + ">>"
	}
	quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
	if !plain {
		quoted += "/utf8"
	}
	return "<<" + quoted + ">>"
}
