package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// What the document says of figures in words is made here too, so that it cannot say anything else than the figures.

// headline compares FireMQ with RabbitMQ by what a message costs.
func headline(r *report, _ settings) (string, error) {
	var rabbit string
	for _, b := range r.brokers {
		if strings.HasPrefix(b, "rabbitmq") && !strings.HasSuffix(b, "-quorum") {
			rabbit = b // the newest is the last one
		}
	}
	var b strings.Builder
	for _, load := range []string{"transient", "persistent"} {
		mine, ok := r.get(load, "firemq")
		theirs, ok2 := r.get(load, rabbit)
		if !ok || !ok2 || mine.CPU == 0 {
			return "", nil
		}
		fmt.Fprintf(&b, "- %s: FireMQ takes %.2f us of CPU for a message, %s %.1f: %.0f times as much.\n", rowName(load, r.machine), mine.CPU, r.title[rabbit], theirs.CPU, theirs.CPU/mine.CPU)
	}
	return b.String(), nil
}

// quantity is something that is measured of every broker in some scenarios.
type quantity struct {
	name      string
	of        func(result) float64 // 0: not measured
	more      bool                 // more is better
	show      func(float64) string
	scenarios []string
}

func microseconds(v float64) string { return fmt.Sprintf("%.2f us", v) }
func milliseconds(v float64) string { return fmt.Sprintf("%.2f ms", v) }
func mebi(v float64) string         { return fmt.Sprintf("%.0f MiB", v) }
func perSecond(v float64) string    { return thousands(v) + "/s" }

var quantities = []quantity{
	{"CPU per message", func(r result) float64 { return r.CPU }, false, microseconds, append(slices.Clone(loads), "fill", "drain")},
	{"delivered", func(r result) float64 { return r.Delivered }, true, perSecond, append(slices.Clone(loads), "drain")},
	{"filled", func(r result) float64 { return r.Published }, true, perSecond, []string{"fill"}},
	{"peak memory", func(r result) float64 { return r.RSS }, false, mebi, append(slices.Clone(loads), "idle", "fill")},
	{"delivery p50", deliveryP50, false, milliseconds, latencies},
	{"delivery p99", deliveryP99, false, milliseconds, latencies},
	{"confirm p50", confirmP50, false, milliseconds, latencies},
	{"confirm p99", confirmP99, false, milliseconds, latencies},
	{"ready", func(r result) float64 { return r.Seconds }, false, func(v float64) string { return fmt.Sprintf("%.3f s", v) },
		[]string{"idle", "ready-after-stop", "ready-after-kill"}},
}

// told is the least difference, as a factor, that is told: less is not more than the machine's own.
const told = 1.05

// better is a figure in which another broker is better than FireMQ.
type better struct {
	scenario, broker string
	quantity         *quantity
	mine, theirs     float64
}

// betters are all of them.
func (r *report) betters() (all []better) {
	for i := range quantities {
		q := &quantities[i]
		for _, s := range q.scenarios {
			mine, ok := r.get(s, "firemq")
			if !ok || q.of(mine) == 0 {
				continue
			}
			for _, broker := range r.brokers {
				theirs, ok := r.get(s, broker)
				if !ok || strings.HasPrefix(broker, "firemq") || q.of(theirs) == 0 {
					continue
				}
				a, b := q.of(mine), q.of(theirs)
				if q.more && b > told*a || !q.more && a > told*b {
					all = append(all, better{s, broker, q, a, b})
				}
			}
		}
	}
	return all
}

const (
	mapsFiles     = "what is on its way to disk is in files that it maps; FireMQ has it in buffers of its own, 8 MiB at most"
	diskStalls    = "the disk's stalls, in the seconds in which each was measured"
	deliversFirst = "it delivers a message before the disk has it"
)

