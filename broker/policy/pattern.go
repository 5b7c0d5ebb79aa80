package policy

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

// pattern is a policy's regular expression. RabbitMQ's are Perl's, Go's have no lookahead; the
// one that policies do use, "^(?!amq\.).*", is taken apart: names that match any of not are out.
type pattern struct {
	yes *regexp.Regexp
	not []*regexp.Regexp
}

func (p *pattern) match(name string) bool {
	for _, not := range p.not {
		if not.MatchString(name) {
			return false
		}
	}
	return p.yes.MatchString(name)
}

// compile gives RabbitMQ's reason when it fails: what is wrong, and where.
func compile(expr string) (p *pattern, reason string) {
	p = &pattern{}
	rest := expr
	if after, ok := strings.CutPrefix(expr, "^(?!"); ok {
		rest = after
		for {
			end, _ := closing(rest)
			if end < 0 {
				return nil, fmt.Sprintf(`{"missing )",%d}`, len(expr))
			}
			not, err := regexp.Compile("^(?:" + rest[:end] + ")")
			if err != nil {
				return nil, explain(rest[:end], err)
			}
			p.not = append(p.not, not)
			rest = rest[end+1:]
			if rest, ok = strings.CutPrefix(rest, "(?!"); ok {
				continue
			}
			// An alternative outside of the lookahead is not subject to it.
			if _, alternatives := closing(rest + ")"); alternatives {
				return nil, fmt.Sprintf(`{"alternatives after a lookahead are not supported",%d}`, len(expr)-len(rest))
			}
			break
		}
		rest = "^" + rest
	}
	yes, err := regexp.Compile(rest)
	if err != nil {
		return nil, explain(rest, err)
	}
	p.yes = yes
	return p, ""
}

// closing finds the parenthesis that closes the group in which s begins, -1 if there is none, and
// whether that group has alternatives.
func closing(s string) (end int, alternatives bool) {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '[':
			i = class(s, i)
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

// class finds the end of the character class that begins at i.
func class(s string, i int) int {
	i++
	if i < len(s) && s[i] == '^' {
		i++
	}
	for first := i; i < len(s); i++ {
		switch {
		case s[i] == '\\':
			i++
		case s[i] == ']' && i > first:
			return i
		}
	}
	return i
}

var explanations = map[syntax.ErrorCode]string{
	syntax.ErrMissingParen:          "missing )",
	syntax.ErrUnexpectedParen:       "unmatched parentheses",
	syntax.ErrMissingBracket:        "missing terminating ] for character class",
	syntax.ErrMissingRepeatArgument: "nothing to repeat",
	syntax.ErrTrailingBackslash:     "\\\\ at end of pattern",
}

func explain(expr string, err error) string {
	var bad *syntax.Error
	if !errors.As(err, &bad) {
		return fmt.Sprintf("{%s,0}", quote(err.Error()))
	}
	text, ok := explanations[bad.Code]
	if !ok {
		text = bad.Code.String()
	}
	at := len(expr)
	switch bad.Code {
	case syntax.ErrMissingParen, syntax.ErrMissingBracket, syntax.ErrTrailingBackslash:
	case syntax.ErrUnexpectedParen:
		at, _ = closing(expr)
	default:
		at = max(strings.Index(expr, bad.Expr), 0)
	}
	return fmt.Sprintf(`{"%s",%d}`, text, at)
}
