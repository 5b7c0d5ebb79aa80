package server

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/firemq/firemq/internal/misspelt"
)

// hidden stands for a secret.
const hidden = "********"

// readFile takes the values of a settings file and gives everything that is wrong with its keys and its
// TOML; what is wrong with a value shows when it is applied. The mark that editors of Windows begin a file with is no part
// of it.
func (c *Config) readFile(b []byte) (errs []error) {
	b = bytes.TrimPrefix(b, []byte("\uFEFF"))
	bad := func(line int, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s:%d: %s", c.File, line, fmt.Sprintf(format, args...)))
	}
	// Syntax and keys given twice. The parser below knows only the syntax, but every key's place.
	if err := toml.Unmarshal(b, new(map[string]any)); err != nil {
		line := 1
		if e, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, _ = e.Position()
		}
		bad(line, "%s", strings.TrimPrefix(err.Error(), "toml: "))
		return errs
	}
	var p unstable.Parser
	p.Reset(b)
	section, known := "", true
	for p.NextExpression() {
		e := p.Expression()
		key, line := keyOf(&p, e)
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			section = key
			switch known = e.Kind == unstable.Table && isSection(key); {
			case known:
			case isSection(key):
				bad(line, "[[%s]] would be one of several: write [%[1]s]", key)
			default:
				bad(line, "unknown section [%s]: %s", key, nearestSection(key))
			}
		case unstable.KeyValue:
			if section != "" {
				key = section + "." + key
			}
			i := slices.IndexFunc(table, func(s Setting) bool { return s.Name() == key })
			if i < 0 {
				switch {
				case !known: // the keys of an unknown section are what that error is about
				case isSection(key):
					bad(line, "%s is a section: write [%[1]s] on a line of its own, and its keys below", key)
				default:
					bad(line, "unknown key %s: %s", key, nearest(key))
				}
				continue
			}
			value, err := scalar(table[i].kind, e.Value())
			if err != nil {
				bad(line, "%s: %s", key, err)
				continue
			}
			c.values[i] = given{text: value, source: byFile, line: line}
		}
	}
	return errs
}

// keyOf gives an expression's dotted key and its line.
func keyOf(p *unstable.Parser, e *unstable.Node) (key string, line int) {
	var parts []string
	for it := e.Key(); it.Next(); {
		if line == 0 {
			line = p.Shape(it.Node().Raw).Start.Line
		}
		parts = append(parts, string(it.Node().Data))
	}
	return strings.Join(parts, "."), line
}

// scalar is a TOML value as it would be given to the flag.
func scalar(k kind, v *unstable.Node) (string, error) {
	value := string(v.Data)
	switch {
	case v.Kind == unstable.String && k != boolean && k != count && k != list:
		return value, nil
	case v.Kind == unstable.Bool && k == boolean:
		return value, nil
	case v.Kind == unstable.Integer && (k == listener || k == size || k == count || k == duration || k == fraction),
		v.Kind == unstable.Float && k == fraction:
		return strings.ReplaceAll(value, "_", ""), nil
	case v.Kind == unstable.Array && k == list:
		var items []string
		for it := v.Children(); it.Next(); {
			if it.Node().Kind != unstable.String {
				return "", errors.New("not an array of strings")
			}
			item := string(it.Node().Data)
			if strings.Contains(item, ",") {
				return "", fmt.Errorf("%q: one item each, without commas", item)
			}
			items = append(items, item)
		}
		return strings.Join(items, ","), nil
	}
	want := map[kind]string{
		text: "a string", boolean: "true or false", listener: `"host:port", a port or "off"`, size: `a size such as "512MB"`,
		count: "a whole number", duration: `seconds or a duration such as "1m30s"`, list: "an array of strings",
		fraction: "a number",
	}
	return "", fmt.Errorf("wants %s", want[k])
}

func isSection(name string) bool {
	return slices.ContainsFunc(table, func(s Setting) bool { return s.Section == name })
}

func nearestSection(name string) string {
	best := slices.MinFunc(table, func(a, b Setting) int { return misspelt.Distance(name, a.Section) - misspelt.Distance(name, b.Section) })
	return "did you mean [" + best.Section + "]?"
}