// why says what makes a broker better, as far as it is known. The first that fits counts; an empty word fits all.
var why = []struct{ broker, scenario, quantity, says string }{
	{"nats", "idle", "ready", "it has nothing to recover and fewer listeners"},
	{"jetstream-sync", "persistent", "", diskStalls},
	{"jetstream", "", "", "it delivers and confirms a message before the disk has it"},
	{"nats", "", "", "it keeps and acknowledges nothing, and what counts as a confirm is the answer to a ping"},
	{"lavinmq", "persistent", "delivery", deliversFirst},
	{"lavinmq", "-persistent", "delivery", deliversFirst},
	{"rabbitmq", "-persistent", "delivery", deliversFirst},
	{"-quorum", "-persistent", "confirm", diskStalls},
	{"rabbitmq", "-persistent", "confirm", "its classic queues confirm without waiting for the disk"},
	{"", "-persistent", "confirm", diskStalls},
	{"lavinmq", "persistent", "memory", mapsFiles},
	{"lavinmq", "queues", "memory", mapsFiles},
	{"lavinmq", "fill", "memory", mapsFiles},
	{"lavinmq", "ready-after", "ready", "it trusts its files; FireMQ verifies every record that the last checkpoint does not cover"},
	{"", "half", "", "half of its own full rate is a far lower rate than half of FireMQ's"},
	{"", "latency", "p99", "one message in a hundred: the machine's stalls, in the seconds in which each was measured"},
}

func (b *better) why() string {
	for _, w := range why {
		if strings.Contains(b.broker, w.broker) && strings.Contains(b.scenario, w.scenario) && strings.Contains(b.quantity.name, w.quantity) {
			return w.says
		}
	}
	return ""
}

// behindTable lists where a peer is better.
func behindTable(r *report, _ settings) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "Every figure of the tables above in which another broker is better by more than %.0f %%:\n\n", 100*(told-1))
	b.WriteString("| | | FireMQ | better | | times | because |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	all := r.betters()
	for _, x := range all {
		times := x.mine / x.theirs
		if x.quantity.more {
			times = 1 / times
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %.2f | %s |\n", rowName(x.scenario, r.machine), x.quantity.name, x.quantity.show(x.mine),
			cmp.Or(r.title[x.broker], x.broker), x.quantity.show(x.theirs), times, x.why())
	}
	if len(all) == 0 {
		return "No figure of the tables above is better by more than the machine's own differences.\n", nil
	}
	return b.String(), nil
}

// limits are what holds each row back, in words. That its time goes there is in the column before, of profile.csv.
var limits = []struct{ scenario, name, says string }{
	{"transient", "moving bytes", "each message is read, copied and written; decoding, routing, queueing, encoding, ack and confirm share the rest, none of them by far the largest"},
	{"transient-4x4", "moving bytes, and one queue", "eight connections meet at one queue's lock, which is taken once a batch, not once a message"},
	{"persistent", "moving bytes, and the log", "a record of each message and of its ack; a commit writes and syncs what has come since the last one"},
	{"persistent-4x4", "one queue and one log", "both meet at a lock each, and a batch waits for its sync before the queue hands it out"},
	{"persistent-1k", "copies", "a body is copied from the socket into a buffer, from there into the log and into the socket"},
	{"fanout", "deliveries", "routing and the log are once for ten deliveries: what is left is to dispatch, encode and write each, and its ack"},
	{"queues", "memory", "ten windows are more messages on their way than near caches hold, and neighbours of a queue are not neighbours in memory; what a delivery or a settlement needs is asked for ahead"},
	{"latency", "waking up", "a message wakes the broker for itself and for its ack, and shares the system calls and the scheduler with no other"},
	{"latency-persistent", "the disk", "a sync for nearly every message, and the wake-ups around it"},
	{"half", "bursts", "what is due in one tick comes at once and waits for one another, in sockets and reads"},
	{"half-persistent", "the disk", "what comes during a sync waits for the next one"},
	{"fill", "the log", "encode, copy, write and sync; no queue is dispatched"},
	{"drain", "deliveries", "records are read back in pieces, and the acks are records again"},
	{"idle", "the program itself", "pages of it that the start and the listeners touch, and the first heaps"},
	{"ready-after-stop", "the checkpoint", "queues and positions are read back, messages are not"},
	{"ready-after-kill", "the log", "each record behind the last checkpoint is read and its checksum verified"},
}

