package pattern

import (
	"errors"
	"testing"
)

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		expr    string
		yes, no []string
	}{
		{`a`, []string{"a", "xax"}, []string{"", "b"}},
		{`^(?!amq\.).*`, []string{"q", "", "xamq."}, []string{"amq.gen-x"}},
		{`^(?!amq\.)(?!(a|b[)]))c?$`, []string{"c", ""}, []string{"amq.x", "a", "b)", "d"}},
		{`^(?=a)(?!ab).*c$`, []string{"ac", "axc"}, []string{"abc", "c", "ax"}},
		{`^(?![[:digit:])]).`, []string{"a"}, []string{"1", ")", ""}},
		{`^(?!\Q(\E)x`, []string{"x"}, []string{"(x", "y"}},
	} {
		r, err := Compile(c.expr)
		if err != nil {
			t.Errorf("%s: %v", c.expr, err)
			continue
		}
		for _, s := range c.yes {
			if !r.MatchString(s) {
				t.Errorf("%s does not match %q", c.expr, s)
			}
		}
		for _, s := range c.no {
			if r.MatchString(s) {
				t.Errorf("%s matches %q", c.expr, s)
			}
		}
	}
}

// Where taking a lookahead off would change the meaning, or it cannot be read, the expression is refused.
func TestRefuses(t *testing.T) {
	for expr, want := range map[string]Error{
		`(`:            {Reason: "missing )", At: 1},
		`a)`:           {Reason: "unmatched parentheses", At: 1},
		`[a`:           {Reason: "missing terminating ] for character class", At: 2},
		`*`:            {Reason: "nothing to repeat", At: 0},
		`a\`:           {Reason: `\ at end of pattern`, At: 2},
		`a(?!b)`:       {Reason: "invalid or unsupported Perl syntax", At: 1},
		`(a)\1`:        {Reason: "invalid escape sequence", At: 3},
		`^(?!a`:        {Reason: "missing )", At: 5},
		`^(?!*)`:       {Reason: "nothing to repeat", At: 0},
		`^(?!a)b|c`:    {Reason: "alternatives after a lookahead are not supported", At: 6},
		`^(?!a)*`:      {Reason: "a repeated lookahead is not supported", At: 6},
		`^(?!a)b)c`:    {Reason: "unmatched parentheses", At: 2},
		`^(?!a)(?<!b)`: {Reason: "invalid named capture", At: 1},
	} {
		_, err := Compile(expr)
		var e *Error
		if !errors.As(err, &e) || e.Reason != want.Reason || e.At != want.At {
			t.Errorf("%s: %+v, want %q at %d", expr, err, want.Reason, want.At)
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, expr := range []string{`^(?!amq\.).*`, `^(?=a)(?!ab).*c$`, `^(?![[:digit:])]).`, `^(?!\Qa`, `^(?!a)b|c`, `[`, `\`, `^(?!`} {
		f.Add(expr, "amq.x")
	}
	f.Fuzz(func(t *testing.T, expr, text string) {
		r, err := Compile(expr)
		var e *Error
		switch {
		case err == nil:
			r.MatchString(text)
		case !errors.As(err, &e) || e.Reason == "" || e.At < 0 || e.At > len(expr):
			t.Errorf("%q: %+v", expr, err)
		}
	})
}