// nearest names the setting that an unknown key of the file most likely means. A flag's name counts, too,
// and so does a key in the wrong section.
func nearest(key string) string {
	last := key[strings.LastIndexByte(key, '.')+1:]
	score := func(s Setting) int {
		return min(2*misspelt.Distance(key, s.Name()), 2*misspelt.Distance(last, s.Key)+1, 2*misspelt.Distance(strings.ReplaceAll(last, "-", "_"), strings.ReplaceAll(s.Flag, "-", "_"))+1)
	}
	best := slices.MinFunc(table, func(a, b Setting) int { return score(a) - score(b) })
	return "did you mean " + best.Name() + "?"
}

// commandVariables are environment variables that are no settings of the broker.
var commandVariables = []string{"FIREMQ_CONFIG", "FIREMQ_URL", "FIREMQ_HTTP_URL", "FIREMQ_USER", "FIREMQ_PASS"}

// Misspelt gives the names in environ, of the form NAME=value, that are almost but not quite those of settings,
// with the names that were meant. They are no error: whoever starts the broker may set variables with its
// name, as Kubernetes does.
func Misspelt(environ []string) map[string]string {
	known := slices.Clone(commandVariables)
	for i := range table {
		known = append(known, table[i].Env())
	}
	wrong := make(map[string]string)
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "FIREMQ_") || slices.Contains(known, name) {
			continue
		}
		if meant, ok := misspelt.Meant(name, known); ok {
			wrong[name] = meant
		}
	}
	return wrong
}

// DefaultText is a settings file with every setting, its default and what it does.
func DefaultText() string {
	var b strings.Builder
	b.WriteString(`# Settings of FireMQ. A command-line flag comes before an environment variable, and both before
# this file. Every setting is here with its default: delete what you don't change. Sizes take units:
# 512MB, 2GiB, 1000000; durations too: 90s, 1m30s, 90. "firemq config check" tests this file, and
# "firemq config show" prints what counts in the end.
#
# [live]: on SIGHUP the broker reads it again and changes it. Everything else needs a restart.
`)
	section := ""
	for i := range table {
		s := &table[i]
		if s.Section != section {
			section = s.Section
			fmt.Fprintf(&b, "\n[%s]\n", section)
		}
		live := ""
		if s.Live {
			live = " [live]"
		}
		fmt.Fprintf(&b, "\n%s# --%s, %s%s\n%s = %s\n", comment(s.Help), s.Flag, s.Env(), live, s.Key, s.kind.toml(s.Default))
	}
	return b.String()
}

// comment writes a phrase as a sentence, in lines of a comment.
func comment(phrase string) string {
	var b strings.Builder
	line := "#"
	for word := range strings.FieldsSeq(strings.ToUpper(phrase[:1]) + phrase[1:] + ".") {
		if len(line)+1+len(word) > commentColumns {
			b.WriteString(line + "\n")
			line = "#"
		}
		line += " " + word
	}
	return b.String() + line + "\n"
}

const commentColumns = 100

// Text shows every setting with its value, as a settings file, and where the value comes from. Secrets
// that were set are hidden.
func (c *Config) Text() string {
	var b strings.Builder
	section := ""
	for i := range table {
		s, v := &table[i], &c.values[i]
		if s.Section != section {
			if section != "" {
				b.WriteByte('\n')
			}
			section = s.Section
			fmt.Fprintf(&b, "[%s]\n", section)
		}
		value := v.text
		if s.Secret && v.source != byDefault && value != "" {
			value = hidden
		}
		fmt.Fprintf(&b, "%-36s # %s\n", s.Key+" = "+s.kind.toml(value), c.origin(i))
	}
	return b.String()
}

// origin names where a value comes from.
func (c *Config) origin(i int) string {
	s, v := &table[i], &c.values[i]
	switch v.source {
	case byFlag:
		return "--" + s.Flag
	case byDev:
		return "--dev"
	case byStandard:
		return v.name
	case byEnv:
		return s.Env()
	case byFile:
		return fmt.Sprintf("%s:%d", c.File, v.line)
	}
	return "default"
}
