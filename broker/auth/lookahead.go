package auth

import (
	"regexp"
	"strings"
)

// lookahead is a "(?!...)" or "(?=...)" at the very beginning of an anchored pattern. There it
// is just one more pattern for the whole name, which must not or must match.
type lookahead struct {
	re   *regexp.Regexp // anchored at the beginning
	want bool
}

// cutLookaheads takes the lookaheads off "^(?!X)(?=Y)Z" and gives "^Z". A pattern where this
// would change the meaning, or a lookahead that does not compile, comes back whole, and RE2
// refuses it.
func cutLookaheads(expr string) (ahead []lookahead, rest string) {
	rest, anchored := strings.CutPrefix(expr, "^")
	for anchored && (strings.HasPrefix(rest, "(?!") || strings.HasPrefix(rest, "(?=")) {
		end, _ := scan(rest[1:])
		if end < 0 {
			return nil, expr
		}
		re, err := regexp.Compile("^(?:" + rest[3:1+end] + ")")
		if err != nil {
			return nil, expr
		}
		ahead = append(ahead, lookahead{re, rest[2] == '='})
		rest = rest[end+2:]
	}
	if len(ahead) == 0 {
		return nil, expr
	}
	if end, alternatives := scan(rest); end >= 0 || alternatives || rest != "" && strings.ContainsRune("*+?{", rune(rest[0])) {
		return nil, expr // "^(?!X)Y|Z" is "(^(?!X)Y)|Z", and "(?!X)*" repeats the lookahead
	}
	return ahead, "^" + rest
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
