package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/firemq/firemq/mgmt/api"
)

func (x *ctl) userVerbs() []*cobra.Command {
	var tags, configure, write, read string
	// user is a user as it is, to be put back with one thing changed.
	user := func(name string) (map[string]any, error) {
		p, err := x.call("GET", api.Path("users", name), nil)
		if err != nil {
			return nil, err
		}
		var u map[string]any
		if err := api.Decode(p, &u); err != nil {
			return nil, fmt.Errorf("the answer is not what a broker's API gives: %w", err)
		}
		return u, nil
	}
	addUser := x.verb("add-user NAME [PASSWORD]", "Add a user; without PASSWORD it is read from standard input", func(a []string) error {
		if _, err := user(a[0]); err == nil {
			return fmt.Errorf("there is a user %s already: see firemq ctl change-password and set-tags", printable(a[0]))
		} else if r, ok := errors.AsType[*refusal](err); !ok || r.status != http.StatusNotFound {
			return err
		}
		password, err := x.password(a[1:])
		if err != nil {
			return err
		}
		x.warnOfTags(tags)
		return x.change("PUT", api.Path("users", a[0]), map[string]any{"password": password, "tags": tags}, "user %s added", printable(a[0]))
	})
	addUser.Flags().StringVar(&tags, "tags", "", "administrator, monitoring, policymaker, management; with commas")
	changePassword := x.verb("change-password USER [PASSWORD]", "Change a user's password", func(a []string) error {
		u, err := user(a[0])
		if err != nil {
			return err
		}
		password, err := x.password(a[1:])
		if err != nil {
			return err
		}
		delete(u, "password_hash")
		delete(u, "hashing_algorithm")
		u["password"] = password
		return x.change("PUT", api.Path("users", a[0]), u, "password of %s changed", printable(a[0]))
	})
	setTags := x.verb("set-tags USER [TAGS]", "Replace a user's tags; with commas", func(a []string) error {
		u, err := user(a[0])
		if err != nil {
			return err
		}
		u["tags"] = strings.Join(a[1:], "")
		x.warnOfTags(strings.Join(a[1:], ""))
		return x.change("PUT", api.Path("users", a[0]), u, "tags of %s set", printable(a[0]))
	})
	deleteUser := x.verb("delete-user USER", "Delete a user and close its connections", func(a []string) error {
		return x.change("DELETE", api.Path("users", a[0]), nil, "user %s deleted", printable(a[0]))
	})
	setPermissions := x.verb("set-permissions USER", "Set what a user may do in a vhost; patterns left out allow everything", func(a []string) error {
		return x.change("PUT", api.Path("permissions", x.vhost, a[0]), map[string]any{"configure": configure, "write": write, "read": read},
			"permissions of %s in %s set", printable(a[0]), printable(x.vhost))
	})
	setPermissions.Flags().StringVar(&configure, "configure", ".*", "pattern of names that it may declare and delete")
	setPermissions.Flags().StringVar(&write, "write", ".*", "pattern of names that it may publish and bind to")
	setPermissions.Flags().StringVar(&read, "read", ".*", "pattern of names that it may consume and bind from")
	clearPermissions := x.verb("clear-permissions USER", "Take a user's permissions in a vhost away", func(a []string) error {
		return x.change("DELETE", api.Path("permissions", x.vhost, a[0]), nil, "permissions of %s in %s cleared", printable(a[0]), printable(x.vhost))
	})
	return []*cobra.Command{addUser, changePassword, setTags, deleteUser, setPermissions, clearPermissions}
}

// knownTags are those that mean something.
var knownTags = []string{"administrator", "monitoring", "policymaker", "management", "impersonator"}

// warnOfTags says which tags give no rights: any are taken, for programs that look at them.
func (x *ctl) warnOfTags(tags string) {
	for tag := range strings.SplitSeq(tags, ",") {
		if tag = strings.TrimSpace(tag); tag != "" && !slices.Contains(knownTags, tag) {
			fmt.Fprintf(x.t.err, "warning: the tag %s gives no rights: %s do\n", printable(tag), strings.Join(knownTags, ", "))
		}
	}
}

// password is the argument, or what is typed, unseen on a terminal, or the first line of standard input.
func (x *ctl) password(args []string) (password string, err error) {
	defer func() {
		if err == nil && password == "" {
			err = usagef("the password is empty: nobody could log in with it")
		}
	}()
	if len(args) > 0 {
		return args[0], nil
	}
	if f, ok := x.t.in.(*os.File); ok && isTerminal(f) {
		fmt.Fprint(x.t.err, "Password: ")
		p, err := term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(x.t.err)
		if err != nil {
			return "", fmt.Errorf("read the password: %w", err)
		}
		return string(p), nil
	}
	p, err := io.ReadAll(io.LimitReader(x.t.in, 4<<10))
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	line, _, _ := strings.Cut(string(p), "\n")
	return strings.TrimSuffix(line, "\r"), nil
}
