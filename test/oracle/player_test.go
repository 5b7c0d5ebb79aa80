package oracle

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/amqp/text"
	"github.com/firemq/firemq/frames/table"
)

// neverExpires is a lease that fences may renew.
var neverExpires = fmt.Sprintf("x-expires=I%d", aLongTime)

const (
	// fenceChannel is where a connection's fences declare queues; what comes on it is not compared.
	fenceChannel = 2000
	fenceBatch   = 8 // queues that are asked at a time; their answers must fit into client.fence

	answerLimit = 20 * time.Second // for what must be answered at once, by a busy machine too
	awaitLimit  = 12 * time.Second // for await and until
)

// player plays one script to one broker.
type player struct {
	side   side
	vhost  string
	script *script
	users  []string // made by the script

	// To be taken away at the end. Owned by the goroutine that plays the steps.
	policies []policyDef
	limits   []string // of the vhost
	traced   bool
	alarmed  bool

	canary *player // see fenceLog

	// Owned by the goroutine that plays the steps.
	conns  map[string]*client
	queues []string // declared until now, for fences
	gone   map[string]bool

	mu     sync.Mutex
	events []event       // what the current step brought; guarded by mu
	made   []string      // names that the server made, in the order of their first appearance; guarded by mu
	change chan struct{} // closed and made anew when anything came; guarded by mu
}

// event is one thing received: a method with its content, or the end of the socket.
type event struct {
	conn    string
	ch      uint16
	line    string
	confirm uint64 // the publish that this line settles
}

func (e *event) String() string { return fmt.Sprintf("%s %d %s", e.conn, e.ch, e.line) }

// client is one connection of a script.
type client struct {
	p    *player
	name string
	nc   net.Conn

	// Owned by the goroutine that plays the steps.
	noFence bool
	skip    map[string]bool // queues that this connection may not declare passively

	fence chan string // answers on fenceChannel

	// Guarded by p.mu.
	hidden   bool // the handshake is not compared
	opened   bool // open-ok came
	closing  bool // a connection.close was sent or received
	closed   bool // the socket ended
	channels map[uint16]*channel
	awaited  []string // lines since the last await
}

// channel is what the player knows about one channel. Guarded by player.mu.
type channel struct {
	open    bool
	opening bool   // by the player: its open-ok is not compared
	dead    bool   // does not answer fences
	flows   []bool // the flow-oks due; true: a fence's

	confirms    bool
	published   uint64
	unconfirmed []uint64

	noAck   map[string]bool // consumers
	gets    []bool          // no-ack of the gets not answered
	unacked []uint64

	content *event // a method whose content is not complete
	left    uint64 // octets of the body
}

func newPlayer(s side, vhost string, sc *script) *player {
	return &player{
		side: s, vhost: vhost, script: sc,
		conns: make(map[string]*client), gone: make(map[string]bool), change: make(chan struct{}),
	}
}

// changed wakes whoever waits. Under mu.
func (p *player) changed() {
	close(p.change)
	p.change = make(chan struct{})
}

// wait waits until ok, called under mu, is true; false after the limit.
func (p *player) wait(limit time.Duration, ok func() bool) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for !ok() {
		change := p.change
		p.mu.Unlock()
		select {
		case <-change:
			p.mu.Lock()
		case <-timer.C:
			p.mu.Lock()
			return ok()
		}
	}
	return true
}

// note records something the player itself found.
func (p *player) note(conn string, ch uint16, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, event{conn: conn, ch: ch, line: "! " + fmt.Sprintf(format, args...)})
	p.changed()
}

// take gives the events since the last take, see order.
func (p *player) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	lines := p.order()
	p.events = nil
	return lines
}

func (p *player) peek() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.order()
}

// order lists the events by connection and channel, because channels are independent of each other.
// So are, on a channel, the confirms of several publishes, which come last here and by number, and
// what a queue does meanwhile: cancels by the server come behind the rest, and so do the deliveries
// that a new limit or a commit allowed.
func (p *player) order() []string {
	all := slices.Clone(p.events)
	allows := slices.ContainsFunc(all, func(e event) bool { return e.line == "basic.qos-ok" || e.line == "tx.commit-ok" })
	late := func(e event) int {
		switch {
		case strings.HasPrefix(e.line, "basic.cancel "):
			return 2
		case allows && strings.HasPrefix(e.line, "basic.deliver "):
			return 1
		}
		return 0
	}
	count := make(map[string]int)
	for _, e := range all {
		if e.confirm > 0 {
			count[e.conn+strconv.Itoa(int(e.ch))]++
		}
	}
	slices.SortStableFunc(all, func(x, y event) int {
		if c := strings.Compare(x.conn, y.conn); c != 0 {
			return c
		}
		if c := int(x.ch) - int(y.ch); c != 0 {
			return c
		}
		if c := cmp.Compare(late(x), late(y)); c != 0 {
			return c
		}
		if count[x.conn+strconv.Itoa(int(x.ch))] > 1 {
			return int(x.confirm) - int(y.confirm)
		}
		return 0
	})
	lines := make([]string, len(all))
	for i := range all {
		lines[i] = p.normal(all[i].String())
	}
	return lines
}

