package mgmt

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/mgmt/api"
)

// Bounds of one look at the messages of a queue, felt as a page that ends early: its cursor goes on.
const (
	browseDefault = 100
	maxScan       = 100_000
	scanTime      = 2 * time.Second
	// unackedDefault and maxUnacked are those of a list of unacked messages.
	unackedDefault = 1000
	maxUnacked     = 10_000
)

// browseMessages shows a page of a queue's messages. Nothing changes by it.
func browseMessages(r *request) error {
	if _, err := r.queueOf(); err != nil {
		return err
	}
	a, g, err := r.browse()
	if err != nil {
		return err
	}
	page := api.Browse{Messages: []api.Browsed{}}
	return r.act(func(c *broker.Conn) error {
		now, size, taken := time.Now().UnixMilli(), 0, 0
		var bad error
		p, e := c.Browse(a, func(m *broker.Browsed) bool {
			var v api.Browsed
			if v, bad = g.browsed(c, m, now); bad != nil {
				return false
			}
			page.Messages = append(page.Messages, v)
			size += len(v.Payload)
			taken += textCopies*len(v.Payload) + messageCost
			return size < maxGetBytes && r.room(taken)
		})
		switch {
		case e != nil:
			return refusal(e)
		case bad != nil:
			return bad
		}
		page.Scanned, page.More = p.Scanned, p.More
		page.Cursor = p.Next.String()
		return r.ok(page)
	})
}

// browse reads the query.
func (r *request) browse() (*broker.Browse, *getter, error) {
	a := &broker.Browse{Queue: r.vars["queue"], Time: scanTime}
	stage := broker.StageReady
	if s := r.query("state"); s != "" {
		var ok bool
		if stage, ok = broker.ParseStage(s); !ok {
			return nil, nil, badRequest("state is none of ready, unacked, delayed")
		}
	}
	a.From = broker.Before(stage)
	if s := r.query("cursor"); s != "" {
		c, err := broker.ParseCursor(s)
		switch {
		case err != nil:
			return nil, nil, badRequest(err.Error())
		case r.has("state") && c.Stage != stage:
			return nil, nil, badRequest("the cursor is of another state")
		}
		a.From = c
	}
	offset, err := r.number("offset", 0, 0, 1<<40)
	if err != nil {
		return nil, nil, err
	}
	a.Skip = uint64(offset)
	if a.Limit, err = r.number("count", browseDefault, 1, maxGetMessages); err != nil {
		return nil, nil, err
	}
	if a.Scan, err = r.number("scan", maxScan, 1, maxScan); err != nil {
		return nil, nil, err
	}
	g := new(getter)
	if g.truncate, err = r.number("truncate", -1, -1, 1<<30); err != nil {
		return nil, nil, err
	}
	switch r.query("encoding") {
	case "", "auto":
	case "base64":
		g.base64 = true
	default:
		return nil, nil, badRequest("Unsupported encoding. Please use auto or base64.")
	}
	a.Match, err = r.filter()
	return a, g, err
}

// number is a whole number of the query.
func (r *request) number(name string, absent, least, most int) (int, error) {
	if !r.has(name) {
		return absent, nil
	}
	n, err := strconv.Atoi(r.query(name))
	if err != nil || n < least || n > most {
		return 0, badRequestf("%s is no number from %d to %d", name, least, most)
	}
	return n, nil
}

// filter is that of the query, nil if it has none: parameters with the names of filterOf's keys. header and
// property are NAME=VALUE or NAME, and may be given more than once.
func (r *request) filter() (*broker.Filter, error) {
	b := make(body)
	for _, name := range [...]string{"exchange", "routing_key", "body", "older_than", "newer_than", "use_regex"} {
		if r.has(name) {
			b[name] = r.query(name)
		}
	}
	for param, key := range map[string]string{"header": "headers", "property": "properties"} {
		m := make(map[string]any)
		for _, p := range r.QueryArgs().PeekMulti(param) {
			name, value, given := strings.Cut(string(p), "=")
			m[name] = nil
			if given {
				m[name] = value
			}
		}
		if len(m) > 0 {
			b[key] = m
		}
	}
	return filterOf(b)
}

