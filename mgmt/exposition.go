package mgmt

import (
	"bufio"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/gzip"

	"github.com/firemq/firemq/journal"
)

// exposition writes families. Its buffer is handed on in pieces; beside it a scrape takes about 200 bytes a queue,
// for their labels and numbers.
type exposition struct {
	w   io.Writer // the client, or gz
	gz  *gzip.Writer
	out *bufio.Writer // what gz writes, in larger pieces
	buf []byte
	n   int64
	err error // of the client, that went away

	// Kept for the next scrape, so that one a second leaves no garbage.
	queues []queueRow
	labels labelList
}

const expositionPiece = 64 << 10

// expositions are those that nobody uses now.
var expositions = sync.Pool{New: func() any {
	e := &exposition{out: bufio.NewWriterSize(nil, expositionPiece/4)}
	e.gz, _ = gzip.NewWriterLevel(e.out, gzip.BestSpeed) // fails for unknown levels
	return e
}}

// begin starts to write to w.
func (e *exposition) begin(w io.Writer, packed bool) {
	e.w, e.n, e.err = w, 0, nil
	if packed {
		e.out.Reset(w)
		e.gz.Reset(e.out)
		e.w = e.gz
	}
}

// end writes the rest and tells how many bytes there were, before gzip, or why the client did not get them.
func (e *exposition) end() (int64, error) {
	e.flush()
	if e.w == e.gz && e.err == nil {
		if e.err = e.gz.Close(); e.err == nil {
			e.err = e.out.Flush()
		}
	}
	e.out.Reset(nil)
	e.w = nil
	return e.n, e.err
}

func (e *exposition) flush() {
	if e.err == nil {
		var n int
		n, e.err = e.w.Write(e.buf)
		e.n += int64(n)
	}
	e.buf = e.buf[:0]
}

// family begins a family.
func (e *exposition) family(name, kind, help string) {
	if len(e.buf) > expositionPiece {
		e.flush()
	}
	e.buf = append(e.buf, "# TYPE "...)
	e.buf = append(e.buf, name...)
	e.buf = append(append(e.buf, ' '), kind...)
	e.buf = append(append(e.buf, "\n# HELP "...), name...)
	e.buf = append(append(append(e.buf, ' '), help...), '\n')
}

// series begins a line; labels are nil or in braces.
func (e *exposition) series(name string, labels []byte) {
	if len(e.buf) > expositionPiece {
		e.flush()
	}
	e.buf = append(e.buf, name...)
	e.buf = append(append(e.buf, labels...), ' ')
}

func (e *exposition) int(name string, labels []byte, v int64) {
	e.series(name, labels)
	e.buf = append(strconv.AppendInt(e.buf, v, 10), '\n')
}

func (e *exposition) float(name string, labels []byte, v float64) {
	e.series(name, labels)
	if math.IsNaN(v) {
		e.buf = append(e.buf, "NaN\n"...)
		return
	}
	e.buf = append(appendFloat(e.buf, v), '\n')
}

// one is a family of one series.
func (e *exposition) one(name, kind, help string, v int64) {
	e.family(name, kind, help)
	e.int(name, nil, v)
}

// labels are pairs of name and value in braces.
func labels(pairs ...string) []byte { return appendLabels(nil, pairs...) }

// labelList is the labels of all objects of a kind, in one piece of memory.
type labelList struct {
	text []byte
	ends []int
}

func (l *labelList) reset() { l.text, l.ends = l.text[:0], append(l.ends[:0], 0) }

func (l *labelList) add(pairs ...string) {
	l.text = appendLabels(l.text, pairs...)
	l.ends = append(l.ends, len(l.text))
}

// of is the labels of the object that was added as number i, from 0.
func (l *labelList) of(i int) []byte { return l.text[l.ends[i]:l.ends[i+1]] }

func appendLabels(dst []byte, pairs ...string) []byte {
	dst = append(dst, '{')
	for i := 0; i < len(pairs); i += 2 {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(dst, pairs[i]...), '=', '"')
		dst = append(appendLabelValue(dst, pairs[i+1]), '"')
	}
	return append(dst, '}')
}

// appendLabelValue escapes; bytes that are no UTF-8 would make the whole scrape invalid and are replaced.
func appendLabelValue(dst []byte, s string) []byte {
	if utf8.ValidString(s) && !strings.ContainsAny(s, "\\\"\n") {
		return append(dst, s...)
	}
	for _, r := range s {
		switch r {
		case '\\', '"':
			dst = append(dst, '\\', byte(r))
		case '\n':
			dst = append(dst, '\\', 'n')
		default:
			dst = append(dst, string(r)...)
		}
	}
	return dst
}

// histogram is a family of one histogram; sum gives its sum in the unit of bounds.
func (e *exposition) histogram(name, help string, bounds []float64, h *journal.Histogram, sum func(time.Duration) float64) {
	e.family(name, "histogram", help)
	n := int64(0)
	for i, b := range bounds {
		n += h.Counts[i]
		e.int(name+"_bucket", labels("le", strconv.FormatFloat(b, 'g', -1, 64)), n)
	}
	n += h.Counts[len(h.Counts)-1]
	e.int(name+"_bucket", labels("le", "+Inf"), n)
	e.float(name+"_sum", nil, sum(time.Duration(h.Sum)))
	e.int(name+"_count", nil, n)
}
