// Package pattern reads the regular expressions of permissions and policies. RabbitMQ's are PCRE;
// Go's (RE2) are the same for nearly all that is in use, and take linear time.
//
// RE2 has no back references, atomic groups, possessive repeats or lookahead. Lookahead is understood in
// one place only, the widespread "^(?!amq\.)...". What cannot be read is refused, never taken for
// something else.
package pattern

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"strings"
)

// Regexp is a compiled expression. Any goroutine.
type Regexp struct {
	re    *regexp.Regexp
	ahead []lookahead // all must hold as well
}

// lookahead is a "(?!...)" or "(?=...)" at the very beginning of an anchored expression. There it
// is just one more expression for the whole text, which must not or must match.
type lookahead struct {
	re   *regexp.Regexp // anchored at the beginning
	want bool
}

// Error says what is wrong with an expression, and where.
type Error struct {
	Reason string // in PCRE's words where it has them
	At     int    // byte offset
	Err    error  // the regexp package's own; nil where the fault is a lookahead's
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return e.Reason
}

func (e *Error) Unwrap() error { return e.Err }

// Compile reads an expression. It is found anywhere in a text unless it anchors itself. The error is an
// *Error.
func Compile(expr string) (*Regexp, error) {
	r := &Regexp{}
	rest, err := r.cutLookaheads(expr)
	if err != nil {
		return nil, err
	}
	if r.re, err = compile(rest); err != nil {
		return nil, err
	}
	return r, nil
}

// MatchString reports whether the expression is found in s.
func (r *Regexp) MatchString(s string) bool {
	for _, l := range r.ahead {
		if l.re.MatchString(s) != l.want {
			return false
		}
	}
	return r.re.MatchString(s)
}

// cutLookaheads takes the lookaheads off "^(?!X)(?=Y)Z" and gives "^Z", or all of expr if there are none.
func (r *Regexp) cutLookaheads(expr string) (rest string, err error) {
	rest, anchored := strings.CutPrefix(expr, "^")
	for anchored && (strings.HasPrefix(rest, "(?!") || strings.HasPrefix(rest, "(?=")) {
		end, _ := scan(rest[1:])
		if end < 0 {
			return "", &Error{Reason: "missing )", At: len(expr)}
		}
		inside := rest[3 : 1+end]
		if _, err := compile(inside); err != nil {
			return "", err
		}
		re, err := compile("^(?:" + inside + ")")
		if err != nil {
			return "", err
		}
		r.ahead = append(r.ahead, lookahead{re, rest[2] == '='})
		rest = rest[end+2:]
	}
	if len(r.ahead) == 0 {
		return expr, nil
	}
	at := len(expr) - len(rest)
	if _, alternatives := scan(rest); alternatives { // "^(?!X)Y|Z" is "(^(?!X)Y)|Z"
		return "", &Error{Reason: "alternatives after a lookahead are not supported", At: at}
	}
	if rest != "" && strings.ContainsRune("*+?{", rune(rest[0])) { // "(?!X)*" repeats the lookahead
		return "", &Error{Reason: "a repeated lookahead is not supported", At: at}
	}
	return "^" + rest, nil
}

// scan finds the ")" that closes a group whose inside expr begins with, -1 if there is none, and
// whether a "|" stands outside of any other group.
func scan(expr string) (end int, alternatives bool) {
	depth := 0
	for i := 0; i < len(expr); i++ {
		switch expr[i] {
		case '\\':
			if strings.HasPrefix(expr[i:], `\Q`) {
				quoted := strings.Index(expr[i:], `\E`)
				if quoted < 0 {
					return -1, alternatives
				}
				i += quoted
			}
			i++
		case '[':
			i += class(expr[i:]) - 1
		case '(':
			depth++
		case '|':
			alternatives = alternatives || depth == 0
		case ')':
			if depth == 0 {
				return i, alternatives
			}
			depth--
		}
	}
	return -1, alternatives
}

// class is the length of the character class that expr begins with, or of all of expr.
func class(expr string) int {
	i := 1
	if strings.HasPrefix(expr[i:], "^") {
		i++
	}
	for first := true; i < len(expr); first = false {
		switch {
		case expr[i] == '\\':
			i += 2
		case strings.HasPrefix(expr[i:], "[:") && strings.Contains(expr[i:], ":]"):
			i += strings.Index(expr[i:], ":]") + 2
		case expr[i] == ']' && !first:
			return i + 1
		default:
			i++
		}
	}
	return len(expr)
}

// compile is regexp.Compile with PCRE's words for what is wrong.
func compile(expr string) (*regexp.Regexp, error) {
	re, err := regexp.Compile(expr)
	if err == nil {
		return re, nil
	}
	e := &Error{Reason: err.Error(), Err: err}
	var bad *syntax.Error
	if !errors.As(err, &bad) {
		return nil, e
	}
	if reason, ok := reasons[bad.Code]; ok {
		e.Reason = reason
	} else {
		e.Reason = bad.Code.String()
	}
	switch bad.Code {
	case syntax.ErrMissingParen, syntax.ErrMissingBracket, syntax.ErrTrailingBackslash:
		e.At = len(expr)
	case syntax.ErrUnexpectedParen:
		e.At, _ = scan(expr)
	default:
		e.At = max(strings.Index(expr, bad.Expr), 0)
	}
	return nil, e
}

var reasons = map[syntax.ErrorCode]string{
	syntax.ErrMissingParen:          "missing )",
	syntax.ErrUnexpectedParen:       "unmatched parentheses",
	syntax.ErrMissingBracket:        "missing terminating ] for character class",
	syntax.ErrMissingRepeatArgument: "nothing to repeat",
	syntax.ErrTrailingBackslash:     `\ at end of pattern`,
}