// profileHeader is what bench/profile writes.
var profileHeader = []string{"preset", "kind", "name", "share"}

// profiled is where the CPU time of a load goes: names with percents, the largest first.
type profiled map[string]map[string][]string // preset, kind

// readProfile reads the newest profile.csv; nil without one.
func readProfile(results string) (profiled, error) {
	dir, err := newest(results, "profile.csv")
	if err != nil {
		return nil, nil
	}
	records, err := readCSV(filepath.Join(dir, "profile.csv"))
	if err != nil {
		return nil, err
	}
	// What takes less is left out, and so is what comes after so many.
	const least, leastWait, most = 0.03, 0.001, 6
	p := profiled{}
	for i, rec := range records {
		if len(rec) != len(profileHeader) {
			return nil, fmt.Errorf("profile.csv, line %d: %d fields", i+2, len(rec))
		}
		share, err := strconv.ParseFloat(rec[3], 64)
		if err != nil {
			return nil, fmt.Errorf("profile.csv, line %d: %w", i+2, err)
		}
		if p[rec[0]] == nil {
			p[rec[0]] = map[string][]string{}
		}
		kind := p[rec[0]]
		switch list := kind[rec[1]]; {
		case rec[1] == "cpu" && share >= least && len(list) < most:
			kind["cpu"] = append(list, fmt.Sprintf("%s %.0f %%", rec[2], 100*share))
		case rec[1] == "lock" && share >= leastWait && len(list) == 0:
			kind["lock"] = []string{fmt.Sprintf("`%s` %.1f %%", rec[2], 100*share)}
		}
	}
	return p, nil
}

// limitsTable says what limits each row.
func limitsTable(r *report, s settings) (string, error) {
	p, err := readProfile(s.results)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("| | limited by | because | CPU time | waited for, most |\n| --- | --- | --- | --- | --- |\n")
	for _, l := range limits {
		if len(r.of(l.scenario)) == 0 {
			continue
		}
		lock := strings.Join(p[l.scenario]["lock"], "")
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", rowName(l.scenario, r.machine), l.name, l.says, strings.Join(p[l.scenario]["cpu"], ", "), lock)
	}
	return b.String(), nil
}

// watchedLine says what being watched costs, of the newest watched.csv; empty without one.
func watchedLine(_ *report, s settings) (string, error) {
	dir, err := newest(s.results, "watched.csv")
	if err != nil {
		return "", nil
	}
	records, err := readCSV(filepath.Join(dir, "watched.csv"))
	if err != nil {
		return "", err
	}
	rate, cpu := map[string][2]float64{}, map[string][2]float64{}
	for i, rec := range records {
		if len(rec) != 5 {
			return "", fmt.Errorf("watched.csv, line %d: %d fields", i+2, len(rec))
		}
		watched, err := strconv.ParseBool(rec[1])
		if err != nil {
			return "", fmt.Errorf("watched.csv, line %d: %w", i+2, err)
		}
		for k, into := range []map[string][2]float64{rate, cpu} {
			v, err := strconv.ParseFloat(rec[3+k], 64)
			if err != nil {
				return "", fmt.Errorf("watched.csv, line %d: %w", i+2, err)
			}
			pair := into[rec[0]]
			if watched {
				pair[1] = v
			} else {
				pair[0] = v
			}
			into[rec[0]] = pair
		}
	}
	change := func(pairs map[string][2]float64) interval {
		var all []float64
		for _, p := range pairs {
			all = append(all, percent(p[0], p[1]))
		}
		return medianInterval(all)
	}
	return fmt.Sprintf("%d pairs of windows: messages a second %s, CPU per message %s.\n", len(rate), change(rate), change(cpu)), nil
}
