package mgmt

import (
	"encoding/base64"
	"encoding/binary"
	"hash/fnv"
	"net/url"
	"strings"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/mgmt/api"
	"github.com/firemq/firemq/route"
)

// propertiesKey names a binding among those of the same two ends: the routing key, and a hash of the
// arguments if there are any. "~" is neither.
func propertiesKey(key string, args table.Table) string {
	if len(args) == 0 {
		if key == "" {
			return "~"
		}
		return formEscape(key)
	}
	h := fnv.New32a()
	h.Write(table.Append(nil, args.Sorted()))
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], h.Sum32())
	return formEscape(key) + "~" + base64.RawURLEncoding.EncodeToString(sum[:])
}

// formEscape is form encoding with "~" escaped too.
func formEscape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "~", "%7E") }

func bindingOf(b *route.Binding) api.Binding {
	kind := "queue"
	if b.ToExchange {
		kind = "exchange"
	}
	return api.Binding{
		Source: b.Source, VHost: b.VHost, Destination: b.Dest, DestinationType: kind, RoutingKey: b.Key,
		Arguments: argumentMap(b.Args), PropertiesKey: propertiesKey(b.Key, b.Args),
	}
}

// bindings answers with the bindings of the scope that f picks.
func (r *request) bindings(f broker.BindingFilter) error {
	var all []route.Binding
	for _, v := range r.scope() {
		all = append(all, r.s.opt.Broker.Bindings(v, f)...)
	}
	if field := r.query("sort"); field != "" {
		all = sortBy(all, field, r.query("sort_reverse") == "true", len(all), func(b *route.Binding, _ parts) api.Binding { return bindingOf(b) })
	}
	return r.items(encodeList(nil, all, bindingOf, parseColumns(r.query("columns"))))
}

func listBindings(r *request) error { return r.bindings(broker.BindingFilter{}) }

// What does not exist has no bindings, which is no error in RabbitMQ either.

func listQueueBindings(r *request) error {
	name := r.vars["queue"]
	return r.bindings(broker.BindingFilter{Dest: &name})
}

func listBindingsFrom(r *request) error {
	name := exchangeSegment(r.vars["exchange"])
	return r.bindings(broker.BindingFilter{Source: &name})
}

func listBindingsTo(r *request) error {
	name := exchangeSegment(r.vars["exchange"])
	return r.bindings(broker.BindingFilter{Dest: &name, ToExchange: true})
}

// ends are the two ends that a path names.
func (r *request) ends() (f broker.BindingFilter, err error) {
	source, dest := exchangeSegment(r.vars["exchange"]), r.vars["destination"]
	switch r.vars["type"] {
	case "e":
		f.ToExchange = true
		dest = exchangeSegment(dest)
	case "q":
	default:
		return f, missing
	}
	f.Source, f.Dest = &source, &dest
	return f, nil
}

func listBindingsBetween(r *request) error {
	f, err := r.ends()
	if err != nil {
		return err
	}
	return r.bindings(f)
}

// maxBindingBody is the largest body of a new binding, in bytes.
const maxBindingBody = 5000

func postBinding(r *request) error {
	f, err := r.ends()
	if err != nil {
		return err
	}
	if len(r.PostBody()) > maxBindingBody {
		return badRequest("Exceeded HTTP request body size limit")
	}
	b, err := r.body()
	if err != nil {
		return err
	}
	key, err := b.textIfThere("routing_key")
	if err != nil {
		return err
	}
	if err := shortName("routing key", key); err != nil {
		return err
	}
	if v, ok := b["arguments"]; ok && v == nil {
		return badRequest("null_not_allowed")
	}
	args, err := b.arguments("arguments")
	if err != nil {
		return err
	}
	return r.act(func(c *broker.Conn) error {
		var e *broker.Error
		if f.ToExchange {
			e = c.BindExchange(*f.Dest, *f.Source, key, args)
		} else {
			e = c.BindQueue(*f.Dest, *f.Source, key, args)
		}
		if e != nil {
			return refusal(e)
		}
		r.Response.Header.Set("Location", url.PathEscape(*f.Dest)+"/"+url.PathEscape(propertiesKey(key, args)))
		return r.done(true)
	})
}

// bindingOf finds the binding of the path.
func (r *request) bindingOf() (*route.Binding, error) {
	f, err := r.ends()
	if err != nil {
		return nil, err
	}
	props := r.vars["props"]
	plainKey, err := url.QueryUnescape(props)
	for _, b := range r.s.opt.Broker.Bindings(r.vars["vhost"], f) {
		if pk := propertiesKey(b.Key, b.Args); pk == props || len(b.Args) == 0 && (b.Key == props || err == nil && b.Key != "" && b.Key == plainKey) {
			return &b, nil
		}
	}
	return nil, missing
}

func getBinding(r *request) error {
	b, err := r.bindingOf()
	if err != nil {
		return err
	}
	return r.ok(bindingOf(b))
}

func deleteBinding(r *request) error {
	b, err := r.bindingOf()
	if err != nil {
		return err
	}
	return r.act(func(c *broker.Conn) error {
		var e *broker.Error
		if b.ToExchange {
			e = c.UnbindExchange(b.Dest, b.Source, b.Key, b.Args)
		} else {
			e = c.UnbindQueue(b.Dest, b.Source, b.Key, b.Args)
		}
		if e != nil {
			return refusal(e)
		}
		return r.done(false)
	})
}
