package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/firemq/firemq/server"
	"github.com/spf13/cobra"
)

func newInit(t terminal) *cobra.Command {
	return &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a settings file with every setting and its default",
		Long: `Init writes a settings file, by default ` + server.DefaultFile + ` in the working directory: every setting with its
default and what it does. It never overwrites a file.`,
		Args: argsBetween(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			name := server.DefaultFile
			if len(args) > 0 {
				name = args[0]
			}
			if err := writeNew(name, server.DefaultText()); err != nil {
				return err
			}
			start := "firemq"
			if filepath.Clean(name) != server.DefaultFile {
				start += " --config " + name
			}
			_, err := fmt.Fprintf(t.out, "%s is written: change what you need, and start the broker with %s\n", name, start)
			return err
		},
	}
}

// writeNew makes a file that only its owner reads, since passwords go into it. There is either the whole
// file afterwards or none.
func writeNew(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already and is never overwritten: name another file, or move it away", name)
	}
	if err != nil {
		return fmt.Errorf("write the settings file: %w", err)
	}
	_, err = f.WriteString(text)
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		os.Remove(name)
		return fmt.Errorf("write the settings file: %w", err)
	}
	return nil
}
