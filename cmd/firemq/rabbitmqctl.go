package main

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/firemq/firemq/internal/rabbitmqctl"
	"github.com/firemq/firemq/server"
	"github.com/spf13/cobra"
)

// toolName is the one of RabbitMQ's tools that the binary is called as, by a link; "" if it is none.
func toolName(program string) string {
	name := strings.TrimSuffix(filepath.Base(program), ".exe")
	if slices.Contains(rabbitmqctl.Tools, name) {
		return name
	}
	return ""
}

// runTool carries out a command line of one of RabbitMQ's tools.
func runTool(ctx context.Context, t terminal, name string, args []string) int {
	ctx, stop := interruptible(ctx)
	defer stop()
	return rabbitmqctl.Run(ctx, rabbitmqctl.Terminal{In: t.in, Out: t.out, Err: t.err, Env: t.env, Version: server.Version}, name, args)
}

// newTools are the tools for the help; run carries them out before cobra sees their line.
func newTools(terminal) (list []*cobra.Command) {
	for _, name := range rabbitmqctl.Tools {
		list = append(list, &cobra.Command{
			Use: name + " COMMAND", Short: "Answer as RabbitMQ's " + name + " does, over the HTTP API", DisableFlagParsing: true,
			Run: func(*cobra.Command, []string) {},
			ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
				if len(args) > 0 {
					return nil, cobra.ShellCompDirectiveDefault
				}
				return rabbitmqctl.Commands(name), cobra.ShellCompDirectiveNoFileComp
			},
		})
	}
	return list
}