var (
	madeUp    = regexp.MustCompile(`amq\.(gen|ctag|rabbitmq\.reply-to\.)-?[\w=.+/-]{16,}`)
	deathTime = regexp.MustCompile(`time=T\d+`)
	selfWords = regexp.MustCompile(`\b(cluster_name|copyright|information|platform|product|version)=S"(?:[^"\\]|\\.)*"`)
	vhostName = regexp.MustCompile(`vhost 'v\d+'`)
	tracedBy  = regexp.MustCompile(`\b(node|vhost|connection)=S"[^"]*"`)
	numbered  = regexp.MustCompile(`\$(gen|ctag|reply|-?\d+)(\d*)`)
)

// normal replaces what must differ between two brokers.
func (p *player) normal(line string) string {
	for i, name := range p.made {
		kind := "amq.gen"
		if strings.HasPrefix(name, "amq.ctag") {
			kind = "amq.ctag"
		} else if strings.HasPrefix(name, "amq.rabbitmq") {
			kind = "amq.rabbitmq.reply-to"
		}
		line = strings.ReplaceAll(line, name, kind+".#"+strconv.Itoa(i+1))
	}
	line = deathTime.ReplaceAllString(line, "time=T?")
	if strings.Contains(line, " routing_keys=A[") { // a copy of the firehose
		line = tracedBy.ReplaceAllString(line, `$1=S"?"`)
	}
	line = vhostName.ReplaceAllString(line, "vhost '/'")
	return selfWords.ReplaceAllString(line, `$1=S"?"`)
}

// variable is the value of $gen1 and the like, or of a delivery tag.
func (p *player) variable(c *client, ch uint16, name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := numbered.FindStringSubmatch(name)
	if i, err := strconv.Atoi(m[1]); err == nil {
		var tags []uint64
		if k := c.channels[ch]; k != nil {
			tags = k.unacked
		}
		if i < 0 {
			i += len(tags)
		}
		if i < 0 || i >= len(tags) {
			return ""
		}
		return strconv.FormatUint(tags[i], 10)
	}
	prefix := map[string]string{"gen": "amq.gen-", "ctag": "amq.ctag-", "reply": "amq.rabbitmq.reply-to."}[m[1]]
	n, _ := strconv.Atoi(m[2])
	for _, s := range p.made {
		if strings.HasPrefix(s, prefix) {
			if n--; n == 0 {
				return s
			}
		}
	}
	return ""
}

