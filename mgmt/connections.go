package mgmt

import (
	"net"
	"slices"

	"github.com/valyala/fasthttp"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/mgmt/api"
)

// connections are those that the user sees.
func (r *request) connections() []broker.ConnView {
	all := r.s.opt.Broker.Connections()
	vhost, inVHost := r.vars["vhost"]
	return slices.DeleteFunc(all, func(c broker.ConnView) bool {
		return inVHost && c.VHost != vhost || !r.seesAll() && c.User != r.user.Name
	})
}

func listConnections(r *request) error {
	w, err := r.rates()
	if err != nil {
		return err
	}
	w.s.mu.RLock()
	defer w.s.mu.RUnlock()
	if _, ok := r.vars["vhost"]; ok {
		conns := r.connections()
		items := make([]api.Connection, len(conns))
		for i := range conns {
			items[i] = r.connection(w, &conns[i], allParts)
		}
		return plain(r, items)
	}
	return list(r, r.connections(), func(c *broker.ConnView) string { return c.Name },
		func(c *broker.ConnView, need parts) api.Connection { return r.connection(w, c, need) })
}

// secure says whether that port is one of TLS.
func (s *Server) secure(port int) bool {
	if s.opt.Listeners == nil {
		return false
	}
	return slices.ContainsFunc(s.opt.Listeners(), func(l Listener) bool {
		a, ok := l.Addr.(*net.TCPAddr)
		return ok && l.TLS && a.Port == port
	})
}

// protocolName is the protocol as operators know it.
func protocolName(p string) string {
	if p == "FMQ1" {
		return "FireMQ 1"
	}
	return p
}

func (r *request) connection(w *view, c *broker.ConnView, need parts) api.Connection {
	n := octetsOf(c.ConnInfo)
	name, _ := c.Properties.Get("connection_name")
	shown := api.Connection{
		Name: c.Name, Node: r.s.opt.Node, State: string(c.State), Type: "network", Protocol: protocolName(c.Protocol),
		User: c.User, PerformedBy: c.User, VHost: c.VHost, ConnectedAt: c.Since,
		Channels: c.Channels, ChannelMax: c.ChannelMax, FrameMax: c.FrameMax, Timeout: c.Heartbeat,
		AuthMechanism: c.Mechanism, UserProvidedName: name.Str,
		RecvOct: n.Received, RecvCnt: n.Reads, SendOct: n.Sent, SendCnt: n.Writes,
	}
	if need&partAddresses != 0 {
		shown.Host, shown.Port = c.LocalHost()
		shown.PeerHost, shown.PeerPort = c.RemoteHost()
		shown.SSL = r.s.secure(shown.Port)
	}
	if need&partProperties != 0 {
		shown.ClientProperties = argumentMap(c.Properties)
	}
	if need&partRates != 0 {
		s := w.s.conns[c.ConnInfo]
		shown.RecvOctDetails = s.details(0, int64(n.Received), w.now, w.bytes)
		shown.SendOctDetails = s.details(1, int64(n.Sent), w.now, w.bytes)
	}
	return shown
}

// connectionOf finds the connection of the path, if the user may see it, or close it.
func (r *request) connectionOf(write bool) (*broker.ConnView, error) {
	for _, c := range r.s.opt.Broker.Connections() {
		if c.Name != r.vars["connection"] {
			continue
		}
		if c.User == r.user.Name || r.user.HasTag(tagAdministrator) || !write && r.user.HasTag(tagMonitoring) {
			return &c, nil
		}
		return nil, notAuthorised("User not authorised to access object")
	}
	return nil, missing
}

func getConnection(r *request) error {
	c, err := r.connectionOf(false)
	if err != nil {
		return err
	}
	w, err := r.rates()
	if err != nil {
		return err
	}
	w.s.mu.RLock()
	defer w.s.mu.RUnlock()
	one := r.connection(w, c, allParts)
	for _, text := range [...]**string{
		&one.PeerCertSubject, &one.PeerCertIssuer, &one.PeerCertValidity, &one.PeerCertSerial,
		&one.SSLProtocol, &one.SSLCipher, &one.SSLKeyExchange, &one.SSLHash,
	} {
		if *text == nil { // in lists it is null
			*text = new(string)
		}
	}
	return r.send(fasthttp.StatusOK, encode(nil, one, nil)) // columns are of lists, as in RabbitMQ
}

// closing is the reason that a closed connection's client is told.
func (r *request) closing() *broker.Error {
	reason := string(r.Request.Header.Peek("X-Reason"))
	if reason == "" {
		reason = "Closed via management plugin"
	}
	return &broker.Error{Kind: broker.ConnectionForced, Text: reason}
}

func deleteConnection(r *request) error {
	c, err := r.connectionOf(true)
	if err != nil {
		return err
	}
	r.s.opt.Broker.CloseConnections(r.closing(), func(i *broker.ConnInfo, _ string) bool { return i == c.ConnInfo })
	return r.done(false)
}

