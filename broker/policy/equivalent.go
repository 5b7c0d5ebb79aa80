package policy

import (
	"fmt"

	"github.com/firemq/firemq/frames/table"
)

// Equivalent compares the arguments of an existing queue with those of a new declare and gives
// the text of the first difference. Only arguments that the queue's type knows count, and a
// declare that asks for no type is content with the one that the queue has.
func Equivalent(current, received table.Table, resource string) (text string, ok bool) {
	t := typeOf(current)
	for i := range arguments {
		a := &arguments[i]
		switch {
		case a.types&t == 0:
		case a.key == "x-queue-type":
			if v, asked := received.Get(a.key); asked && (v.Kind != table.String || v.Str != t.String()) {
				return inequivalent(a.key, resource, bare(v), "'"+t.String()+"'"), false
			}
		default:
			if text, ok := EquivalentArg(a.key, current, received, resource); !ok {
				return text, false
			}
		}
	}
	return "", true
}

// EquivalentArg compares one argument of an existing queue or exchange with the one received.
// Integers of any width compare by value, strings and byte arrays by their octets.
func EquivalentArg(key string, current, received table.Table, resource string) (text string, ok bool) {
	c, hasC := current.Get(key)
	r, hasR := received.Get(key)
	switch {
	case !hasC && !hasR:
		return "", true
	case hasC && !hasR:
		return inequivalent(key, resource, "none", typed(c)), false
	case hasR && !hasC:
		return inequivalent(key, resource, typed(r), "none"), false
	case (c.Kind == r.Kind || c.IsInt() && r.IsInt() || isText(c) && isText(r)) && table.Equal(c, r):
		return "", true
	}
	return inequivalent(key, resource, bare(r), bare(c)), false
}

func isText(v table.Value) bool { return v.Kind == table.String || v.Kind == table.Bytes }

func bare(v table.Value) string { return "'" + v.String() + "'" }

func typed(v table.Value) string {
	return fmt.Sprintf("the value %s of type '%s'", bare(v), v.Kind)
}

func inequivalent(key, resource, received, current string) string {
	return fmt.Sprintf("inequivalent arg '%s' for %s: received %s but current is %s", key, resource, received, current)
}
