package tidy

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func parse(t *testing.T, path, text string) *source {
	t.Helper()
	s := &source{path: path, text: []byte(text)}
	if strings.HasSuffix(path, ".go") {
		s.fset = token.NewFileSet()
		f, err := parser.ParseFile(s.fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		s.ast = f
	}
	return s
}

// repository reads every file that git would track.
func repository(t *testing.T) []*source {
	t.Helper()
	root := filepath.Join("..", "..")
	var files []*source
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch d.Name() {
			case ".git", ".cache", "node_modules", "dist", "__pycache__", "firemq-data":
				return fs.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if rel == "firemq" || rel == ".git" || strings.HasSuffix(rel, ".test") || strings.HasSuffix(rel, ".prof") || strings.HasSuffix(rel, ".out") || !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		files = append(files, parse(t, rel, string(text)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestRepository(t *testing.T) {
	files := repository(t)
	if !slices.ContainsFunc(files, func(s *source) bool { return s.path == "go.mod" }) {
		t.Fatalf("%d files, but no go.mod: the wrong folder was read", len(files))
	}
	for _, f := range apply(rules, files) {
		t.Error(f)
	}
}

// Every line of the tables names a package that is there, so that they don't outlive what they allow.
func TestTablesAreCurrent(t *testing.T) {
	dirs := make(map[string]bool)
	used := make(map[string]bool)
	for _, s := range repository(t) {
		if s.ast != nil {
			dirs[s.dir()] = true
		}
		if s.path == "go.mod" {
			for mod := range homes {
				used[mod] = strings.Contains(string(s.text), mod+" ")
			}
		}
	}
	for dir := range arrows {
		if !dirs[dir] {
			t.Errorf("arrows has a line for %q, which is no package", dir)
		}
	}
	for dir := range testArrows {
		if !dirs[dir] {
			t.Errorf("testArrows has a line for %q, which is no package", dir)
		}
	}
	for mod, in := range homes {
		if !used[mod] {
			t.Errorf("homes has a line for %s, which go.mod doesn't require", mod)
		}
		for _, dir := range in {
			if !dirs[dir] {
				t.Errorf("homes has %s for %s, which is no package", dir, mod)
			}
		}
	}
}

// An arrow up makes a cycle sooner or later, which the compiler refuses; one in the table alone it
// wouldn't see.
func TestArrowsHaveNoCycle(t *testing.T) {
	const busy, done = 1, 2
	state := make(map[string]int)
	var visit func(dir string, path []string)
	visit = func(dir string, path []string) {
		switch path = append(path, dir); state[dir] {
		case busy:
			t.Fatalf("the arrows make a cycle: %v", path)
		case done:
			return
		}
		state[dir] = busy
		for _, to := range arrows[dir] {
			visit(to, path)
		}
		state[dir] = done
	}
	for dir := range arrows {
		visit(dir, nil)
	}
}

// Every rule finds what it is for, and lets alone what is right.
func TestRulesCanFail(t *testing.T) {
	const doc = "// Package p is here.\n"
	proven := make(map[string]bool)
	for _, c := range []struct {
		rule string
		path string
		text string
		want string // part of the only finding, "" for none
	}{
		{"imports go down", "pool/a.go", `package pool; import "github.com/firemq/firemq/broker"`, `"pool" may not import "broker"`},
		{"imports go down", "broker/a.go", `package broker; import "github.com/firemq/firemq/frames/amqp"`, `"broker" may not import "frames/amqp"`},
		{"imports go down", "loop/a.go", `package loop; import _ "github.com/firemq/firemq"`, `"loop" may not import ""`},
		{"imports go down", "broker/a.go", `package broker; import "github.com/firemq/firemq/route"`, ""},
		{"imports go down", "nowhere/a.go", `package nowhere`, "not in the table"},
		{"imports go down", "frames/amqp/a_test.go", `package amqp; import "github.com/firemq/firemq/frames/amqp/text"`, ""},
		{"imports go down", "frames/amqp/a.go", `package amqp; import "github.com/firemq/firemq/frames/amqp/text"`, "may not import"},
		{"imports go down", "pool/a_test.go", `package pool; import "github.com/firemq/firemq/broker"`, "may not import"},

		{"modules have homes", "broker/a.go", `package broker; import "github.com/panjf2000/gnet/v2"`, "has its home in [loop]"},
		{"modules have homes", "loop/a.go", `package loop; import "github.com/panjf2000/gnet/v2/pkg/netpoll"`, ""},
		{"modules have homes", "loop/a.go", `package loop; import "example.org/new"`, "not in the table of modules"},
		{"modules have homes", "loop/a.go", `package loop; import "pgregory.net/rapid"`, "not in the table of modules"},
		{"modules have homes", "loop/a_test.go", `package loop; import "pgregory.net/rapid"`, ""},

		{"banned imports", "server/a.go", `package server; import "log"`, "log/slog"},
		{"banned imports", "examples/go/hello/a.go", `package main; import "log"`, ""},
		{"banned imports", "journal/a.go", `package journal; import "encoding/gob"`, "gob"},
		{"banned imports", "route/a.go", `package route; import "reflect"`, "reflect"},
		{"banned imports", "route/a_test.go", `package route; import "reflect"`, ""},

		{"banned calls", "route/a_test.go", `package route; import "time"; func f() { time.Sleep(1) }`, "doesn't sleep"},
		{"banned calls", "route/a_test.go", `package route; import clock "time"; func f() { clock.Sleep(1) }`, "doesn't sleep"},
		{"banned calls", "route/a_test.go", `package route; import "time"; var f = time.Sleep`, "doesn't sleep"},
		{"banned calls", "route/a_test.go", `package route; import ("testing/synctest"; "time"); func f() { synctest.Test(nil, func() { time.Sleep(1) }) }`, ""},
		{"banned calls", "route/a_test.go", `package route; import ("testing/synctest"; "time"); func f() { synctest.Test(nil, nil); time.Sleep(1) }`, "doesn't sleep"},
		{"banned calls", "route/a.go", `package route; import "fmt"; func f() { fmt.Println() }`, "only a program prints"},
		{"banned calls", "cmd/firemq/a.go", `package main; import "fmt"; func f() { fmt.Println() }`, ""},
		{"banned calls", "route/a.go", `package route; import "fmt"; func f() string { return fmt.Sprint() }`, ""},
		{"banned calls", "server/a.go", `package server; import "os"; func f() { os.Exit(1) }`, "only a program exits"},

		{"panics are bugs", "pool/a.go", `package pool; func f() { panic("stub") }`, "BUG"},
		{"panics are bugs", "pool/a.go", `package pool; func f(err error) { panic(err) }`, "BUG"},
		{"panics are bugs", "pool/a.go", `package pool; func f() { panic("BUG: twice released") }`, ""},
		{"panics are bugs", "pool/a.go", `package pool; func f(s string) { panic("BUG: " + s) }`, ""},
		{"panics are bugs", "pool/a.go", `package pool; import "fmt"; func f() { panic(fmt.Sprintf("BUG: %d", 1)) }`, ""},
		{"panics are bugs", "pool/a.go", `package pool; func f() { if p := recover(); p != nil { panic(p) } }`, ""},
		{"panics are bugs", "pool/a_test.go", `package pool; func f() { panic("stub") }`, ""},

		{"package names", "broker/util/a.go", `package util`, `"util" says nothing`},
		{"package names", "broker/helpers/a_test.go", `package helpers_test`, `"helpers" says nothing`},
		{"package names", "broker/auth/a.go", `package auth`, ""},

		{"package comments", "pool/a.go", `package pool`, "no package comment"},
		{"package comments", "pool/a.go", doc + `package pool`, ""},
		{"package comments", "pool/a.go", doc + "\npackage pool", "no package comment"},

		{"generated files", "frames/a_gen.go", `package frames`, "carries the line"},
		{"generated files", "frames/a.go", "// Code generated by x; DO NOT EDIT.\n\npackage frames", "is named"},
		{"generated files", "frames/a_gen.go", "// Code generated by x DO NOT EDIT.\n\npackage frames", ""},

		{"nothing of this machine", "docs/a.md", "see /wor" + "k/main/README", "line 1"},
		{"nothing of this machine", "docs/a.md", "\n\"/far" + "m/x\"", "line 2"},
		{"nothing of this machine", "docs/a.md", "https://registry.npmjs" + ".org/amqplib", "line 1"},
		{"nothing of this machine", "docs/a.md", "https://example.org/wor" + "k/x", ""},
		{"nothing of this machine", "docs/a.bin", "\x00/wor" + "k/x", ""},

		{"links lead somewhere", "docs/a.md", "[b](../b.md)", "../b.md leads nowhere"},
		{"links lead somewhere", "docs/a.md", "[itself](a.md#part) [the folder](../docs) [elsewhere](https://example.org)", ""},

		{"tests leave nothing behind", "route/a_test.go", `package route; func f() { go f() }`, "no TestMain calls leak.Main"},
		{"tests leave nothing behind", "route/a_test.go", `package route; func f() { wg.Go(f) }`, "no TestMain calls leak.Main"},
		{"tests leave nothing behind", "route/a_test.go", `package route; func f() { go f() }; func TestMain(m *testing.M) { os.Exit(leak.Main(m.Run)) }`, ""},
		{"tests leave nothing behind", "route/a_test.go", `package route; func f() { f() }`, ""},
		{"tests leave nothing behind", "route/a.go", `package route; func f() { go f() }`, ""},
	} {
		i := slices.IndexFunc(rules, func(r rule) bool { return r.name == c.rule })
		if i < 0 {
			t.Fatalf("no rule is named %q", c.rule)
		}
		proven[c.rule] = proven[c.rule] || c.want != ""
		findings := apply(rules[i:i+1], []*source{parse(t, c.path, c.text)})
		switch {
		case c.want == "" && len(findings) > 0:
			t.Errorf("%s: %s\n%s\nfound %v, want nothing", c.rule, c.path, c.text, findings)
		case c.want != "" && (len(findings) != 1 || !strings.Contains(findings[0].text, c.want)):
			t.Errorf("%s: %s\n%s\nfound %v, want one with %q", c.rule, c.path, c.text, findings, c.want)
		}
	}
	for _, r := range rules {
		if !proven[r.name] {
			t.Errorf("no case proves that rule %q can fail", r.name)
		}
	}
}
