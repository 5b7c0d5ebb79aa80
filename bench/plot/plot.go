// Package plot draws figures of benchmarks as SVG: bars by group, and lines. A figure needs no script, font
// or file beside it, and is readable on a light and on a dark page.
package plot

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The size of a figure and the margins around what is plotted, in pixels.
const (
	width        = 760
	lineHeight   = 300
	left, right  = 70, 20
	top, bottom  = 56, 50
	barHeight    = 13
	groupGap     = 12
	groupName    = 170 // left of the bars
	valueRoom    = 90  // right of the longest bar
	legendColumn = 180
	axisDivision = 5
)

// colors are of the series, in turn: told apart by most people with a colour deficiency, too.
var colors = []string{"#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#66a61e", "#a6761d", "#0072b2", "#999999"}

// Bars is a chart of horizontal bars.
type Bars struct {
	Title  string
	Unit   string   // of the values, after each
	Series []string // names, one colour each
	Groups []Group
}

// Group is one bar for each series; a value that is NaN has none.
type Group struct {
	Name   string
	Values []float64
}

// SVG draws the bars on a logarithmic scale if the values differ by more than a hundred times.
func (b Bars) SVG() string {
	var all []float64
	for _, g := range b.Groups {
		for _, v := range g.Values {
			if v > 0 && !math.IsInf(v, 0) {
				all = append(all, v)
			}
		}
	}
	title, length := b.Title, func(float64) float64 { return 0 }
	room := float64(width - groupName - valueRoom)
	if len(all) > 0 {
		low, high := slices.Min(all), slices.Max(all)
		length = func(v float64) float64 { return v / high * room }
		if high > 100*low {
			title += " (logarithmic)"
			low /= 2
			length = func(v float64) float64 { return math.Log(v/low) / math.Log(high/low) * room }
		}
	}
	var c canvas
	c.legend(title, b.Series)
	y := top + 14*((len(b.Series)-1)/((width-20)/legendColumn))
	for _, g := range b.Groups {
		first := y
		for i, v := range g.Values {
			if math.IsNaN(v) {
				continue
			}
			l := 0.0
			if v > 0 {
				l = max(1, length(v))
			}
			c.printf(`<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, groupName, y, l, barHeight-2, colors[i%len(colors)])
			c.text(float64(groupName)+l+5, float64(y+barHeight-4), "start", strings.TrimSpace(Short(v)+" "+b.Unit))
			y += barHeight
		}
		if y == first {
			y += barHeight
		}
		c.text(groupName-8, float64(first+y)/2+4, "end", g.Name)
		y += groupGap
	}
	return c.svg(y)
}

// Lines is a chart of one or more lines.
type Lines struct {
	Title, X, Y string
	LogX        bool // a logarithmic axis; a point at 0 is drawn where 1 would be, or a tenth of the least
	Series      []Line
}

// Line is the points of one series, by rising x.
type Line struct {
	Name string
	X, Y []float64
}

// SVG draws the lines; the Y axis begins at 0.
func (l Lines) SVG() string {
	var xs []float64
	high := 0.0
	for _, s := range l.Series {
		for i, y := range s.Y {
			xs = append(xs, s.X[i])
			high = max(high, y)
		}
	}
	slices.Sort(xs)
	xs = slices.Compact(xs)
	if high == 0 {
		high = 1
	}
	step := niceStep(high / axisDivision)
	high = math.Ceil(high/step) * step
	at := func(x float64) float64 { return x }
	if l.LogX {
		least := 1.0
		for _, x := range xs {
			if x > 0 {
				least = x
				break
			}
		}
		at = func(x float64) float64 { return math.Log10(max(x, min(1, least/10))) }
	}
	first, last := 0.0, 1.0
	if len(xs) > 0 {
		first, last = at(xs[0]), at(xs[len(xs)-1])
	}
	if first == last {
		last = first + 1
	}
	px := func(x float64) float64 { return left + (at(x)-first)/(last-first)*(width-left-right) }
	py := func(y float64) float64 { return lineHeight - bottom - y/high*(lineHeight-top-bottom) }

	var c canvas
	names := make([]string, len(l.Series))
	for i, s := range l.Series {
		names[i] = s.Name
	}
	c.legend(l.Title, names)
	for y := 0.0; y <= high*1.0001; y += step {
		c.printf(`<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#8885"/>`, left, width-right, py(y), py(y))
		c.text(left-6, py(y)+4, "end", Short(y))
	}
	ticks := xs
	if !l.LogX && len(xs) > 1 {
		ticks = nil
		step := niceStep((last - first) / axisDivision)
		for x := math.Ceil(first/step) * step; x <= last*1.0001; x += step {
			ticks = append(ticks, x)
		}
	}
	for _, x := range ticks {
		c.text(px(x), lineHeight-bottom+16, "middle", Short(x))
	}
	c.text((left+width-right)/2, lineHeight-10, "middle", l.X)
	c.printf(`<text x="14" y="%d" text-anchor="middle" transform="rotate(-90 14 %d)">%s</text>`, lineHeight/2, lineHeight/2, html.EscapeString(l.Y))
	for i, s := range l.Series {
		color := colors[i%len(colors)]
		var points strings.Builder
		for k := range s.X {
			fmt.Fprintf(&points, "%.1f,%.1f ", px(s.X[k]), py(s.Y[k]))
		}
		c.printf(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`, strings.TrimSpace(points.String()), color)
		if len(s.X) <= maxDots {
			for k := range s.X {
				c.printf(`<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, px(s.X[k]), py(s.Y[k]), color)
			}
		}
	}
	return c.svg(lineHeight)
}