// filterOf reads a filter, nil for an empty one:
//
//	exchange, routing_key     texts; with use_regex routing_key is an expression, as all up to the next
//	body                      a part of it
//	headers, properties       objects of name and value; null: it must be there
//	older_than, newer_than    seconds
func filterOf(b body) (*broker.Filter, error) {
	f := new(broker.Filter)
	regex, err := b.boolean("use_regex", false)
	if err != nil {
		return nil, err
	}
	set := false
	text := func(key string, to **broker.Text) error {
		if _, ok := b[key]; !ok {
			return nil
		}
		set = true
		s, err := b.text(key)
		if err != nil {
			return err
		}
		t, e := broker.NewText(s, regex)
		if e != nil {
			return refusal(e)
		}
		*to = t
		return nil
	}
	if err := text("routing_key", &f.Key); err != nil {
		return nil, err
	}
	if err := text("body", &f.Body); err != nil {
		return nil, err
	}
	if _, ok := b["exchange"]; ok {
		s, err := b.text("exchange")
		if err != nil {
			return nil, err
		}
		set = true
		f.Exchange = &s
	}
	for key, to := range map[string]*[]broker.NamedText{"headers": &f.Headers, "properties": &f.Properties} {
		m, ok := b[key].(map[string]any)
		if b[key] != nil && !ok {
			return nil, badRequest([]any{"not_json_object", key})
		}
		for _, name := range sortedKeys(m) {
			if key == "properties" && !slices.Contains(propertyNames, name) {
				return nil, badRequestf("%s is no property: %s", name, strings.Join(propertyNames, ", "))
			}
			n := broker.NamedText{Name: name}
			switch v := m[name].(type) {
			case nil:
			case string, json.Number, bool:
				t, e := broker.NewText(fmt.Sprint(v), regex)
				if e != nil {
					return nil, refusal(e)
				}
				n.Text = t
			default:
				return nil, badRequestf("the value of %s is neither a text nor a number", name)
			}
			*to = append(*to, n)
			set = true
		}
	}
	now := time.Now().UnixMilli()
	for key, to := range map[string]*int64{"older_than": &f.Before, "newer_than": &f.After} {
		if _, ok := b[key]; !ok {
			continue
		}
		n, err := b.integer(key, 0)
		if err != nil {
			return nil, err
		}
		if n < 0 || n > 1<<40 {
			return nil, badRequestf("%s is no number of seconds", key)
		}
		*to = now - int64(n)*1000
		set = true
	}
	if !set {
		return nil, nil
	}
	return f, nil
}

// propertyNames are those of messages as JSON has them, headers aside.
var propertyNames = func() (names []string) {
	for _, f := range new(table.Properties).Texts() {
		names = append(names, f.Name)
	}
	return append(names, "delivery_mode", "priority", "timestamp")
}()

// filterKeys are those of filterOf.
var filterKeys = []string{"exchange", "routing_key", "body", "headers", "properties", "older_than", "newer_than", "use_regex"}

// known refuses keys that mean nothing: a misspelt filter must not pick all messages.
func known(b body, keys ...string) error {
	for _, k := range sortedKeys(b) {
		if !slices.Contains(keys, k) {
			return badRequestf("%s is not known: %s", k, strings.Join(keys, ", "))
		}
	}
	return nil
}

// browsed shows one message. It copies what it keeps.
func (g *getter) browsed(c *broker.Conn, m *broker.Browsed, now int64) (api.Browsed, error) {
	v := api.Browsed{
		Sequence: m.Seq, State: m.Stage.String(), PayloadBytes: m.Size, Redelivered: m.Redelivered, DeliveryCount: m.Deliveries,
		PayloadEncoding: "string", Properties: noArguments,
	}
	if m.Since != 0 {
		age := max(now-m.Since, 0)
		v.Age = &age
	}
	v.ExpiresAt, v.DueAt = m.Expiry, m.Due
	if m.Stage != broker.StageDelayed {
		v.DueAt = 0
	}
	if h := m.Holder; h != nil {
		v.Unacked = holderOf(h, now)
	}
	if m.Msg == nil {
		v.Unreadable = true
		return v, nil
	}
	props, err := propertiesFor(c, m.Msg)
	if err != nil {
		return v, err
	}
	v.Exchange, v.RoutingKey, v.Properties = string(m.Msg.Exchange()), string(m.Msg.Key()), props
	v.Payload, v.PayloadEncoding = g.payload(m.Msg.Body())
	return v, nil
}

// propertiesFor is a message's properties as JSON shows them, in memory of their own.
func propertiesFor(c *broker.Conn, m *message.Message) (map[string]any, error) {
	p, err := c.Properties(m)
	if err != nil {
		return nil, fmt.Errorf("read a message's properties: %w", err)
	}
	p.Headers = p.Headers.Clone()
	for _, f := range p.Texts() {
		*f.Value = strings.Clone(*f.Value)
	}
	return propertyMap(&p), nil
}

// payload is a body as the query asks for it.
func (g *getter) payload(body []byte) (text, encoding string) {
	if g.truncate >= 0 && g.truncate < len(body) {
		body = body[:g.truncate]
	}
	if g.base64 || !validText(body) {
		return base64.StdEncoding.EncodeToString(body), "base64"
	}
	return string(body), "string"
}

func holderOf(h *broker.Holder, now int64) *api.Unacked {
	return &api.Unacked{
		Connection: h.Connection.Name, Channel: h.Channel, User: h.User, ConsumerTag: h.Consumer, DeliveryTag: h.Tag,
		Age: max(now-h.At, 0),
	}
}

// listUnacked shows who holds a queue's messages, those first that were delivered first.
func listUnacked(r *request) error {
	if _, err := r.queueOf(); err != nil {
		return err
	}
	count, err := r.number("count", unackedDefault, 1, maxUnacked)
	if err != nil {
		return err
	}
	list := []api.UnackedMessage{}
	return r.act(func(c *broker.Conn) error {
		now := time.Now().UnixMilli()
		e := c.Unacked(r.vars["queue"], count, func(m *broker.Browsed) {
			list = append(list, api.UnackedMessage{
				Unacked: *holderOf(m.Holder, now), Sequence: m.Seq, Redelivered: m.Redelivered, PayloadBytes: m.Size,
			})
		})
		if e != nil {
			return refusal(e)
		}
		return r.ok(list)
	})
}
