package tidy

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/firemq/firemq"

// source is one file of the repository.
type source struct {
	path string // from the repository's top, with slashes
	text []byte

	// Of a Go file, else nil.
	ast  *ast.File
	fset *token.FileSet
}

func (s *source) dir() string {
	if d := path.Dir(s.path); d != "." {
		return d
	}
	return "" // the root package
}

func (s *source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// report takes one finding; node is nil when it is about the file as a whole.
type report func(s *source, node ast.Node, format string, args ...any)

// rule is one check of all files together.
type rule struct {
	name  string
	check func(files []*source, found report)
}

// onGo makes a rule's check of one that looks at one Go file.
func onGo(check func(s *source, found report)) func([]*source, report) {
	return func(files []*source, found report) {
		for _, s := range files {
			if s.ast != nil {
				check(s, found)
			}
		}
	}
}

var rules = []rule{
	{"imports go down", onGo(importsGoDown)},
	{"modules have homes", onGo(modulesHaveHomes)},
	{"banned imports", onGo(bannedImports)},
	{"banned calls", onGo(bannedCalls)},
	{"panics are bugs", onGo(panicsAreBugs)},
	{"package names", onGo(packageNames)},
	{"package comments", packageComments},
	{"generated files", onGo(generatedFiles)},
	{"nothing of this machine", nothingOfThisMachine},
	{"links lead somewhere", linksLeadSomewhere},
	{"tests leave nothing behind", testsLeaveNothing},
}

func imported(s *source, each func(path string, node ast.Node)) {
	for _, spec := range s.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			panic("BUG: the parser let an import path through that is no string")
		}
		each(p, spec)
	}
}

func importsGoDown(s *source, found report) {
	dir := s.dir()
	allowed, known := arrows[dir]
	if s.isTest() {
		allowed = slices.Concat(allowed, testArrows[dir], []string{dir, "internal/leak"})
	} else if !known {
		found(s, s.ast.Name, "package %q is not in the table of arrows", dir)
		return
	}
	imported(s, func(p string, node ast.Node) {
		rest, ours := strings.CutPrefix(p, module)
		if !ours || rest != "" && rest[0] != '/' {
			return
		}
		if to := strings.TrimPrefix(rest, "/"); !slices.Contains(allowed, to) {
			found(s, node, "package %q may not import %q", dir, to)
		}
	})
}

func modulesHaveHomes(s *source, found report) {
	within := func(p, mod string) bool { return p == mod || strings.HasPrefix(p, mod+"/") }
	imported(s, func(p string, node ast.Node) {
		if first, _, _ := strings.Cut(p, "/"); !strings.Contains(first, ".") || within(p, module) {
			return // the standard library, or ours
		}
		if s.isTest() && slices.ContainsFunc(testModules, func(mod string) bool { return within(p, mod) }) {
			return
		}
		for mod, dirs := range homes {
			if within(p, mod) {
				if !slices.Contains(dirs, s.dir()) {
					found(s, node, "%s has its home in %v", mod, dirs)
				}
				return
			}
		}
		found(s, node, "%s is not in the table of modules", p)
	})
}

func bannedImports(s *source, found report) {
	imported(s, func(p string, node ast.Node) {
		switch p {
		case "log":
			if !strings.HasPrefix(s.path, "examples/") && s.dir() != "frames/amqp/gen" {
				found(s, node, "log with log/slog")
			}
		case "encoding/gob":
			found(s, node, "encoding/gob is no format that others can read")
		case "reflect":
			// loop reaches into gnet's event loop, text prints any method, json.go writes any of the API's types.
			if !s.isTest() && s.dir() != "loop" && s.dir() != "frames/amqp/text" && s.path != "mgmt/json.go" {
				found(s, node, "reflect hides from the reader what is called")
			}
		}
	})
}

// calls gives every call of the form pkg.Func of a file, with the import path of pkg.
func calls(s *source, each func(pkg, name string, node ast.Node)) {
	names := make(map[string]string)
	imported(s, func(p string, node ast.Node) {
		name := path.Base(p)
		if n := node.(*ast.ImportSpec).Name; n != nil {
			name = n.Name
		}
		names[name] = p
	})
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && names[x.Name] != "" {
				each(names[x.Name], sel.Sel.Name, sel)
			}
		}
		return true
	})
}