// maxDots is the most points of a line that get a dot each.
const maxDots = 30

// niceStep is the next of 1, 2, 5, 10 ... at or above v.
func niceStep(v float64) float64 {
	base := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 5} {
		if f*base >= v*0.9999 {
			return f * base
		}
	}
	return 10 * base
}

// Short is a number as a person writes it: three digits that count, thousands as k, millions as M.
func Short(v float64) string {
	unit := ""
	switch a := math.Abs(v); {
	case a >= 999_500:
		v, unit = v/1e6, "M"
	case a >= 10_000 || a >= 1000 && v == math.Trunc(v/100)*100:
		v, unit = v/1e3, "k"
	}
	decimals := 0
	switch a := math.Abs(v); {
	case a == 0:
	case a < 9.995:
		decimals = 2
	case a < 99.95:
		decimals = 1
	}
	s := strconv.FormatFloat(v, 'f', decimals, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return cmp.Or(s, "0") + unit
}

// canvas collects the elements of a figure.
type canvas struct{ b strings.Builder }

func (c *canvas) printf(format string, args ...any) {
	fmt.Fprintf(&c.b, format, args...)
	c.b.WriteByte('\n')
}

func (c *canvas) text(x, y float64, anchor, s string) {
	c.printf(`<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, x, y, anchor, html.EscapeString(s))
}

func (c *canvas) legend(title string, series []string) {
	c.printf(`<text x="10" y="18" font-size="14" font-weight="bold">%s</text>`, html.EscapeString(title))
	perRow := (width - 20) / legendColumn
	for i, name := range series {
		x, y := 10+i%perRow*legendColumn, 34+14*(i/perRow)
		c.printf(`<rect x="%d" y="%d" width="10" height="10" fill="%s"/>`, x, y-9, colors[i%len(colors)])
		c.text(float64(x+14), float64(y), "start", name)
	}
}

// svg is the whole figure. Its text is a grey that is legible on black and on white.
func (c *canvas) svg(height int) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif" font-size="11" fill="#777">`+"\n", width, height, width, height) +
		c.b.String() + "</svg>\n"
}