// mayTouchUser says no unless the user of the path is the one who asks, or that one has the tag or is an
// administrator.
func (r *request) mayTouchUser(tag string) error {
	if r.vars["user"] != r.user.Name && !r.user.HasTag(tagAdministrator) && !r.user.HasTag(tag) {
		return notAuthorised("User not authorised to access object")
	}
	return nil
}

func listUserConnections(r *request) error {
	if err := r.mayTouchUser(tagMonitoring); err != nil {
		return err
	}
	items := []api.UserConnection{}
	for _, c := range r.s.opt.Broker.Connections() {
		if c.User == r.vars["user"] {
			items = append(items, api.UserConnection{Name: c.Name, VHost: c.VHost, User: c.User, Node: r.s.opt.Node})
		}
	}
	return plain(r, items)
}

func deleteUserConnections(r *request) error {
	if err := r.mayTouchUser(tagAdministrator); err != nil {
		return err
	}
	r.s.opt.Broker.CloseConnections(r.closing(), func(_ *broker.ConnInfo, user string) bool { return user == r.vars["user"] })
	return r.done(false)
}

// channels are those that the user sees.
func (r *request) channels() []broker.ChannelView {
	vhost, inVHost := r.vars["vhost"]
	return slices.DeleteFunc(r.s.opt.Broker.Channels(), func(c broker.ChannelView) bool {
		return inVHost && c.Connection.VHost != vhost || !r.seesAll() && c.User != r.user.Name
	})
}

func listChannels(r *request) error {
	w, err := r.rates()
	if err != nil {
		return err
	}
	w.s.mu.RLock()
	defer w.s.mu.RUnlock()
	if _, ok := r.vars["vhost"]; ok {
		return plain(r, r.channelList(w, r.channels()))
	}
	return list(r, r.channels(), func(c *broker.ChannelView) string { return channelName(c.Connection, c.Number) },
		func(c *broker.ChannelView, need parts) api.Channel { return r.channel(w, c, need) })
}

func (r *request) channelList(w *view, channels []broker.ChannelView) []api.Channel {
	items := make([]api.Channel, len(channels))
	for i := range channels {
		items[i] = r.channel(w, &channels[i], allParts)
	}
	return items
}

func (r *request) channel(w *view, c *broker.ChannelView, need parts) api.Channel {
	shown := api.Channel{
		Number: c.Number, VHost: c.Connection.VHost, User: c.User, PerformedBy: c.User,
		Node: r.s.opt.Node, State: "running", ConsumerCount: c.Consumers,
		Confirm: c.Mode == broker.ModeConfirm, Transactional: c.Mode == broker.ModeTx,
		PrefetchCount: c.Prefetch, GlobalPrefetchCount: c.Limit, Unacknowledged: c.Unacked, Unconfirmed: c.Unconfirmed,
		Uncommitted: c.TxPublishes, AcksUncommitted: c.TxOps,
	}
	if need&partAddresses != 0 {
		shown.Name, shown.ConnectionDetails = channelName(c.Connection, c.Number), peerOf(c.Connection)
	}
	if need&partRates != 0 {
		shown.MessageStats = w.stats(w.s.channels[channelKey{c.Connection, c.Number}], 0, &c.Stats, false)
	}
	return shown
}

func listConnectionChannels(r *request) error {
	conn, err := r.connectionOf(false)
	if err != nil {
		return err
	}
	w, err := r.rates()
	if err != nil {
		return err
	}
	w.s.mu.RLock()
	defer w.s.mu.RUnlock()
	return plain(r, r.channelList(w, slices.DeleteFunc(r.s.opt.Broker.Channels(), func(c broker.ChannelView) bool {
		return c.Connection != conn.ConnInfo
	})))
}

func getChannel(r *request) error {
	for _, c := range r.s.opt.Broker.Channels() {
		if channelName(c.Connection, c.Number) != r.vars["channel"] {
			continue
		}
		if !r.seesAll() && c.User != r.user.Name {
			return notAuthorised("User not authorised to access object")
		}
		w, err := r.rates()
		if err != nil {
			return err
		}
		w.s.mu.RLock()
		defer w.s.mu.RUnlock()
		d := api.ChannelDetail{Channel: r.channel(w, &c, allParts), ConsumerDetails: []api.Consumer{}, Publishes: []any{}, Deliveries: []any{}}
		for _, q := range r.s.opt.Broker.Queues(c.Connection.VHost) {
			for _, k := range q.Consumers() {
				if k.Connection == c.Connection && k.Channel == c.Number {
					d.ConsumerDetails = append(d.ConsumerDetails, r.consumers([]broker.ConsumerView{k})...)
				}
			}
		}
		return r.ok(d)
	}
	return missing
}
