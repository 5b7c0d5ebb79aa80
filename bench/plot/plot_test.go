package plot

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

// wellFormed fails unless s is one XML element, and counts its elements by name.
func wellFormed(t *testing.T, s string) map[string]int {
	t.Helper()
	count := make(map[string]int)
	for d := xml.NewDecoder(strings.NewReader(s)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return count
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, s)
		}
		if start, ok := token.(xml.StartElement); ok {
			count[start.Name.Local]++
		}
	}
}

func TestBars(t *testing.T) {
	b := Bars{Title: "a < b", Unit: "us", Series: []string{"one", "two & three"}, Groups: []Group{
		{"first", []float64{1, 50}}, {"second", []float64{math.NaN(), 2}}, {"none", []float64{math.NaN(), math.NaN()}},
	}}
	s := b.SVG()
	if n := wellFormed(t, s)["rect"]; n != 3+2 {
		t.Errorf("%d rectangles, want 3 bars and 2 of the legend", n)
	}
	if strings.Contains(s, "logarithmic") || strings.Contains(s, "NaN") {
		t.Error(s)
	}
	b.Groups[0].Values[1] = 500
	if s := b.SVG(); !strings.Contains(s, "logarithmic") {
		t.Error("values that differ by 500 times are drawn on a linear scale")
	}
}

func TestLines(t *testing.T) {
	for name, l := range map[string]Lines{
		"two":     {Title: "t", X: "x", Y: "y", LogX: true, Series: []Line{{"a", []float64{0, 1e6, 1e7}, []float64{1, 1.1, 1.2}}, {"b", []float64{0, 1e7}, []float64{2, 3}}}},
		"linear":  {Series: []Line{{"a", []float64{0.5, 1.5, 2.5}, []float64{1e6, 0, 2e6}}}},
		"a point": {Series: []Line{{"a", []float64{5}, []float64{0}}}},
		"empty":   {Series: []Line{{"a", nil, nil}}},
	} {
		s := l.SVG()
		if n := wellFormed(t, s)["polyline"]; n != len(l.Series) {
			t.Errorf("%s: %d lines, want %d", name, n, len(l.Series))
		}
		if strings.Contains(s, "NaN") || strings.Contains(s, "Inf") {
			t.Errorf("%s: %s", name, s)
		}
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.5: "0.5", 0.053: "0.05", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 1000: "1k", 1234: "1234",
		12345: "12.3k", 999_600: "1M", 1_850_000: "1.85M", 10_000_000: "10M",
	} {
		if got := Short(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}
