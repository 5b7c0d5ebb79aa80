package main

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/firemq/firemq/mgmt/api"
)

func (x *ctl) diagnoseVerbs() []*cobra.Command {
	var patience time.Duration
	diagnose := x.verb("diagnose", "Say what is stuck or wrong, why, and what to do", func([]string) error {
		q := url.Values{"patience": {strconv.Itoa(int(patience.Seconds()))}}
		p, err := x.call("GET", api.Path("health", "report")+"?"+q.Encode(), nil)
		if err != nil {
			return err
		}
		if x.asJSON {
			return x.raw(p)
		}
		var r api.Report
		if err := api.Decode(p, &r); err != nil {
			return fmt.Errorf("the answer is not what a broker's API gives: %w", err)
		}
		return x.diagnosis(&r)
	})
	diagnose.Flags().Var(newSeconds(&patience, time.Minute), "patience", "how long something must have lasted to be reported")
	return []*cobra.Command{diagnose}
}

func (x *ctl) diagnosis(r *api.Report) error {
	if len(r.Findings) == 0 {
		return x.say("nothing is wrong")
	}
	for i, f := range r.Findings {
		if i > 0 {
			fmt.Fprintln(x.t.out)
		}
		object := f.Kind + " " + f.Name
		if f.VHost != "" && f.Kind != "connection" {
			object += " in vhost " + f.VHost
		}
		fmt.Fprintf(x.t.out, "%s  %s: %s\n", strings.ToUpper(f.Severity), printable(object), printable(f.Summary))
		fmt.Fprintf(x.t.out, "  why:  %s\n", printable(f.Cause))
		if _, err := fmt.Fprintf(x.t.out, "  do:   %s\n", printable(f.Action)); err != nil {
			return err
		}
	}
	if r.LeftOut > 0 {
		return x.say("\nand %d more", r.LeftOut)
	}
	return nil
}
