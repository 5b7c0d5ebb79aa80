package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/firemq/firemq/server"
	"github.com/spf13/cobra"
)

// errDamage ends doctor with status 1 when a directory is not whole.
var errDamage = errors.New("the journal is damaged")

func newDoctor(t terminal) *cobra.Command {
	var data string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check the machine, or the data directory of a stopped broker",
		Long: `Doctor reports the open-files limit, whether the default ports are free, and whether a broker is
running.

With --data it checks the data directory of a stopped broker instead: it reads all of the journal,
verifies every checksum, and prints segments, queues, live and dead bytes and every damage. It
changes nothing. The exit status is 1 if something is damaged. A segment that an earlier start found damaged and
moved aside is mentioned.`,
		Example: `  firemq doctor
  firemq doctor --data /var/lib/firemq`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if data == "" {
				return checkMachine(t)
			}
			in, err := server.Inspect(data)
			if err != nil {
				return err
			}
			return reportData(t, data, &in)
		},
	}
	c.Flags().StringVar(&data, "data", "", "data `directory` of a stopped broker to check")
	return c
}

// ports are the default listeners.
var ports = []struct{ name, port string }{{"AMQP 0-9-1", "5672"}, {"FireMQ protocol", "5673"}, {"HTTP", "15672"}}

func checkMachine(t terminal) error {
	fmt.Fprintf(t.out, "FireMQ %s\n\n", server.Version)
	if soft, hard, ok := fileLimit(); ok {
		advice := ""
		if hard < 65536 {
			advice = "; raise the hard limit to 65536 for many connections or large backlogs"
		}
		fmt.Fprintf(t.out, "Open files        soft limit %d, hard limit %d%s\n", soft, hard, advice)
	}
	for _, p := range ports {
		fmt.Fprintf(t.out, "Port %-12s %s: %s\n", p.port, p.name, portState(p.port))
	}
	fmt.Fprintf(t.out, "Broker            %s\n", runningBroker("127.0.0.1:5672"))
	return nil
}

// portState tells whether a listener could have the port now.
func portState(port string) string {
	l, err := net.Listen("tcp", ":"+port)
	switch {
	case err == nil:
		l.Close()
		return "free"
	case errors.Is(err, syscall.EADDRINUSE):
		return "in use"
	}
	return "cannot be bound: " + err.Error()
}

// runningBroker greets what listens at an address as an AMQP client does, and tells what answers.
func runningBroker(address string) string {
	const patience = 2 * time.Second
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return "none is running on the default AMQP port"
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	reply := make([]byte, 512)
	n := 0
	if _, err = c.Write([]byte("AMQP\x00\x00\x09\x01")); err == nil {
		n, _ = c.Read(reply)
	}
	switch reply = reply[:n]; {
	case bytes.Contains(reply, []byte("FireMQ")):
		return "FireMQ is running"
	case bytes.Contains(reply, []byte("RabbitMQ")):
		return "RabbitMQ is running"
	case bytes.HasPrefix(reply, []byte("AMQP")), n > 0 && reply[0] == 1:
		return "another AMQP broker is running"
	}
	return "what listens on the default AMQP port is not a broker"
}

func reportData(t terminal, dir string, in *server.Inspection) error {
	stopped := "shut down cleanly"
	if !in.Clean {
		stopped = "not shut down: it crashed or was killed"
	}
	fmt.Fprintf(t.out, "%s: the broker was %s\n\n", filepath.Clean(dir), stopped)
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	var size, live int64
	var aside []string
	fmt.Fprintln(w, "segment\tbytes\tused\tlive messages\tlive bytes\tdead bytes\t")
	for _, s := range in.Segments {
		if s.Aside {
			fmt.Fprintf(w, "%s\t%d\tmoved aside\t\t\t\t\n", s.File, s.Bytes)
			aside = append(aside, s.File)
			continue
		}
		if s.Damaged {
			fmt.Fprintf(w, "%s\t%d\tdamaged\t\t\t\t\n", s.File, s.Bytes)
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t\n", s.File, s.Bytes, s.Used, s.Live, s.LiveSize, max(s.Used-s.LiveSize, 0))
		size += s.Bytes
		live += s.LiveSize
	}
	fmt.Fprintf(w, "%d segments\t%d\t\t\t%d\t\t\n", len(in.Segments)-len(aside), size, live)
	w.Flush()
	fmt.Fprintln(t.out)
	messages := 0
	w = tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "vhost\tqueue\tmessages\tbytes")
	for _, q := range in.Queues {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\n", q.VHost, q.Name, q.Messages, q.Bytes)
		messages += q.Messages
	}
	w.Flush()
	fmt.Fprintf(t.out, "%s, %s; %s of %d bytes verified\n", count(len(in.Queues), "queue"), count(messages, "message"), count(int(in.Records), "record"), in.Bytes)
	if in.Torn > 0 {
		fmt.Fprintf(t.out, "%d bytes of an unfinished commit will be cut off; nothing in them was confirmed\n", in.Torn)
	}
	for _, file := range aside {
		fmt.Fprintf(t.out, "NOTE %s was damaged when the broker started, and moved aside: what only it had is lost; nothing reads it any more, keep or delete it\n",
			filepath.Join(dir, "journal", file))
	}
	if len(in.Damaged) == 0 {
		fmt.Fprintln(t.out, "No damage.")
		return nil
	}
	for _, d := range in.Damaged {
		fmt.Fprintf(t.out, "DAMAGE %s offset %d, %d bytes: %s\n", d.File, d.Offset, d.Bytes, d.Reason)
	}
	return errDamage
}