// play carries one step out, without its fence.
func (p *player) play(s *step) error {
	switch s.op {
	case "quiet":
		d, _ := time.ParseDuration(s.arg)
		<-time.After(d)
		return nil
	case "user":
		f, _ := fields(s.arg)
		name := f["name"]
		if !slices.Contains(p.users, name) {
			p.users = append(p.users, name)
		}
		if err := p.side.putUser(name, f["tags"]); err != nil {
			return err
		}
		return p.side.setPermissions(name, p.vhost, f["configure"], f["write"], f["read"])
	case "unuser":
		f, _ := fields(s.arg)
		p.side.deleteUser(f["name"])
		return nil
	case "alarm":
		p.alarmed = s.arg != "off"
		return p.side.setAlarms(strings.Contains(s.arg, "memory"), strings.Contains(s.arg, "disk"))
	case "revoke":
		f, _ := fields(s.arg)
		return p.side.clearPermissions(f["name"], p.vhost)
	case "topic":
		f, _ := fields(s.arg)
		return p.side.setTopicPermission(f["user"], p.vhost, f["exchange"], f["write"], f["read"])
	case "policy", "unpolicy":
		f, _ := fields(s.arg)
		priority, _ := strconv.Atoi(f["priority"])
		d := policyDef{name: f["name"], pattern: f["pattern"], applyTo: f["apply-to"], operator: f["operator"] == "true", priority: priority}
		gone := func(o policyDef) bool { return o.name == d.name && o.operator == d.operator }
		p.policies = slices.DeleteFunc(p.policies, gone)
		if s.op == "unpolicy" {
			return p.side.deletePolicy(p.vhost, d)
		}
		var err error
		if d.definition, err = parseTable(f["definition"]); err != nil {
			return err
		}
		if err := p.side.putPolicy(p.vhost, d); err != nil {
			p.note("a", 0, "the policy is refused")
			return nil
		}
		p.policies = append(p.policies, d)
		return nil
	case "limit":
		f, _ := fields(s.arg)
		n, err := strconv.Atoi(f["value"])
		if err != nil {
			return err
		}
		if user := f["user"]; user != "" {
			return p.side.setUserLimit(user, f["name"], n)
		}
		p.limits = append(p.limits, f["name"])
		return p.side.setVHostLimit(p.vhost, f["name"], n)
	case "trace":
		p.traced = s.arg == "on"
		return p.side.setTracing(p.vhost, p.traced)
	case "connect":
		_, err := p.dial(s.conn)
		return err
	case "open":
		f, _ := fields(s.arg)
		_, err := p.open(s.conn, f)
		return err
	}
	c := p.conns[s.conn]
	if c != nil && p.script.random {
		p.mu.Lock()
		ended := c.closed || c.closing
		p.mu.Unlock()
		if ended {
			c.nc.Close()
			c = nil
		}
	}
	if c == nil {
		var err error
		if c, err = p.open(s.conn, nil); err != nil {
			return err
		}
	}
	switch s.op {
	case "lose":
		c.nc.Close()
		p.mu.Lock()
		c.closed = true
		p.mu.Unlock()
		return nil
	case "nofence":
		c.noFence = true
		return nil
	case "kick":
		_, port, _ := net.SplitHostPort(c.nc.LocalAddr().String())
		return kick(p.side.api(), port, s.arg)
	case "await":
		want, _ := strconv.Unquote(s.arg)
		found := p.wait(awaitLimit, func() bool {
			i := slices.IndexFunc(c.awaited, func(line string) bool { return strings.Contains(line, want) })
			if i < 0 {
				return false
			}
			c.awaited = c.awaited[i+1:]
			return true
		})
		if !found {
			p.note(s.conn, 0, "nothing with %q came", want)
		}
		return nil
	case "raw":
		line, err := text.Append(nil, "raw "+s.arg)
		if err != nil {
			return err
		}
		c.write(line)
		return nil
	case "until":
		return p.until(c, s)
	}
	return p.send(c, s.ch, s.arg)
}

// parseTable reads a table as package text spells it.
func parseTable(s string) (table.Table, error) {
	frame, err := text.Append(nil, "1 queue.declare arguments="+s)
	if err != nil {
		return nil, err
	}
	f, _, err := amqp.Next(frame, math.MaxInt32)
	if err != nil {
		return nil, err
	}
	var m amqp.QueueDeclare
	_, args, _ := amqp.CutMethod(f.Payload)
	if err := m.Decode(args); err != nil {
		return nil, err
	}
	return table.Decode(m.Arguments)
}

// until repeats a frame until an answer has the text; only the last round is recorded.
func (p *player) until(c *client, s *step) error {
	quoted, _ := strconv.QuotedPrefix(s.arg)
	want, _ := strconv.Unquote(quoted)
	frame := strings.TrimSpace(s.arg[len(quoted):])
	for deadline := time.Now().Add(awaitLimit); ; {
		p.mu.Lock()
		mark := len(p.events)
		p.mu.Unlock()
		if err := p.send(c, s.ch, frame); err != nil {
			return err
		}
		p.fenceChannels()
		p.mu.Lock()
		done := slices.ContainsFunc(p.events[mark:], func(e event) bool { return e.conn == c.name && strings.Contains(e.line, want) })
		if done || time.Now().After(deadline) {
			p.mu.Unlock()
			if !done {
				p.note(c.name, s.ch, "no answer had %q", want)
			}
			return nil
		}
		p.events = p.events[:mark]
		p.mu.Unlock()
		<-time.After(10 * time.Millisecond)
	}
}

