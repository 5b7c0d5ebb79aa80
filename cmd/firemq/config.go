package main

import (
	"fmt"

	"github.com/firemq/firemq/server"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addSettings adds a flag for every setting of the broker, --config and --dev.
func addSettings(flags *pflag.FlagSet) {
	flags.SortFlags = false
	for _, s := range server.Settings() {
		flags.Var(&settingFlag{text: s.Default, kind: s.Arg}, s.Flag, s.Help)
		f := flags.Lookup(s.Flag)
		f.Usage += " [" + s.Env() + "]"
		if s.Boolean() {
			f.NoOptDefVal = "true"
		}
	}
	flags.String("config", "", "settings `file` (default "+server.DefaultFile+" if there is one)")
	withEnv(flags, "config")
	flags.Bool("dev", false, "development: in memory, guest from any host, log level debug")
}

// settingFlag takes what is written; package server checks it, as it does what comes from elsewhere.
type settingFlag struct{ text, kind string }

func (f *settingFlag) String() string     { return f.text }
func (f *settingFlag) Set(s string) error { f.text = s; return nil }

// Type names the value in the help; pflag leaves the one of booleans out.
func (f *settingFlag) Type() string {
	if f.kind == "" {
		return "bool"
	}
	return f.kind
}

// resolveSettings reads flags, environment and file.
func resolveSettings(t terminal, flags *pflag.FlagSet) (*server.Config, error) {
	if err := fromEnv(t, flags); err != nil {
		return nil, err
	}
	from := server.Sources{Flags: make(map[string]string), Env: t.env}
	from.File, _ = flags.GetString("config")
	from.Dev, _ = flags.GetBool("dev")
	flags.Visit(func(f *pflag.Flag) {
		if v, ok := f.Value.(*settingFlag); ok {
			from.Flags[f.Name] = v.text
		}
	})
	c, err := server.Resolve(from)
	if err != nil {
		return nil, usagef("%s", oneLine(err))
	}
	return c, nil
}

func newConfig(t terminal) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check a settings file, or show the settings that count",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return usagef("check or show: see %s --help", c.CommandPath())
		},
	}
	c.AddCommand(newConfigCheck(t), newConfigShow(t))
	return c
}

func newConfigCheck(t terminal) *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a settings file, by default " + server.DefaultFile,
		Long: `Check reads a settings file as a start of the broker would, without environment and flags, and
says everything that is wrong with it, a line each, with the place. The exit status is 1 then.`,
		Args: argsBetween(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			file := server.DefaultFile
			if len(args) > 0 {
				file = args[0]
			}
			if err := server.CheckFile(file); err != nil {
				return &problems{err}
			}
			_, err := fmt.Fprintf(t.out, "%s is fine\n", file)
			return err
		},
	}
}

// problems is an error of several lines.
type problems struct{ error }

func newConfigShow(t terminal) *cobra.Command {
	c := &cobra.Command{
		Use:   "show",
		Short: "Show every setting, its value and where that comes from",
		Long: `Show prints the settings that a broker would have that is started now with the same flags and
environment in the same directory. Passwords that were set are hidden.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := resolveSettings(t, c.Flags())
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(t.out, config.Text())
			return err
		},
	}
	addSettings(c.Flags())
	return c
}
