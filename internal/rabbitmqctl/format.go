package rabbitmqctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// formatters are the values of --formatter.
var formatters = []string{"table", "json", "json_stream", "csv", "pretty_table", "string", "erlang", "report", "compact"}

// machine says whether a program reads what is printed: then nothing is announced.
func (c *call) machine() bool {
	switch c.options["formatter"] {
	case "json", "json_stream", "csv", "erlang", "compact":
		return true
	}
	return false
}

// json says whether what is no list is to be printed as JSON, too.
func (c *call) json() bool {
	return c.options["formatter"] == "json" || c.options["formatter"] == "json_stream"
}

// fields are what JSON has of a result.
type fields map[string]any

// passed is the result of most checks.
var passed = fields{"result": "ok"}

// result says that something is as it should be: JSON has f, or if that is nil a message with the text.
func (c *call) result(text string, f fields) error {
	switch {
	case !c.json():
		return c.say("%s", text)
	case f == nil:
		f = fields{"message": text}
	}
	return c.say("%s", compact(f))
}

// atom is a value that stands without quotes in a list, a tag for one.
type atom string

// raw is JSON that is printed as it is, and as a string in JSON.
type raw string

// states are what nodes are in.
type states map[string]any

// arguments are a field table.
type arguments map[string]any

// rows prints a list in the format that was asked for.
func (c *call) rows(columns []string, rows [][]any) error {
	c.said = true
	var b bytes.Buffer
	switch c.options["formatter"] {
	case "json":
		b.WriteString("[\n")
		for i, row := range rows {
			if i > 0 {
				b.WriteByte(',')
			}
			writeObject(&b, columns, row)
			b.WriteByte('\n')
		}
		b.WriteString("]\n")
	case "json_stream":
		for _, row := range rows {
			writeObject(&b, columns, row)
			b.WriteByte('\n')
		}
	case "csv":
		if len(rows) > 0 {
			writeCSV(&b, columns)
		}
		for _, row := range rows {
			writeCSV(&b, texts(row))
		}
	case "pretty_table":
		if len(rows) > 0 {
			writeBox(&b, columns, rows)
		}
	default:
		// Without rows there are no headings either.
		if len(rows) > 0 && !c.has("silent") && !c.has("no-table-headers") {
			b.WriteString(strings.Join(columns, "\t") + "\n")
		}
		for _, row := range rows {
			b.WriteString(strings.Join(texts(row), "\t") + "\n")
		}
	}
	_, err := c.t.Out.Write(b.Bytes())
	return err
}

// texts are the values of a row as a table shows them.
func texts(row []any) []string {
	list := make([]string, len(row))
	for i, v := range row {
		list[i] = text(v)
	}
	return list
}

// text is a value by itself: a name stands without quotes there.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return escape(v)
	case nil:
		return ""
	}
	return term(v)
}

// term spells a value as Erlang does, with strings for binaries.
func term(v any) string {
	switch v := v.(type) {
	case nil:
		return "undefined"
	case string:
		return `"` + escape(v) + `"`
	case atom:
		return string(v)
	case raw:
		return string(v)
	case arguments:
		return tuples(v)
	case map[string]any:
		return tuples(v)
	case states:
		list := make([]atom, 0, len(v))
		for _, node := range slices.Sorted(maps.Keys(v)) {
			list = append(list, atom(fmt.Sprintf("{%s, %v}", node, v[node])))
		}
		return term(list)
	case []atom:
		list := make([]string, len(v))
		for i := range v {
			list[i] = string(v[i])
		}
		return "[" + strings.Join(list, ", ") + "]"
	case []any:
		list := make([]string, len(v))
		for i := range v {
			list[i] = term(v[i])
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	return fmt.Sprint(v)
}

func tuples(m map[string]any) string {
	list := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, "{"+term(k)+","+term(m[k])+"}")
	}
	return "[" + strings.Join(list, ",") + "]"
}

// escape keeps a name on one line and in its column: as RabbitMQ does, with the octal codes of control
// characters. Text that is no UTF-8 stays as it is.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\\':
			b.WriteString(`\\`)
		case c < ' ' || c == 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

func writeObject(b *bytes.Buffer, columns []string, row []any) {
	b.WriteByte('{')
	for i, v := range row {
		if i > 0 {
			b.WriteByte(',')
		}
		writeJSON(b, columns[i])
		b.WriteByte(':')
		writeJSON(b, jsonOf(v))
	}
	b.WriteByte('}')
}

// jsonOf is a value for JSON. A field table is a list of name, type and value: JSON numbers have lost which
// type they were, so that every integer is a "long".
func jsonOf(v any) any {
	switch v := v.(type) {
	case nil:
		return ""
	case raw:
		return string(v)
	case arguments:
		list := []any{}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			list = append(list, typed(k, v[k]))
		}
		return list
	}
	return v
}

func typed(name string, v any) []any {
	switch v := v.(type) {
	case string:
		return []any{name, "longstr", v}
	case bool:
		return []any{name, "bool", v}
	case map[string]any:
		return []any{name, "table", jsonOf(arguments(v))}
	case []any:
		items := make([]any, len(v))
		for i := range v {
			items[i] = typed("", v[i])[1:]
		}
		return []any{name, "array", items}
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return []any{name, "double", v}
		}
		return []any{name, "long", v}
	}
	return []any{name, "void", "undefined"}
}

func writeJSON(b *bytes.Buffer, v any) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("BUG: a value of the API is no JSON: " + err.Error())
	}
	b.Truncate(b.Len() - 1) // its line feed
}

func writeCSV(b *bytes.Buffer, row []string) {
	for i, s := range row {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + strings.ReplaceAll(s, `"`, `""`) + `"`)
	}
	b.WriteByte('\n')
}

// writeBox draws a table for people.
func writeBox(b *bytes.Buffer, columns []string, rows [][]any) {
	lines := [][]string{columns}
	for _, row := range rows {
		lines = append(lines, texts(row))
	}
	widths := make([]int, len(columns))
	for _, line := range lines {
		for i, s := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(s))
		}
	}
	rule := func(left, middle, right string) {
		b.WriteString(left)
		for i, w := range widths {
			if i > 0 {
				b.WriteString(middle)
			}
			b.WriteString(strings.Repeat("─", w+2))
		}
		b.WriteString(right + "\n")
	}
	rule("┌", "┬", "┐")
	for n, line := range lines {
		if n > 0 {
			rule("├", "┼", "┤")
		}
		for i, s := range line {
			b.WriteString("│ " + s + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(s)+1))
		}
		b.WriteString("│\n")
	}
	rule("└", "┴", "┘")
}
