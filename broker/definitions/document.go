package definitions

import (
	"bufio"
	"encoding/json"
	"io"
)

// document writes a JSON object as json.MarshalIndent would, but an element of a list at a time. The first error is
// kept, and what follows it is not written.
type document struct {
	w      *bufio.Writer
	indent string // of the members of the object that is open
	empty  bool   // it has none yet
	err    error
}

func newDocument(w io.Writer) *document {
	d := &document{w: bufio.NewWriterSize(w, 64<<10)}
	d.begin()
	return d
}

func (d *document) begin() {
	d.w.WriteByte('{')
	d.indent += " "
	d.empty = true
}

// name begins a member.
func (d *document) name(name string) {
	if !d.empty {
		d.w.WriteByte(',')
	}
	d.empty = false
	d.w.WriteString("\n" + d.indent + `"` + name + `": `)
}

func (d *document) marshal(v any, indent string) {
	if d.err != nil {
		return
	}
	var p []byte
	if p, d.err = json.MarshalIndent(v, indent, " "); d.err == nil {
		_, d.err = d.w.Write(p)
	}
}

// value writes a member.
func (d *document) value(name string, v any) {
	d.name(name)
	d.marshal(v, d.indent)
}

// object begins a member that is an object, up to end.
func (d *document) object(name string) {
	d.name(name)
	d.begin()
}

// end ends the object that is open.
func (d *document) end() {
	d.indent = d.indent[1:]
	d.w.WriteString("\n" + d.indent + "}")
	d.empty = false
}

// close writes the rest, and gives the first error.
func (d *document) close() error {
	if d.err != nil {
		return d.err
	}
	return d.w.Flush()
}

// listOf writes a member that is a list: what is made of each item.
func listOf[T, E any](d *document, name string, items []T, of func(*T) E) {
	d.name(name)
	d.w.WriteByte('[')
	for i := range items {
		if i > 0 {
			d.w.WriteByte(',')
		}
		d.w.WriteString("\n" + d.indent + " ")
		d.marshal(of(&items[i]), d.indent+" ")
	}
	if len(items) > 0 {
		d.w.WriteString("\n" + d.indent)
	}
	d.w.WriteByte(']')
}