// bubbles are the calls of synctest.Test in a file: time in them is virtual.
func bubbles(s *source) []ast.Node {
	var in []ast.Node
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && isIdent(f.X, "synctest") && f.Sel.Name == "Test" {
				in = append(in, call)
			}
		}
		return true
	})
	return in
}

func bannedCalls(s *source, found report) {
	program := s.ast.Name.Name == "main"
	virtual := bubbles(s)
	calls(s, func(pkg, name string, node ast.Node) {
		switch {
		case pkg == "time" && name == "Sleep" && s.isTest():
			if slices.ContainsFunc(virtual, func(b ast.Node) bool { return b.Pos() <= node.Pos() && node.End() <= b.End() }) {
				return
			}
			found(s, node, "a test waits for a signal or polls a condition, it doesn't sleep")
		case pkg == "fmt" && strings.HasPrefix(name, "Print") && !program && !s.isTest():
			found(s, node, "only a program prints")
		case pkg == "os" && name == "Exit" && !program && !s.isTest():
			found(s, node, "only a program exits")
		}
	})
}

// panicsAreBugs wants a panic's argument to begin with "BUG:", as a literal, the left end of a
// concatenation, or the format of a fmt.Sprintf or fmt.Errorf. What was recovered may go on.
func panicsAreBugs(s *source, found report) {
	if s.isTest() {
		return
	}
	recovered := make(map[string]bool) // variables set to recover()
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if set, ok := n.(*ast.AssignStmt); ok && len(set.Lhs) == 1 && len(set.Rhs) == 1 {
			call, isCall := set.Rhs[0].(*ast.CallExpr)
			name, isName := set.Lhs[0].(*ast.Ident)
			if isCall && isName && isIdent(call.Fun, "recover") {
				recovered[name.Name] = true
			}
		}
		return true
	})
	ast.Inspect(s.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if !isIdent(call.Fun, "panic") || len(call.Args) != 1 {
			return true
		}
		again, ok := call.Args[0].(*ast.Ident)
		if !(ok && recovered[again.Name]) && !strings.HasPrefix(leftmost(call.Args[0]), "BUG:") {
			found(s, call, `a panic is a bug and says so: "BUG: ..."`)
		}
		return true
	})
}

func isIdent(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// leftmost is the string that an expression begins with, "" when it is not known.
func leftmost(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		v, _ := strconv.Unquote(e.Value)
		return v
	case *ast.BinaryExpr:
		return leftmost(e.X)
	case *ast.ParenExpr:
		return leftmost(e.X)
	case *ast.CallExpr:
		if f, ok := e.Fun.(*ast.SelectorExpr); ok && len(e.Args) > 0 && (f.Sel.Name == "Sprintf" || f.Sel.Name == "Errorf" || f.Sel.Name == "Sprint") {
			return leftmost(e.Args[0])
		}
	}
	return ""
}

func packageNames(s *source, found report) {
	switch name := strings.TrimSuffix(s.ast.Name.Name, "_test"); name {
	case "util", "utils", "common", "helper", "helpers", "misc", "manager", "data", "info":
		found(s, s.ast.Name, "package name %q says nothing", name)
	}
}

func packageComments(files []*source, found report) {
	first := make(map[string]*source)
	commented := make(map[string]bool)
	for _, s := range files {
		if s.ast == nil {
			continue
		}
		// The tests of a package count only where there is nothing else.
		if f := first[s.dir()]; f == nil || f.isTest() && !s.isTest() {
			first[s.dir()] = s
		}
		commented[s.dir()] = commented[s.dir()] || s.ast.Doc != nil && strings.TrimSpace(s.ast.Doc.Text()) != ""
	}
	for dir, s := range first {
		if !commented[dir] {
			found(s, s.ast.Name, "package %s has no package comment", s.ast.Name.Name)
		}
	}
}

func generatedFiles(s *source, found report) {
	named := strings.HasSuffix(s.path, "_gen.go") || strings.HasSuffix(s.path, "_gen_test.go")
	switch generated := ast.IsGenerated(s.ast) || generatedAlike(s.ast); {
	case named && !generated:
		found(s, s.ast.Name, "a generated file carries the line // Code generated ... DO NOT EDIT.")
	case generated && !named:
		found(s, s.ast.Name, "a generated file is named *_gen.go or *_gen_test.go")
	}
}

// msgp closes its line without the full stop that ast.IsGenerated wants.
var generatedLine = regexp.MustCompile(`^// Code generated .* DO NOT EDIT\.?$`)

func generatedAlike(f *ast.File) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if c.Pos() < f.Package && generatedLine.MatchString(c.Text) {
				return true
			}
		}
	}
	return false
}