// send writes one frame, or the three of a publish.
func (p *player) send(c *client, ch uint16, line string) error {
	missing := ""
	line = numbered.ReplaceAllStringFunc(line, func(name string) string {
		v := p.variable(c, ch, name)
		if v == "" {
			missing = name
		}
		return v
	})
	if missing != "" {
		p.note(c.name, ch, "no %s", missing)
		return nil
	}
	lines := []string{line}
	if arg, ok := strings.CutPrefix(line, "publish "); ok {
		var err error
		if lines, err = publishLines(arg); err != nil {
			return err
		}
	}
	var out []byte
	for _, l := range lines {
		var err error
		if out, err = text.Append(out, strconv.Itoa(int(ch))+" "+l); err != nil {
			return err
		}
	}
	if m := declaresQueue.FindStringSubmatch(line); m != nil && (!strings.Contains(line, "x-expires") || strings.Contains(line, neverExpires)) {
		name, _ := strconv.Unquote(`"` + m[1] + `"`)
		if !slices.Contains(p.queues, name) {
			p.queues = append(p.queues, name)
		}
		delete(p.gone, name)
		for _, c := range p.conns {
			delete(c.skip, name)
		}
	}
	p.mu.Lock()
	mark := len(c.awaited)
	p.mu.Unlock()
	c.write(append(p.expect(c, ch, line), out...))
	// RabbitMQ takes nothing on the channel, a fence neither, before it has answered these.
	switch kind, _, _ := strings.Cut(line, " "); kind {
	case "tx.commit", "channel.close", "connection.close":
		p.wait(answerLimit, func() bool {
			return c.closed || slices.ContainsFunc(c.awaited[mark:], func(l string) bool {
				return l == kind+"-ok" || strings.Contains(l, ".close ")
			})
		})
	}
	return nil
}

// sorted sorts the tables of a connection.start and of a content header: their order is no promise
// of either broker.
func sorted(f amqp.Frame, random bool) amqp.Frame {
	var start amqp.ConnectionStart
	if id, args, ok := amqp.CutMethod(f.Payload); ok && f.Type == amqp.FrameMethod && id == start.ID() && start.Decode(args) == nil {
		if t, err := table.Decode(start.ServerProperties); err == nil {
			sortTable(t)
			start.ServerProperties = table.Append(nil, t)
			f.Payload = start.Append(nil)
		}
		return f
	}
	h, ok := amqp.CutContentHeader(f.Payload)
	if !ok || f.Type != amqp.FrameHeader {
		return f
	}
	props, err := amqp.PropertyCodec{}.Decode(h.Props)
	if err != nil || len(props.Headers) == 0 {
		return f
	}
	props.Headers = plainDeaths(props.Headers, random)
	if random {
		// RabbitMQ 3.10 has it on the first delivery too, see differences.txt.
		props.Headers = slices.DeleteFunc(props.Headers, func(f table.Field) bool {
			n, ok := f.Value.AsInt()
			return f.Name == "x-delivery-count" && ok && n == 0
		})
		if len(props.Headers) == 0 {
			props.Has &^= table.HasHeaders
		}
	}
	if copied, ok := props.Headers.Get("properties"); ok { // by the firehose
		if h, ok := copied.Table.Get("headers"); ok {
			copied.Table.Set("headers", table.TableValue(plainDeaths(h.Table, random)))
			props.Headers.Set("properties", copied)
		}
	}
	sortTable(props.Headers)
	f.Payload = amqp.PropertyCodec{}.Append(slices.Clone(f.Payload[:12]), &props)
	return f
}

// plainDeaths takes x-last-death-* away, which RabbitMQ adds from 3.13 on, where they say the same as the first
// entry of x-death.
func plainDeaths(headers table.Table, random bool) table.Table {
	deaths, ok := headers.Get("x-death")
	if !ok || len(deaths.List) == 0 {
		return headers
	}
	last := deaths.List[0].Table
	headers = slices.DeleteFunc(headers, func(field table.Field) bool {
		key, ok := strings.CutPrefix(field.Name, "x-last-death-")
		same, _ := last.Get(key)
		return ok && same.Kind == table.String && same.Str == field.Value.Str
	})
	if random {
		slices.SortFunc(deaths.List[1:], func(x, y table.Value) int {
			return strings.Compare(fmt.Sprint(x.Table.Get("queue"))+fmt.Sprint(x.Table.Get("reason")),
				fmt.Sprint(y.Table.Get("queue"))+fmt.Sprint(y.Table.Get("reason")))
		})
	}
	return headers
}

func sortTable(t table.Table) {
	slices.SortStableFunc(t, func(x, y table.Field) int { return strings.Compare(x.Name, y.Name) })
	for i := range t {
		sortValue(&t[i].Value)
	}
}

func sortValue(v *table.Value) {
	sortTable(v.Table)
	for i := range v.List {
		sortValue(&v.List[i])
	}
}

