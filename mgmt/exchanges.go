package mgmt

import (
	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/mgmt/api"
)

func listExchanges(r *request) error {
	var all []broker.ExchangeView
	for _, v := range r.scope() {
		all = append(all, r.s.opt.Broker.Exchanges(v)...)
	}
	w, err := r.rates()
	if err != nil {
		return err
	}
	w.s.mu.RLock()
	defer w.s.mu.RUnlock()
	return list(r, all, func(x *broker.ExchangeView) string { return x.Name },
		func(x *broker.ExchangeView, _ parts) api.Exchange { return exchangeOf(w, x) })
}

func exchangeOf(w *view, v *broker.ExchangeView) api.Exchange {
	x := api.Exchange{
		Name: v.Name, VHost: v.VHost, Type: v.Type, Durable: v.Durable, AutoDelete: v.AutoDelete, Internal: v.Internal,
		Arguments: argumentMap(v.Args), User: "firemq",
	}
	if v.Governing.User != nil {
		x.Policy = v.Governing.User.Name
	}
	s := w.s.exchanges[v.Stats]
	if in := v.Stats.In.Load(); in > 0 {
		x.MessageStats = append(x.MessageStats, api.Stat{Name: "publish_in", Total: in, Details: s.details(0, int64(in), w.now, w.messages)})
	}
	if out := v.Stats.Out.Load(); out > 0 {
		x.MessageStats = append(x.MessageStats, api.Stat{Name: "publish_out", Total: out, Details: s.details(1, int64(out), w.now, w.messages)})
	}
	return x
}

func (r *request) exchangeOf() (broker.ExchangeView, error) {
	x, ok := r.s.opt.Broker.Exchange(r.vars["vhost"], exchangeSegment(r.vars["exchange"]))
	if !ok {
		return x, missing
	}
	return x, nil
}

func getExchange(r *request) error {
	x, err := r.exchangeOf()
	if err != nil {
		return err
	}
	w, err := r.rates()
	if err != nil {
		return err
	}
	w.s.mu.RLock()
	defer w.s.mu.RUnlock()
	return r.ok(api.ExchangeDetail{Exchange: exchangeOf(w, &x), Incoming: []any{}, Outgoing: []any{}})
}

func putExchange(r *request) error {
	b, err := r.body()
	if err != nil {
		return err
	}
	d := broker.ExchangeDeclare{Name: exchangeSegment(r.vars["exchange"])}
	if d.Type, err = b.text("type"); err != nil {
		return err
	}
	if _, there := b["type"]; !there {
		d.Type = "direct"
	}
	if !broker.IsExchangeType(d.Type) {
		return badRequestf("invalid exchange type '%s'", d.Type)
	}
	if d.Durable, err = b.boolean("durable", false); err != nil {
		return err
	}
	if d.AutoDelete, err = b.boolean("auto_delete", false); err != nil {
		return err
	}
	if d.Internal, err = b.boolean("internal", false); err != nil {
		return err
	}
	if d.Args, err = b.arguments("arguments"); err != nil {
		return err
	}
	if err := shortName("exchange", d.Name); err != nil {
		return err
	}
	_, existed := r.s.opt.Broker.Exchange(r.vars["vhost"], d.Name)
	return r.act(func(c *broker.Conn) error {
		if e := c.DeclareExchange(&d); e != nil {
			return refusal(e)
		}
		return r.done(!existed)
	})
}

func deleteExchange(r *request) error {
	x, err := r.exchangeOf()
	if err != nil {
		return err
	}
	return r.act(func(c *broker.Conn) error {
		if e := c.DeleteExchange(x.Name, r.query("if-unused") == "true"); e != nil {
			return refusal(e)
		}
		return r.done(false)
	})
}
