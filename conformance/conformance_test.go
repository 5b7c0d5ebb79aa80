package conformance

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the scenarios to the document again")

// The document lists every scenario.
func TestDocument(t *testing.T) {
	const file, begin = "../docs/conformance.md", "<!-- written by: go test ./conformance -rewrite -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, got, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatalf("%s has no %q", file, begin)
	}
	want := "| scenario | checks |\n| --- | --- |\n"
	for _, s := range scenarios {
		want += fmt.Sprintf("| `%s` | %s |\n", s.name, s.checks)
	}
	if got == want {
		return
	}
	if !*rewrite {
		t.Fatalf("the scenarios in %s are not those of the runner: go test ./conformance -rewrite", file)
	}
	if err := os.WriteFile(file, []byte(before+begin+want), 0o644); err != nil {
		t.Fatal(err)
	}
}
