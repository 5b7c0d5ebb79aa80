package main

import (
	"bytes"
	"os"
	"testing"
)

func TestFileIsOfTheTable(t *testing.T) {
	want, err := render()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("firemq.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("firemq.json is out of date: run go generate ./deploy/grafana")
	}
}

func TestPanelsDoNotOverlap(t *testing.T) {
	taken := make(map[[2]int]any)
	for _, p := range dashboard(rows)["panels"].([]object) {
		at := p["gridPos"].(object)
		for x := range at["w"].(int) {
			for y := range at["h"].(int) {
				cell := [2]int{at["x"].(int) + x, at["y"].(int) + y}
				if cell[0] >= width {
					t.Errorf("%v is beyond the right edge", p["title"])
				}
				if other, ok := taken[cell]; ok {
					t.Fatalf("%v and %v overlap", p["title"], other)
				}
				taken[cell] = p["title"]
			}
		}
	}
}
