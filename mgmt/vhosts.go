package mgmt

import (
	"maps"
	"slices"
	"strings"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/mgmt/api"
)

func listVHosts(r *request) error {
	w, err := r.rates()
	if err != nil {
		return err
	}
	traffic, octets := r.s.opt.Broker.Traffic(), octetsByVHost(r.s.opt.Broker.Connections())
	w.s.mu.RLock()
	defer w.s.mu.RUnlock()
	return list(r, r.vhosts(), func(v *string) string { return *v }, func(v *string, _ parts) api.VHost { return r.vhost(w, &traffic, octets[*v], *v) })
}

// octetsByVHost adds up what open connections received and sent.
func octetsByVHost(conns []broker.ConnView) map[string]broker.Octets {
	sums := make(map[string]broker.Octets)
	for _, c := range conns {
		sum, n := sums[c.VHost], octetsOf(c.ConnInfo)
		sum.Received += n.Received
		sum.Sent += n.Sent
		sums[c.VHost] = sum
	}
	return sums
}

func (r *request) vhost(w *view, traffic *broker.Traffic, octets broker.Octets, name string) api.VHost {
	b := r.s.opt.Broker
	m := b.VHostMeta(name)
	metadata := metadataOf(m)
	sum := b.VHostTotals(name)
	s := w.s.vhosts[name]
	first := lengthFields + len(statNames)
	v := api.VHost{
		Name: name, Description: m.Description, Tags: metadata.Tags, DefaultQueueType: metadata.DefaultQueueType,
		Metadata: metadata, Protected: m.Protected,
		Tracing: m.Tracing, ClusterState: map[string]string{r.s.opt.Node: "running"},
		Lengths: w.lengthsOf(s, lengths{sum.Ready, sum.Unacked}),
		RecvOct: octets.Received, RecvOctDetails: s.details(first, int64(octets.Received), w.now, w.bytes),
		SendOct: octets.Sent, SendOctDetails: s.details(first+1, int64(octets.Sent), w.now, w.bytes),
	}
	if t := traffic.VHosts[name]; t != nil {
		v.MessageStats = w.stats(s, lengthFields, t, false)
	}
	return v
}

func getVHost(r *request) error {
	if err := r.known(); err != nil {
		return err
	}
	w, err := r.rates()
	if err != nil {
		return err
	}
	traffic, octets := r.s.opt.Broker.Traffic(), octetsByVHost(r.s.opt.Broker.Connections())
	w.s.mu.RLock()
	defer w.s.mu.RUnlock()
	return r.ok(r.vhost(w, &traffic, octets[r.vars["vhost"]], r.vars["vhost"]))
}

// queueTypes are what a vhost's default queue type can be.
var queueTypes = []string{"classic", "quorum"}

func putVHost(r *request) error {
	b, err := r.body()
	if err != nil {
		return err
	}
	name := r.vars["vhost"]
	if err := shortName("vhost", name); err != nil {
		return err
	}
	var m broker.VHostMeta
	if m.Description, err = b.text("description"); err != nil {
		return err
	}
	if m.Tags, err = tagsOf(b["tags"]); err != nil {
		return err
	}
	if m.DefaultQueueType, err = b.text("default_queue_type"); err != nil {
		return err
	}
	if m.DefaultQueueType != "" && !slices.Contains(queueTypes, m.DefaultQueueType) {
		return badRequestf("Unsupported default queue type: %s", m.DefaultQueueType)
	}
	if err := metaWithin(&m); err != nil {
		return err
	}
	if m.Tracing, err = b.boolean("tracing", false); err != nil {
		return err
	}
	created := r.s.opt.Broker.AddVHost(name)
	if e := r.s.opt.Broker.ChangeVHostMeta(name, func(old *broker.VHostMeta) {
		if m.Protected = old.Protected; b["tracing"] == nil {
			m.Tracing = old.Tracing
		}
		*old = m
	}); e != nil {
		return refusal(e)
	}
	if created {
		// Who makes a vhost may do everything in it.
		if _, err := r.s.opt.Broker.Users().SetPermissions(auth.Permission{
			User: r.user.Name, VHost: name, Configure: ".*", Write: ".*", Read: ".*",
		}); err != nil {
			return err
		}
		r.s.opt.Broker.UsersChanged(r.user.Name)
	}
	return r.done(created)
}

// metaWithin refuses too much to note about a vhost.
func metaWithin(m *broker.VHostMeta) error {
	return within("metadata", len(m.Description)+sizeOf(m.Tags))
}

// tagsOf reads a list of strings, or one string with commas.
func tagsOf(v any) ([]string, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return api.SplitTags(v), nil
	case []any:
		tags := make([]string, 0, len(v))
		for _, t := range v {
			s, ok := t.(string)
			if !ok {
				return nil, badRequest([]string{"not_string", "tags"})
			}
			tags = append(tags, s)
		}
		return tags, nil
	}
	return nil, badRequest([]string{"not_string", "tags"})
}

func deleteVHost(r *request) error {
	e := r.s.opt.Broker.DeleteVHost(r.vars["vhost"])
	switch {
	case e == nil:
		return r.done(false)
	case e.Kind == broker.NotFound:
		return missing
	}
	return failed(412, "precondition_failed", e.Text).because(e.Text)
}

// protectVHost has deletions of a vhost refused, or not any more.
func protectVHost(protected bool) handler {
	return func(r *request) error {
		if e := r.s.opt.Broker.ChangeVHostMeta(r.vars["vhost"], func(m *broker.VHostMeta) { m.Protected = protected }); e != nil {
			return missing
		}
		return r.done(false)
	}
}

func startVHost(r *request) error {
	switch {
	case r.vars["node"] != r.s.opt.Node:
		return badRequestf("Request to node %s failed with nodedown", r.vars["node"])
	case r.known() != nil:
		return badRequestf("Request to node %s failed with {no_such_vhost,<<\"%s\">>}", r.vars["node"], r.vars["vhost"])
	}
	return r.done(false)
}

// vhostLimitNames are the limits that a vhost can have.
var vhostLimitNames = []string{broker.MaxConnections, broker.MaxQueues}

type vhostLimitsOf struct {
	VHost string        `json:"vhost"`
	Value broker.Limits `json:"value"`
}

func listVHostLimits(r *request) error {
	items := []vhostLimitsOf{}
	for _, v := range r.visible() {
		if l := r.s.opt.Broker.VHostLimits(v); len(l) > 0 {
			items = append(items, vhostLimitsOf{v, l})
		}
	}
	return plain(r, items)
}

func putVHostLimit(r *request) error {
	if r.known() != nil {
		return errVHostMissing
	}
	n, err := limitFrom(r, vhostLimitNames, "limits")
	if f, ok := err.(*failure); ok {
		if s, ok := f.reason.(string); ok && !strings.HasPrefix(s, "[{key") {
			return badRequest("Validation failed\n\n" + s + "\n")
		}
	}
	if err != nil {
		return err
	}
	if e := r.s.opt.Broker.SetVHostLimit(r.vars["vhost"], r.vars["limit"], n); e != nil {
		return errVHostMissing
	}
	return r.done(false)
}

func deleteVHostLimit(r *request) error {
	if e := r.s.opt.Broker.SetVHostLimit(r.vars["vhost"], r.vars["limit"], -1); e != nil {
		return missing
	}
	return r.done(false)
}

// sortedKeys are the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
