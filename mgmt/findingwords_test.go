package mgmt

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/firemq/firemq/mgmt/api"
)

// words are how a finding is told: expressions of the whole summary and cause, and the action.
type words struct{ severity, kind, summary, cause, action string }

const (
	size     = `[\d.]+ [GM]iB`
	blocked  = `Publishers wait until it is over; (1 connection is|\d+ connections are) blocked now\.`
	waits    = `(1 message waits|\d+ messages wait), the oldest for (1 second|\d+ (seconds|minutes|hours|days))\.`
	makeRoom = "Free or add disk space; consume or purge long queues."
	unbound  = "Bind a queue to the exchange, or declare the one that the routing key names."
	holder   = "See what that client does; see the messages with \"firemq ctl unacked\". Closing its connection with \"firemq ctl close-connection\" gives them to others."
	slowDisk = "See the metrics of the journal and of the disk; a faster disk, or fewer and larger messages help."
)

// findings are all there are, by code and, where a code has several causes, with a number.
var findings = map[string]words{
	"memory-alarm": {api.Critical, "node", `The memory alarm is in effect: nobody can publish\.`,
		`The broker uses ` + size + ` of memory, its limit is ` + size + `\. ` + blocked,
		"See \"firemq ctl memory\" for what takes it. Consume or purge long queues of transient messages, close idle connections, or raise limits.memory."},
	"disk-alarm": {api.Critical, "node", `The disk alarm is in effect: nobody can publish\.`,
		size + ` are free where the data is, the limit is ` + size + `\. ` + blocked, makeRoom},
	"disk-low": {api.Warning, "node", `The disk is nearly full\.`,
		size + ` are free where the data is\. Below ` + size + ` nobody can publish\.`, makeRoom},
	"memory-low": {api.Warning, "node", `The broker is close to its memory limit\.`,
		`It uses ` + size + ` of ` + size + `\. Above that nobody can publish\.`,
		"See \"firemq ctl memory\" for what takes it, or raise limits.memory."},
	"listeners-suspended": {api.Warning, "node", `No clients can connect\.`,
		`The listeners of clients are suspended, as by rabbitmqctl stop_app or rabbitmq-upgrade drain\.`,
		"Have them resumed, with rabbitmqctl start_app or rabbitmq-upgrade revive, when the work is done."},
	"connections-at-limit": {api.Warning, "node", `No more clients can connect\.`,
		`There are 3 connections, as many as limits\.connections lets in: the next client is refused\.`,
		"See \"firemq ctl list connections\" for clients that open too many, or raise limits.connections."},
	"journal-failed": {api.Critical, "node", `The journal failed: nothing is confirmed any more\.`,
		`The disk refused to write or to sync; the broker's log says what it said\.`, "Replace or repair the disk, then start the broker again."},
	"journal-stalled": {api.Critical, "node", `The journal has no room to write: publishes wait\.`,
		`The disk is full, up to the reserve that lets consumers go on\.`, makeRoom},
	"compaction-behind": {api.Warning, "node", `The journal takes more disk than its messages should need\.`,
		`It takes ` + size + ` for ` + size + ` of messages that are not settled\. Old messages that nobody takes keep the files behind them, and copying them forward is behind, or the disk is too full for it\.`,
		"Wait a minute and look again. If it stays: consume or purge the queues with the oldest messages, and see that the disk has room."},
	"dead-letter-exchange-missing": {api.Warning, "queue", `Messages that die in this queue are lost\.`,
		`Its dead-letter exchange 'nowhere' does not exist\.`, "Declare that exchange and bind a queue to it, or correct the queue's argument or policy."},
	"dead-letters-unroutable": {api.Warning, "queue", `Messages that die in this queue are lost\.`,
		`Nothing is bound to its dead-letter exchange '(amq\.fanout)?', or the queue of its dead-letter routing key does not exist\.`, unbound},
	"queue-full": {api.Warning, "queue", `The queue is full and refuses what is published\.`,
		`It holds 2 messages, at its limit, and x-overflow is to reject\.`, "Add consumers or purge it; or raise max-length or max-length-bytes."},
	"queue-at-limit": {api.Note, "queue", `The queue is at its limit: for each new message the oldest one goes\.`,
		`It holds 2 messages, and x-overflow is to drop from the head\.`, "If no message may be lost: add consumers, raise the limit, or set x-overflow to reject-publish."},
	"queue-without-consumer": {api.Warning, "queue", `The queue grows and has no consumer\.`,
		waits + ` It grew by \d+ in (1 second|\d+ (seconds|minutes))\.`,
		"Start the consumer, or see why it is gone. If nobody needs the messages, remove the queue's bindings or give it a limit or a time to live."},
	"messages-without-consumer": {api.Note, "queue", `The queue has messages and no consumer\.`, waits,
		"Start the consumer; or look at them with \"firemq ctl browse\", and purge the queue if nobody needs them."},
	"consumers-too-slow": {api.Warning, "queue", `The queue grows: its consumers are slower than its publishers\.`,
		waits + ` In (1 second|\d+ (seconds|minutes)) \d+ were published and \d+ delivered\.`,
		"Add consumers, or make them faster; a larger prefetch helps those that wait for the network."},
	"consumers-do-not-read": {api.Warning, "queue", `Consumers do not take the queue's messages\.`,
		waits + ` (1 consumer does not read|\d+ consumers do not read|The single active consumer '.+' does not read) what it was sent, or granted no credit\.`,
		"See whether the client hangs; close its connection with \"firemq ctl close-connection\" so that others get the messages."},
	"consumer-stuck": {api.Warning, "queue", `A consumer at its prefetch limit has not acknowledged for .+, and (1 message waits|\d+ messages wait)\.`,
		`Consumer '.+', user guest, channel \d+ of connection .+ -> .+, has (1 message|\d+ messages) unacknowledged; the oldest was delivered .+ ago \(delivery tag \d+\)\.( It consumes exclusively\.| It is the single active consumer; (1 other consumer waits|\d+ other consumers wait) for its end\.)?`, holder},
	"unacked-for-long": {api.Note, "queue", `A message has been unacknowledged for 31 minutes\.`,
		`Who got it with basic\.get, user guest, channel 1 of connection test, has 1 message unacknowledged; the oldest was delivered 31 minutes ago \(delivery tag 1\)\.`, holder},
	"redelivered-without-end": {api.Warning, "queue", `Messages are delivered again and again, and none leaves the queue\.`,
		`In 61 seconds 25 were delivered that had been before, and none was settled: consumers give them back, or end with them\.`,
		"See why the consumers cannot work them off. With x-delivery-limit and a dead-letter exchange such messages leave the queue."},
	"alternate-exchange-missing": {api.Warning, "exchange", `What this exchange routes to no queue is lost\.`,
		`Its alternate exchange 'other' does not exist\.`, "Declare that exchange and bind a queue to it, or correct the exchange's argument or policy."},
	"nothing-routed": {api.Note, "exchange", `Nothing that is published to this exchange reaches a queue\.`,
		`3 messages came in 61 seconds, and no queue was bound for any\.`,
		"See \"firemq ctl list bindings\" and the publisher's routing keys. With mandatory a publisher is told."},
	"policy-without-effect": {api.Note, "policy", `The policy applies to nothing\.`,
		`No queue or exchange matches its pattern \^nothing\$, or others of higher priority apply to all that do\.`,
		"Correct the pattern, \"apply-to\" or priority, or delete it. It may be meant for what will be declared later."},
	"connection-in-flow": {api.Warning, "connection", `A publisher has not been read for (1 second|\d+ seconds)\.`,
		`More waits for the disk than may: the disk is too slow for what is published\.`, slowDisk},
	"connection-in-flow 2": {api.Warning, "connection", `A publisher has not been read for (1 second|\d+ seconds)\.`,
		`Memory fills faster than the broker can make room\.`, "Consume or purge long queues of transient messages, publish more slowly, or raise limits.memory."},
	"connection-in-flow 3": {api.Warning, "connection", `A publisher has not been read for (1 second|\d+ seconds)\.`,
		`The disk is full, up to the reserve that lets consumers go on\.`, makeRoom},
}

// CheckFinding fails unless the report has a finding, by a key of findings, about an object, in the right words.
func CheckFinding(t testing.TB, r api.Report, key, name string) {
	t.Helper()
	w := findings[key]
	code, _, _ := strings.Cut(key, " ")
	i := slices.IndexFunc(r.Findings, func(f api.Finding) bool { return f.Code == code && f.Name == name })
	if i < 0 {
		t.Fatalf("no %s of %s in %+v", code, name, r.Findings)
	}
	f := r.Findings[i]
	for _, c := range [][2]string{{f.Severity, w.severity}, {f.Kind, w.kind}, {f.Summary, w.summary}, {f.Cause, w.cause}, {f.Action, regexp.QuoteMeta(w.action)}} {
		if !regexp.MustCompile(`^(` + c[1] + `)$`).MatchString(c[0]) {
			t.Errorf("%s of %s: %q, want %s", code, name, c[0], c[1])
		}
	}
}

// Findings are the severities by code.
func Findings() map[string]string {
	all := make(map[string]string)
	for key, w := range findings {
		code, _, _ := strings.Cut(key, " ")
		all[code] = w.severity
	}
	return all
}
