// Command firemq-conformance checks an SDK of the FireMQ protocol: see docs/conformance.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/firemq/firemq/conformance"
)

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1 // a scenario failed, or none could be played
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run carries out one command line and returns the exit status.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	var o conformance.Options
	flags := flag.NewFlagSet("firemq-conformance run", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.StringVar(&o.Driver, "driver", "", "`command` of the driver")
	transports := flags.String("transport", "fire", "how the driver connects: a comma-separated `list` of "+strings.Join(conformance.Transports, ", "))
	flags.Func("only", "`name` of a scenario to run; may be repeated", func(s string) error {
		o.Only = append(o.Only, s)
		return nil
	})
	list := flags.Bool("list", false, "list the scenarios")
	flags.StringVar(&o.Broker, "broker", "", "the firemq binary, a `file`; default FIREMQ_BIN, or else it is built")
	verbose := flags.Bool("verbose", false, "print commands, replies and the driver's log")
	if len(args) == 0 || args[0] != "run" {
		fmt.Fprintln(errs, "usage: firemq-conformance run --driver command [flags]")
		flags.PrintDefaults()
		return exitUsage
	}
	if err := flags.Parse(args[1:]); err != nil {
		return exitUsage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(errs, "firemq-conformance: %q is no flag\n", flags.Arg(0))
		return exitUsage
	}
	if *list {
		conformance.List(out)
		return exitOK
	}
	o.Out, o.Transports = out, strings.Split(*transports, ",")
	if *verbose {
		o.Log = errs
	}
	result, err := conformance.Run(ctx, o)
	if err != nil {
		fmt.Fprintln(errs, "firemq-conformance:", err)
		return exitFailed
	}
	fmt.Fprintln(out, result)
	if result.Failed > 0 || result.Passed == 0 {
		return exitFailed
	}
	return exitOK
}
