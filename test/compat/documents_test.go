package compat

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// documented are the programs in a page: blocks of the language that hold a whole program, each followed by a block of
// text with what it prints.
var documented = regexp.MustCompile("(?s)```(go|python)\n((?:package main|\"\"\").*?)```\n\n```text\n(.*?)```")

// Programs in the documents run as they are.
func TestDocuments(t *testing.T) {
	broker := brokertest.Shared(t)
	for page, programs := range map[string]int{"sdk-go.md": 4, "write-a-client.md": 1} {
		text, err := os.ReadFile(filepath.Join(brokertest.Root(), "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		found := documented.FindAllStringSubmatch(string(text), -1)
		if len(found) != programs {
			t.Errorf("%s has %d programs with their output, want %d", page, len(found), programs)
		}
		for i, m := range found {
			t.Run(fmt.Sprintf("%s/%d", page, i+1), func(t *testing.T) {
				program := filepath.Join(t.TempDir(), "program")
				source := program + map[string]string{"go": ".go", "python": ".py"}[m[1]]
				if err := os.WriteFile(source, []byte(m[2]), 0o600); err != nil {
					t.Fatal(err)
				}
				command := []string{program}
				if m[1] == "python" {
					command = []string{python(t), source}
				} else if out, err := runEnv(t, suiteLimit, nil, ".", "go", "build", "-o", program, source); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				env := []string{"FIREMQ_URL=" + broker.FireURL}
				out, err := runEnv(t, programLimit, env, ".", command[0], command[1:]...)
				if err != nil || out != m[3] {
					t.Errorf("%v, printed\n%s\nwant\n%s", err, out, m[3])
				}
			})
		}
	}
}