// Each pattern is spelt so that it doesn't match itself.
var machineNames = regexp.MustCompile(`(?m)(?:^|[\s"'(=:` + "`" + `])/(?:work|farm)/|registry\.npmjs[.]org|pypi[.]org|pythonhosted[.]org|(?:proxy|sum)\.golang[.]org|index\.crates[.]io|repo1?\.maven[.]|deb\.debian[.]org`)

func nothingOfThisMachine(files []*source, found report) {
	for _, s := range files {
		if bytes.IndexByte(s.text, 0) >= 0 {
			continue // not text
		}
		for _, m := range machineNames.FindAllIndex(s.text, -1) {
			name := bytes.TrimSpace(s.text[m[0]:m[1]])
			line := 1 + bytes.Count(s.text[:m[1]], []byte("\n"))
			found(s, nil, "line %d names %q, which is of one machine only", line, name)
		}
	}
}

var markdownLink = regexp.MustCompile(`\]\(([^)\s#]+)(?:#[^)]*)?\)`)

// linksLeadSomewhere follows the relative links of Markdown files.
func linksLeadSomewhere(files []*source, found report) {
	there := map[string]bool{".": true}
	for _, s := range files {
		for p := s.path; p != "."; p = path.Dir(p) {
			there[p] = true
		}
	}
	for _, s := range files {
		if path.Ext(s.path) != ".md" {
			continue
		}
		for _, m := range markdownLink.FindAllSubmatch(s.text, -1) {
			target := string(m[1])
			if !strings.Contains(target, "://") && !there[path.Join(path.Dir(s.path), target)] {
				found(s, nil, "the link to %s leads nowhere", target)
			}
		}
	}
}

// testsLeaveNothing wants a TestMain that asks package leak, itself or through brokertest, of every package whose tests
// may start goroutines: there is a go statement in it or in what it imports, or its tests import one with such.
func testsLeaveNothing(files []*source, found report) {
	type pkg struct {
		starts  bool     // has a go statement
		imports []string // folders of this module
		test    *source  // any of its tests
		asks    bool     // package leak
	}
	packages, tests := make(map[string]*pkg), make(map[string]*pkg)
	for _, s := range files {
		if s.ast == nil {
			continue
		}
		in := packages
		if s.isTest() {
			in = tests
		}
		p := in[s.dir()]
		if p == nil {
			p = &pkg{imports: []string{s.dir()}, test: s}
			in[s.dir()] = p
		}
		imported(s, func(path string, _ ast.Node) {
			if rest, ours := strings.CutPrefix(path, module); ours && (rest == "" || rest[0] == '/') {
				p.imports = append(p.imports, strings.TrimPrefix(rest, "/"))
			}
		})
		ast.Inspect(s.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				p.starts = true
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok {
					p.starts = p.starts || f.Sel.Name == "Go" // of a sync.WaitGroup
					p.asks = p.asks || f.Sel.Name == "Main" && (isIdent(f.X, "leak") || isIdent(f.X, "brokertest"))
				}
				p.asks = p.asks || isIdent(n.Fun, "Main") // brokertest's own
			}
			return true
		})
	}
	for dir, p := range tests {
		var starts func(p *pkg, seen map[string]bool) bool
		starts = func(p *pkg, seen map[string]bool) bool {
			return p.starts || slices.ContainsFunc(p.imports, func(to string) bool {
				next := packages[to]
				if next == nil || seen[to] {
					return false
				}
				seen[to] = true
				return starts(next, seen)
			})
		}
		if !p.asks && starts(p, make(map[string]bool)) {
			found(p.test, p.test.ast.Name, "the tests of package %q start goroutines, and no TestMain calls leak.Main", dir)
		}
	}
}

// finding is one broken rule in one place.
type finding struct {
	rule, place, text string
}

func (f finding) String() string { return fmt.Sprintf("%s: %s (%s)", f.place, f.text, f.rule) }

// apply runs rules on files.
func apply(rules []rule, files []*source) []finding {
	var findings []finding
	for _, r := range rules {
		r.check(files, func(s *source, node ast.Node, format string, args ...any) {
			place := s.path
			if node != nil {
				place = fmt.Sprintf("%s:%d", s.path, s.fset.Position(node.Pos()).Line)
			}
			findings = append(findings, finding{r.name, place, fmt.Sprintf(format, args...)})
		})
	}
	return findings
}
