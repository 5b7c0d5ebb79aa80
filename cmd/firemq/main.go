// Command firemq is the FireMQ broker and the tools to work with it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/firemq/firemq/internal/misspelt"
	"github.com/firemq/firemq/internal/rabbitmqctl"
	"github.com/firemq/firemq/server"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// started is the zero of "ready in N ms".
var started = time.Now()

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1 // it was tried and failed
	exitUsage   = 2 // the command line or environment makes no sense
)

func main() {
	if name := toolName(os.Args[0]); name != "" {
		os.Exit(runTool(context.Background(), standard(), name, os.Args[1:]))
	}
	os.Exit(run(context.Background(), standard(), os.Args[1:]))
}

func standard() terminal {
	return terminal{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.LookupEnv, environ: os.Environ, exit: os.Exit}
}

// terminal is what a command sees of the process, so that tests can stand in for it.
type terminal struct {
	in       io.Reader
	out, err io.Writer
	env      func(string) (string, bool)
	environ  func() []string  // all of env; nil: nothing
	exit     func(status int) // at once, for the second signal
}

// isTerminal reports whether a person sees what is written to, or types what is read from, f.
func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// terminalWidth is how many columns the terminal f has; 0: it does not say.
func terminalWidth(f any) int {
	file, ok := f.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// color reports whether out may be coloured; NO_COLOR and TERM=dumb say no, as everywhere.
func (t terminal) color() bool {
	no, _ := t.env("NO_COLOR")
	kind, _ := t.env("TERM")
	return no == "" && kind != "dumb" && isTerminal(t.out)
}

// run carries out one command line and returns the exit status. An error is one line on t.err.
func run(ctx context.Context, t terminal, args []string) int {
	if len(args) > 0 && slices.Contains(rabbitmqctl.Tools, args[0]) {
		return runTool(ctx, t, args[0], args[1:]) // all of its line is RabbitMQ's: cobra must not read it
	}
	root := newRoot(t)
	root.SetArgs(append([]string{}, args...)) // nil would be the process's own arguments
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if p, ok := errors.AsType[*problems](err); ok {
		fmt.Fprintln(t.err, p)
		return exitFailure
	}
	fmt.Fprintf(t.err, "firemq: %s\n", oneLine(err))
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	return exitFailure
}

func newRoot(t terminal) *cobra.Command {
	root := newServe(t)
	root.Version = server.Version
	root.SetVersionTemplate("FireMQ {{.Version}}\n")
	root.SetIn(t.in)
	root.SetOut(t.out)
	root.SetErr(t.err)
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.AddCommand(newInit(t), newConfig(t), newPub(t), newSub(t), newCtl(t), newBench(t), newDoctor(t))
	root.AddCommand(newTools(t)...)
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		c.Args = noArgs
		c.RunE = func(c *cobra.Command, _ []string) error {
			return usagef("name a shell: bash, zsh, fish or powershell: see %s --help", c.CommandPath())
		}
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if e, ok := errors.AsType[*pflag.NotExistError](err); ok && e.GetSpecifiedShortnames() == "" {
			var names []string
			c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
			if meant, ok := misspelt.Meant(e.GetSpecifiedName(), names); ok {
				return usagef("%s: did you mean --%s? see %s --help", err, meant, c.CommandPath())
			}
		}
		if text, _, ok := strings.Cut(err.Error(), "strconv."); ok {
			return usagef("%sno number that fits: see %s --help", text, c.CommandPath())
		}
		return usagef("%s: see %s --help", err, c.CommandPath())
	})
	return root
}

// usageError is a command line that makes no sense: exit status 2.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// oneLine keeps an error's text on one line, whatever it quotes.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// noArgs, and argsBetween for commands with arguments, count the arguments.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, s := range c.Commands() {
		names = append(names, s.Name())
	}
	if meant, ok := misspelt.Meant(args[0], names); ok {
		return usagef("unknown command %q: did you mean %s? see %s --help", args[0], meant, c.CommandPath())
	}
	return usagef("unknown command or argument %q: see %s --help", args[0], c.CommandPath())
}

func argsBetween(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		names := strings.Fields(c.Use)[1:]
		switch {
		case len(args) < least:
			return usagef("%s is missing: %s: see %s --help", strings.Trim(names[len(args)], "[]"), strings.Join(append([]string{c.CommandPath()}, names...), " "), c.CommandPath())
		case len(args) > most:
			return usagef("%q is one argument too many: %s: see %s --help", args[most], strings.Join(append([]string{c.CommandPath()}, names...), " "), c.CommandPath())
		}
		return nil
	}
}

// fromEnv sets every flag that the command line leaves out from its environment variable:
// FIREMQ_LOG_LEVEL for --log-level. An empty variable counts as not set, except for those flags in
// mayBeEmpty, to which it is a value.
func fromEnv(t terminal, flags *pflag.FlagSet, mayBeEmpty ...string) error {
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		name, ok := f.Annotations[envAnnotation]
		if !ok || f.Changed || failed != nil {
			return
		}
		value, ok := t.env(name[0])
		if !ok || value == "" && !slices.Contains(mayBeEmpty, f.Name) {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			failed = usagef("environment variable %s=%q is not a valid value for --%s (%s)", name[0], value, f.Name, f.Value.Type())
		}
	})
	return failed
}

const envAnnotation = "env"

// withEnv gives a flag its environment variable and mentions it in the help.
func withEnv(flags *pflag.FlagSet, flag string) {
	f := flags.Lookup(flag)
	name := "FIREMQ_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
	f.Annotations = map[string][]string{envAnnotation: {name}}
	f.Usage += " [" + name + "]"
}
