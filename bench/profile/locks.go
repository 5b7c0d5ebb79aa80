package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
)

var (
	cyclesLine = regexp.MustCompile(`(?m)^cycles/second=(\d+)$`)
	recordLine = regexp.MustCompile(`^(\d+) \d+ @`)
	frameLine  = regexp.MustCompile(`^#\t0x[0-9a-f]+\t(\S+)\+0x[0-9a-f]+\t+(\S+):(\d+)`)
)

// waits are the seconds that goroutines have waited so far, by their stacks: a line for each frame, the innermost
// first, of function, file and line.
func waits(profile string) (map[string]float64, error) {
	var b bytes.Buffer
	if err := pprof.Lookup(profile).WriteTo(&b, 1); err != nil {
		return nil, err
	}
	return parseWaits(b.String())
}

func parseWaits(text string) (map[string]float64, error) {
	m := cyclesLine.FindStringSubmatch(text)
	if m == nil {
		return nil, errors.New("the profile has no cycles/second")
	}
	perSecond, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return nil, err
	}
	all := make(map[string]float64)
	cycles, stack := 0.0, ""
	flush := func() {
		if stack != "" {
			all[stack] += cycles / perSecond
		}
		cycles, stack = 0, ""
	}
	for line := range strings.Lines(text) {
		if m := recordLine.FindStringSubmatch(line); m != nil {
			flush()
			if cycles, err = strconv.ParseFloat(m[1], 64); err != nil {
				return nil, err
			}
		}
		if m := frameLine.FindStringSubmatch(line); m != nil {
			stack += m[1] + " " + m[2] + " " + m[3] + "\n"
		}
	}
	flush()
	return all, nil
}

// lock is what was waited for one lock.
type lock struct {
	name    string
	seconds float64
	at      map[string]float64 // of them, by who waited
}

// byLock sums the waits for mutexes up, the longest first.
func byLock(waits map[string]float64, from sources) []lock {
	locks := make(map[string]*lock)
	for stack, seconds := range waits {
		var who []string
		mutex, name := false, ""
		for frame := range strings.Lines(stack) {
			var function, file string
			var line int
			fmt.Sscan(frame, &function, &file, &line)
			function = function[strings.LastIndexByte(function, '/')+1:]
			if strings.HasPrefix(function, "sync.") || strings.HasPrefix(function, "runtime.") {
				mutex = mutex || strings.HasPrefix(function, "sync.(*Mutex)") || strings.HasPrefix(function, "sync.(*RWMutex)")
				continue
			}
			if who == nil {
				name = cmp.Or(from.lockAt(file, line), function)
			}
			if who = append(who, function); len(who) == 3 {
				break
			}
		}
		if !mutex || who == nil {
			continue
		}
		l := locks[name]
		if l == nil {
			l = &lock{name: name, at: make(map[string]float64)}
			locks[name] = l
		}
		l.seconds += seconds
		l.at[strings.Join(who, " < ")] += seconds
	}
	return slices.SortedFunc(func(yield func(lock) bool) {
		for _, l := range locks {
			if !yield(*l) {
				return
			}
		}
	}, func(a, b lock) int { return cmp.Or(cmp.Compare(b.seconds, a.seconds), cmp.Compare(a.name, b.name)) })
}

// report prints the locks that were waited for most, each with where.
func report(w io.Writer, load string, rate, cpu float64, locks []lock) {
	const most, places = 6, 3
	total := 0.0
	for _, l := range locks {
		total += l.seconds
	}
	fmt.Fprintf(w, "%s: %.0f delivered/s, %.2f s of CPU; goroutines waited for locks %.2f %% of that\n", load, rate, cpu, 100*total/cpu)
	for _, l := range locks[:min(most, len(locks))] {
		fmt.Fprintf(w, "  %6.3f %%  %s\n", 100*l.seconds/cpu, l.name)
		where := slices.SortedFunc(maps.Keys(l.at), func(a, b string) int { return cmp.Or(cmp.Compare(l.at[b], l.at[a]), cmp.Compare(a, b)) })
		for _, at := range where[:min(places, len(where))] {
			fmt.Fprintf(w, "           %6.3f %%  %s\n", 100*l.at[at]/cpu, at)
		}
	}
}

// sources knows the packages of source files, by their folder.
type sources map[string]*source

type source struct {
	files *token.FileSet
	asts  []*ast.File
	info  types.Info
}

// lockAt names the lock that a line takes by the field that it is, as loop.outbox.mu; empty if that cannot be told.
func (s sources) lockAt(file string, line int) (name string) {
	src := s.of(filepath.Dir(file))
	for _, f := range src.asts {
		if src.files.Position(f.Pos()).Filename != file {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if n == nil || name != "" || src.files.Position(n.Pos()).Line > line || src.files.Position(n.End()).Line < line {
				return false
			}
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !strings.HasSuffix(method.Sel.Name, "Lock") || src.files.Position(method.Sel.Pos()).Line != line {
				return true
			}
			if field, ok := method.X.(*ast.SelectorExpr); ok {
				if of := src.info.Selections[field]; of != nil {
					name = owner(of.Recv()) + "." + field.Sel.Name
				}
			}
			return true
		})
	}
	return name
}

// owner is a type by its package and name.
func owner(t types.Type) string {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	return types.TypeString(t, (*types.Package).Name)
}

// of parses a folder and finds out the types of what is in it; of other packages it needs to know nothing.
func (s sources) of(dir string) *source {
	if src := s[dir]; src != nil {
		return src
	}
	src := &source{files: token.NewFileSet(), info: types.Info{Selections: make(map[*ast.SelectorExpr]*types.Selection)}}
	s[dir] = src
	names, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	pkg := ""
	for _, name := range names {
		f, err := parser.ParseFile(src.files, name, nil, parser.SkipObjectResolution)
		if err != nil || strings.HasSuffix(name, "_test.go") {
			continue
		}
		pkg = f.Name.Name
		src.asts = append(src.asts, f)
	}
	config := types.Config{Importer: strangers{}, Error: func(error) {}}
	config.Check(pkg, src.files, src.asts, &src.info)
	return src
}

// strangers imports packages without anything in them.
type strangers struct{}

func (strangers) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, path[strings.LastIndexByte(path, '/')+1:])
	p.MarkComplete()
	return p, nil
}