// expect notes what a frame means for the channel. It gives the channel.open to send before it.
func (p *player) expect(c *client, ch uint16, line string) (before []byte) {
	if ch == 0 {
		if strings.HasPrefix(line, "connection.close") {
			p.mu.Lock()
			c.closing = true
			p.mu.Unlock()
		}
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	k := c.channels[ch]
	if k == nil {
		k = &channel{noAck: make(map[string]bool)}
		c.channels[ch] = k
	}
	kind, _, _ := strings.Cut(line, " ")
	if !k.open && kind != "channel.open" && kind != "channel.close-ok" && c.opened && !c.closing && !p.script.answers(c.name, ch, "channel.open") {
		if p.script.answers(c.name, ch, "channel.close-ok") && k.dead {
			return nil // the script talks to a channel that the server closed
		}
		*k = channel{noAck: make(map[string]bool), open: true, opening: true}
		before = (&amqp.ChannelOpen{}).AppendFrame(nil, ch)
	}
	number := func(key string) uint64 {
		for _, t := range tokens(line) {
			if v, ok := strings.CutPrefix(t, key+"="); ok {
				n, _ := strconv.ParseUint(v, 10, 64)
				return n
			}
		}
		return 0
	}
	has := func(word string) bool { return slices.Contains(tokens(line), word) }
	switch kind {
	case "channel.open":
		*k = channel{noAck: make(map[string]bool), open: true}
	case "channel.close":
		k.open = false
	case "channel.close-ok":
		k.dead = false
	case "channel.flow":
		k.flows = append(k.flows, false)
	case "confirm.select":
		k.confirms = true
	case "publish", "basic.publish":
		if k.confirms {
			k.published++
			k.unconfirmed = append(k.unconfirmed, k.published)
		}
	case "basic.consume":
		f, _ := fields(strings.Join(slices.DeleteFunc(tokens(line), func(t string) bool { return !strings.Contains(t, "=") }), " "))
		k.noAck[f["consumer-tag"]] = has("no-ack")
	case "basic.get":
		k.gets = append(k.gets, has("no-ack"))
	case "basic.ack", "basic.nack", "basic.reject":
		tag, multiple := number("delivery-tag"), has("multiple")
		k.unacked = slices.DeleteFunc(k.unacked, func(t uint64) bool {
			return t == tag || multiple && (t < tag || tag == 0)
		})
	case "basic.recover", "basic.recover-async":
		k.unacked = nil
	}
	return before
}

// dial connects without a handshake.
func (p *player) dial(name string) (*client, error) {
	nc, err := net.Dial("tcp", p.side.addr())
	if err != nil {
		return nil, err
	}
	c := &client{
		p: p, name: name, nc: nc, skip: make(map[string]bool), fence: make(chan string, 16),
		channels: make(map[uint16]*channel),
	}
	p.conns[name] = c
	go c.read()
	return c, nil
}

const allCaps = `{capabilities=F{consumer_cancel_notify=t1 authentication_failure_close=t1 connection.blocked=t1}}`

// open connects with a handshake that is not compared, except for a refusal.
func (p *player) open(name string, f map[string]string) (*client, error) {
	c, err := p.dial(name)
	if err != nil {
		return nil, err
	}
	or := func(key, otherwise string) string {
		if v, ok := f[key]; ok {
			return v
		}
		return otherwise
	}
	user := or("user", "guest")
	password := or("password", map[bool]string{true: "guest", false: "pw"}[user == "guest"])
	lines := []string{
		`raw "AMQP\x00\x00\x09\x01"`,
		fmt.Sprintf(`0 connection.start-ok client-properties=%s mechanism="PLAIN" response="\x00%s\x00%s" locale="en_US"`, or("caps", allCaps), user, password),
		fmt.Sprintf(`0 connection.tune-ok channel-max=%s frame-max=%s heartbeat=%s`, or("channel-max", "2047"), or("frame-max", "131072"), or("heartbeat", "0")),
		fmt.Sprintf(`0 connection.open virtual-host=%q`, or("vhost", p.vhost)),
	}
	p.mu.Lock()
	c.hidden = true
	p.mu.Unlock()
	// In steps, because a broker need not read on behind a refused login.
	for i, line := range lines {
		out, err := text.Append(nil, line)
		if err != nil {
			return nil, err
		}
		if i == 3 {
			c.write(out)
			break
		}
		p.mu.Lock()
		mark := len(c.awaited)
		p.mu.Unlock()
		c.write(out)
		if i < 2 {
			p.wait(awaitLimit, func() bool { return len(c.awaited) > mark || c.closed || c.closing })
		}
	}
	if !p.wait(awaitLimit, func() bool { return c.opened || c.closed || c.closing }) {
		return nil, fmt.Errorf("the handshake of %s got no answer", name)
	}
	return c, nil
}

func (c *client) write(b []byte) {
	c.nc.SetWriteDeadline(time.Now().Add(answerLimit))
	c.nc.Write(b) // an error shows as the end of the socket
}

// read receives until the socket ends.
func (c *client) read() {
	var buf []byte
	chunk := make([]byte, 64<<10)
	header := false
	for {
		n, err := c.nc.Read(chunk)
		buf = append(buf, chunk[:n]...)
		for len(buf) > 0 {
			if !header && len(buf) >= 8 && string(buf[:4]) == "AMQP" {
				c.p.mu.Lock()
				line := "raw " + strconv.QuoteToASCII(string(buf[:8]))
				c.record(0, line)
				c.awaited = append(c.awaited, line)
				c.p.changed()
				c.p.mu.Unlock()
				buf = buf[8:]
				continue
			}
			header = len(buf) >= 8
			f, n, err := amqp.Next(buf, math.MaxInt32)
			if err != nil {
				c.p.note(c.name, 0, "no frame: %v", err)
				c.nc.Close()
			}
			if n == 0 || err != nil {
				break
			}
			c.received(f)
			buf = buf[n:]
		}
		if err != nil {
			c.p.mu.Lock()
			if !c.closed || !errors.Is(err, net.ErrClosed) {
				c.awaited = append(c.awaited, "closed")
			}
			c.closed = true
			c.p.changed()
			c.p.mu.Unlock()
			return
		}
	}
}

// record appends an event. Under mu.
func (c *client) record(ch uint16, line string) *event {
	c.p.events = append(c.p.events, event{conn: c.name, ch: ch, line: line})
	return &c.p.events[len(c.p.events)-1]
}

func (c *client) received(f amqp.Frame) {
	p := c.p
	line := text.Format(sorted(f, p.script.random))
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.changed()
	_, line, _ = strings.Cut(line, " ")
	kind, _, _ := strings.Cut(line, " ")
	for _, name := range madeUp.FindAllString(line, -1) {
		if !slices.Contains(p.made, name) {
			p.made = append(p.made, name)
		}
	}
	if f.Channel == fenceChannel {
		c.fence <- kind + " " + line
		return
	}
	c.awaited = append(c.awaited, line)
	if f.Channel == 0 {
		c.connection(kind, line)
		return
	}
	k := c.channels[f.Channel]
	if k == nil {
		c.record(f.Channel, line)
		return
	}
	if k.content != nil {
		k.content.line += "\n        " + line
		switch f.Type {
		case amqp.FrameHeader:
			h, _ := amqp.CutContentHeader(f.Payload)
			k.left = h.BodySize
		case amqp.FrameBody:
			k.left -= uint64(len(f.Payload))
		}
		if k.left == 0 {
			p.events = append(p.events, *k.content)
			k.content = nil
		}
		return
	}
	id, args, _ := amqp.CutMethod(f.Payload)
	if f.Type == amqp.FrameMethod && id == (&amqp.ChannelClose{}).ID() {
		kind = "channel.close" // even if its text cannot be shown as one
	}
	switch kind {
	case "basic.deliver", "basic.get-ok", "basic.return":
		k.content = &event{conn: c.name, ch: f.Channel, line: line}
		var d amqp.BasicDeliver
		var g amqp.BasicGetOk
		switch {
		case id == d.ID() && d.Decode(args) == nil && !k.noAck[string(d.ConsumerTag)]:
			k.unacked = append(k.unacked, d.DeliveryTag)
		case id == g.ID() && g.Decode(args) == nil && len(k.gets) > 0:
			if !k.gets[0] {
				k.unacked = append(k.unacked, g.DeliveryTag)
			}
			k.gets = k.gets[1:]
		}
	case "basic.get-empty":
		if len(k.gets) > 0 {
			k.gets = k.gets[1:]
		}
		c.record(f.Channel, line)
	case "basic.ack", "basic.nack":
		var a amqp.BasicAck
		var n amqp.BasicNack
		tag, multiple := uint64(0), false
		if a.Decode(args) == nil && kind == "basic.ack" {
			tag, multiple = a.DeliveryTag, a.Multiple
		} else if n.Decode(args) == nil {
			tag, multiple = n.DeliveryTag, n.Multiple
		}
		left := k.unconfirmed[:0]
		found := false
		for _, t := range k.unconfirmed {
			if t == tag || multiple && t < tag {
				c.record(f.Channel, fmt.Sprintf("%s %d", kind, t)).confirm = t
				found = found || t == tag
				continue
			}
			left = append(left, t)
		}
		k.unconfirmed = left
		if !found {
			c.record(f.Channel, line+" for nothing")
		}
	case "channel.flow-ok":
		if len(k.flows) > 0 {
			hidden := k.flows[0]
			k.flows = k.flows[1:]
			if hidden {
				c.awaited = c.awaited[:len(c.awaited)-1]
				return
			}
		}
		c.record(f.Channel, line)
	case "channel.open-ok":
		if k.opening {
			k.opening = false
			return
		}
		c.record(f.Channel, line)
	case "channel.close":
		c.record(f.Channel, line)
		k.open, k.flows, k.dead = false, nil, true
		if !p.script.answers(c.name, f.Channel, "channel.close-ok") {
			c.write((&amqp.ChannelCloseOk{}).AppendFrame(nil, f.Channel))
		}
	case "channel.close-ok":
		c.record(f.Channel, line)
		k.open, k.flows = false, nil
	default:
		c.record(f.Channel, line)
	}
}

// connection takes a frame of channel 0. Under mu.
func (c *client) connection(kind, line string) {
	switch kind {
	case "connection.start", "connection.tune":
		if c.hidden {
			return
		}
	case "connection.open-ok":
		c.opened = true
		if c.hidden {
			return
		}
	case "connection.close":
		c.closing = true
		if !c.p.script.answers(c.name, 0, "connection.close-ok") {
			c.write((&amqp.ConnectionCloseOk{}).AppendFrame(nil, 0))
		}
	case "connection.close-ok":
		c.closing = true
	case "heartbeat":
		// How many come is a matter of time.
		if slices.ContainsFunc(c.p.events, func(e event) bool { return e.conn == c.name && e.line == line }) {
			return
		}
	}
	c.record(0, line)
}

// settle is the fence: when it returns, what was sent until now is carried out and what the
// broker has to say about it has come.
func (p *player) settle() {
	p.fenceChannels()
	for range 2 {
		if len(p.queues) > 0 {
			p.fenceQueues()
			if p.canary != nil {
				p.fenceLog()
				p.fenceQueues()
			}
		}
		p.fenceChannels()
	}
}

// fenceLog waits until RabbitMQ has written what it appended to the log of its quorum queues: a queue answers a passive
// declare before it has carried out what came before. The log is one for all of them, and a publish to another quorum
// queue that is confirmed says how far it is written.
func (p *player) fenceLog() {
	c := p.canary.conns["y"]
	p.canary.mu.Lock()
	mark := len(c.awaited)
	p.canary.mu.Unlock()
	if err := p.canary.send(c, 1, `publish routing-key="canary" "x"`); err != nil {
		panic("BUG: the canary is no publish: " + err.Error())
	}
	if !p.canary.wait(answerLimit, func() bool { return len(c.awaited) > mark || c.closed }) {
		p.note("y", 1, "the log does not answer")
	}
	p.canary.take()
}

// keepCanary makes the connection for fenceLog, if this is RabbitMQ and the script made up with a quorum queue.
func (p *player) keepCanary() error {
	if _, ok := p.side.(*rabbit); !ok || !p.script.random || !strings.Contains(p.script.String(), `x-queue-type=S"quorum"`) {
		return nil
	}
	canary := newPlayer(p.side, p.vhost, &script{})
	c, err := canary.open("y", map[string]string{"vhost": "/"})
	if err != nil {
		return err
	}
	for _, line := range []string{`queue.declare queue="canary" durable arguments={x-queue-type=S"quorum" x-max-length=I1}`, "confirm.select"} {
		if err := canary.send(c, 1, line); err != nil {
			return err
		}
	}
	canary.fenceChannels()
	if answer := strings.Join(canary.take(), "\n"); !strings.Contains(answer, "confirm.select-ok") {
		return fmt.Errorf("the canary is not kept: %s", answer)
	}
	p.canary = canary
	return nil
}

// fenceChannels has every open channel answer.
func (p *player) fenceChannels() {
	type pair struct {
		c  *client
		k  *channel
		ch uint16
	}
	var asked []pair
	for _, c := range p.conns {
		if c.noFence {
			continue
		}
		p.mu.Lock()
		var out []byte
		if c.opened && !c.closed && !c.closing {
			for ch, k := range c.channels {
				if k.open && !k.dead {
					out = (&amqp.ChannelFlow{Active: true}).AppendFrame(out, ch)
					k.flows = append(k.flows, true)
					asked = append(asked, pair{c, k, ch})
				}
			}
		}
		if len(out) > 0 {
			c.write(out) // under mu, so that no close-ok comes in between
		}
		p.mu.Unlock()
	}
	for _, a := range asked {
		if !p.wait(answerLimit, func() bool { return len(a.k.flows) == 0 || !a.k.open || a.c.closed || a.c.closing }) {
			p.note(a.c.name, a.ch, "the channel does not answer")
			p.mu.Lock()
			a.k.dead = true
			p.mu.Unlock()
		}
	}
}

// fenceQueues has every queue answer, on the first connection that may ask.
func (p *player) fenceQueues() {
	left := slices.DeleteFunc(slices.Clone(p.queues), func(q string) bool { return p.gone[q] })
	for _, c := range p.conns {
		if c.noFence {
			continue
		}
		var refused, asked []string
		for _, q := range left {
			if c.skip[q] {
				refused = append(refused, q)
			} else {
				asked = append(asked, q)
			}
		}
		for len(asked) > 0 {
			n, answer := p.ask(c, asked[:min(len(asked), fenceBatch)])
			if asked = asked[n:]; answer == "" {
				continue
			}
			if strings.Contains(answer, "reply-code=404") {
				p.gone[asked[0]] = true
			} else {
				c.skip[asked[0]] = true
				refused = append(refused, asked[0])
			}
			asked = asked[1:]
		}
		if left = refused; len(left) == 0 {
			return
		}
	}
}

// ask declares queues passively on the fence channel. It says how many of them answered, and what came
// for the next one instead.
func (p *player) ask(c *client, queues []string) (n int, otherwise string) {
	usable := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return c.opened && !c.closed && !c.closing
	}
	if !usable() {
		return 0, "closed"
	}
	var out []byte
	p.mu.Lock()
	if c.channels[fenceChannel] == nil {
		c.channels[fenceChannel] = &channel{dead: true} // fenceChannels leaves it alone
		out = (&amqp.ChannelOpen{}).AppendFrame(nil, fenceChannel)
	}
	p.mu.Unlock()
	for _, q := range queues {
		out = (&amqp.QueueDeclare{Queue: []byte(q), Passive: true}).AppendFrame(out, fenceChannel)
	}
	c.write(out)
	timer := time.NewTimer(answerLimit)
	defer timer.Stop()
	for n < len(queues) {
		p.mu.Lock()
		change, dead := p.change, c.closed || c.closing
		p.mu.Unlock()
		select {
		case answer := <-c.fence:
			switch kind, line, _ := strings.Cut(answer, " "); kind {
			case "queue.declare-ok":
				n++
			case "channel.close": // the broker takes none of those behind
				out := (&amqp.ChannelCloseOk{}).AppendFrame(nil, fenceChannel)
				c.write((&amqp.ChannelOpen{}).AppendFrame(out, fenceChannel))
				return n, line
			}
			continue
		default:
		}
		if dead {
			return n, "closed"
		}
		select {
		case <-change: // also when there is an answer
		case <-timer.C:
			return n, "no answer"
		}
	}
	return n, ""
}

