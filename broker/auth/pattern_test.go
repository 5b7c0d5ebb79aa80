package auth

import "testing"

func TestLookahead(t *testing.T) {
	for _, c := range []struct {
		expr    string
		yes, no []string
	}{
		{`^(?!amq\.).*`, []string{"q", "amqp", "", "x.amq."}, []string{"amq.gen-1"}},
		{`^(?!amq\.|mgmt)[a-z]+$`, []string{"q"}, []string{"amq.x", "mgmt1", "mgmt", "9"}},
		{`^(?=a)(?!ab).*c$`, []string{"ac", "axc"}, []string{"abc", "bc", "a"}},
		{`^(?!(a|b)$)(c|a).`, []string{"cx", "ax"}, []string{"bx", "a"}},
		{`^(?![)\]x]|\)|\Q)\E)y?`, []string{"y", "", "a"}, []string{")", "]", "x"}},
		{`^(?![[:digit:])]).`, []string{"a"}, []string{"7", ")", ""}},
		{`^(?!x)`, []string{"", "a"}, []string{"x"}},
		{`^(?!x$)x`, []string{"xy"}, []string{"x", "y"}},
	} {
		p, err := compile(c.expr)
		if err != nil {
			t.Errorf("%s: %v", c.expr, err)
			continue
		}
		for _, name := range c.yes {
			if !p.match(name) {
				t.Errorf("%s does not match %q", c.expr, name)
			}
		}
		for _, name := range c.no {
			if p.match(name) {
				t.Errorf("%s matches %q", c.expr, name)
			}
		}
	}
}

// Where taking the lookahead off would change the meaning, the pattern is refused.
func TestRefusedPatterns(t *testing.T) {
	for _, expr := range []string{
		`(`, `[`, `a{2000}`, `(?<=a)b`, `(a)\1`, `a++`, `(?>a)`,
		`(?!a)b`, `^a(?!b)`, `^(?!a)b|c`, `^(?!a)*b`, `^(?!a)+`, `^(?!a`, `^(?!a))b`, `^(?!(?!a)b)c`, `^(?!a)b(?=c)`, `^(?![)`, `^(?!`, `^(?!\`, `^(?!\Qa`,
		`^(?!\1)a`, `(?i)^(?!a)b`,
	} {
		if _, err := compile(expr); err == nil {
			t.Errorf("%s was accepted", expr)
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, expr := range []string{`^(?!amq\.).*`, `^(?=a)(?!ab).*c$`, `^(?![[:digit:])]).`, `^(?!\Qa`, `^(?!a)b|c`, `[`, `\`, `^(?!`} {
		f.Add(expr, "amq.x")
	}
	f.Fuzz(func(t *testing.T, expr, name string) {
		p, err := compile(expr)
		if err != nil {
			return
		}
		if first := p.match(name); p.match(name) != first {
			t.Error("two answers to one question")
		}
	})
}