// end closes the script's connections and removes what it declared.
func (p *player) end() error {
	if p.canary != nil {
		if err := p.canary.end(); err != nil {
			return err
		}
	}
	for _, c := range p.conns {
		p.mu.Lock()
		live := c.opened && !c.closed && !c.closing
		c.closing = true
		mark := len(c.awaited)
		p.mu.Unlock()
		if live {
			c.write((&amqp.ConnectionClose{ReplyCode: 200}).AppendFrame(nil, 0))
			p.wait(answerLimit, func() bool {
				return c.closed || slices.ContainsFunc(c.awaited[mark:], func(l string) bool { return l == "connection.close-ok" })
			})
		}
		c.nc.Close()
	}
	for _, d := range p.policies {
		p.side.deletePolicy(p.vhost, d)
	}
	for _, l := range p.limits {
		p.side.setVHostLimit(p.vhost, l, -1)
	}
	if p.traced {
		p.side.setTracing(p.vhost, false)
	}
	if p.alarmed {
		p.side.setAlarms(false, false)
	}
	err := p.clean()
	for _, u := range p.users {
		p.side.deleteUser(u)
	}
	return err
}

// clean deletes the script's queues and exchanges.
func (p *player) clean() error {
	var lines []string
	for _, q := range p.script.names(declaresQueue) {
		lines = append(lines, fmt.Sprintf("queue.delete queue=%q", q))
	}
	for _, x := range p.script.names(declaresExchange) {
		if !strings.HasPrefix(x, "amq.") {
			lines = append(lines, fmt.Sprintf("exchange.delete exchange=%q", x))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	cleaner := newPlayer(p.side, p.vhost, &script{})
	c, err := cleaner.open("z", nil)
	if err != nil {
		return err
	}
	defer c.nc.Close()
	for _, line := range lines {
		// An exclusive queue of a lost connection may live for a moment.
		for deadline := time.Now().Add(answerLimit); ; <-time.After(20 * time.Millisecond) {
			if err := cleaner.send(c, 1, line); err != nil {
				return err
			}
			cleaner.fenceChannels()
			answer := strings.Join(cleaner.take(), "\n")
			if strings.Contains(answer, "delete-ok") {
				break
			}
			if time.Now().After(deadline) || !strings.Contains(answer, "reply-code=405") {
				return fmt.Errorf("clean up: %s: %s", line, answer)
			}
		}
	}
	return nil
}
