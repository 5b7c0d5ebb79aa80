package mgmt

import (
	"cmp"
	"strings"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/mgmt/api"
)

func exportAll(r *request) error { return r.download(r.s.export()) }

func exportVHost(r *request) error {
	if r.known() != nil {
		return badRequest("vhost_not_found")
	}
	return r.download(r.s.exportVHost(r.vars["vhost"]))
}

func (r *request) download(d any) error {
	if name := r.query("download"); name != "" {
		name = strings.Map(func(c rune) rune {
			if c < ' ' || c == '"' || c == '\\' || c == 0x7f {
				return -1
			}
			return c
		}, name)
		r.Response.Header.Set("Content-Disposition", "attachment; filename="+name)
	}
	return r.ok(d)
}

// export is the whole broker's definitions: what is exclusive, implicit or there in every vhost is not in it.
func (s *Server) export() api.Definitions {
	b := s.opt.Broker
	d := api.Definitions{
		RabbitVersion: compatibleVersion, RabbitMQVersion: compatibleVersion, ProductName: "FireMQ", ProductVersion: s.opt.Version,
		Format: "cluster", OriginalCluster: s.clusterName(), Explanation: "Definitions of cluster '" + s.clusterName() + "'",
		Users: []api.User{}, VHosts: []api.VHostDefinition{}, Permissions: []api.Permission{}, TopicPermissions: []api.TopicPermission{},
		GlobalParameters: s.globals(), VHostParts: newParts(),
	}
	for _, u := range b.Users().Users() {
		d.Users = append(d.Users, userOf(u))
	}
	for _, p := range b.Users().Permissions() {
		d.Permissions = append(d.Permissions, api.Permission(p))
	}
	for _, p := range b.Users().TopicPermissions() {
		d.TopicPermissions = append(d.TopicPermissions, api.TopicPermission(p))
	}
	for _, v := range b.VHosts() {
		m := b.VHostMeta(v)
		d.VHosts = append(d.VHosts, api.VHostDefinition{
			Name: v, Description: m.Description, Tags: append([]string{}, m.Tags...), Tracing: m.Tracing, Limits: s.limitsOf(v),
			Metadata: metadataOf(m),
		})
		s.addParts(&d.VHostParts, v)
	}
	return d
}

// limitsOf is never nil.
func (s *Server) limitsOf(vhost string) map[string]int {
	if l := s.opt.Broker.VHostLimits(vhost); l != nil {
		return l
	}
	return map[string]int{}
}

func metadataOf(m broker.VHostMeta) api.VHostMetadata {
	return api.VHostMetadata{
		Description: m.Description, Tags: append([]string{}, m.Tags...), DefaultQueueType: cmp.Or(m.DefaultQueueType, "classic"), Protected: m.Protected,
	}
}

func newParts() api.VHostParts {
	return api.VHostParts{
		Parameters: []api.Parameter{}, Policies: []api.Policy{}, Queues: []api.QueueDefinition{}, Exchanges: []api.ExchangeDefinition{},
		Bindings: []api.BindingDefinition{},
	}
}

// exportVHost is one vhost's definitions, its name left out of the objects.
func (s *Server) exportVHost(name string) api.VHostDefinitions {
	m := s.opt.Broker.VHostMeta(name)
	d := api.VHostDefinitions{
		RabbitVersion: compatibleVersion, RabbitMQVersion: compatibleVersion, ProductName: "FireMQ", ProductVersion: s.opt.Version,
		Format: "single_virtual_host", OriginalVHost: name, Limits: s.limitsOf(name),
		Explanation: "Definitions of virtual host '" + name + "'", Description: m.Description,
		Metadata:   metadataOf(m),
		VHostParts: newParts(),
	}
	s.addParts(&d.VHostParts, name)
	for i := range d.Queues {
		d.Queues[i].VHost = ""
	}
	for i := range d.Exchanges {
		d.Exchanges[i].VHost = ""
	}
	for i := range d.Bindings {
		d.Bindings[i].VHost = ""
	}
	return d
}

// addParts adds what is in one vhost.
func (s *Server) addParts(d *api.VHostParts, vhost string) {
	b := s.opt.Broker
	r := &request{s: s, vars: map[string]string{"vhost": vhost}}
	d.Policies = append(d.Policies, r.policies(false)...)
	d.Parameters = append(d.Parameters, r.parameters("")...)
	exclusive := make(map[string]bool)
	for _, q := range b.Queues(vhost) {
		v := q.View()
		if v.Exclusive {
			exclusive[v.Name] = true
			continue
		}
		d.Queues = append(d.Queues, api.QueueDefinition{
			Name: v.Name, VHost: vhost, Type: v.Type.String(), Durable: v.Durable, AutoDelete: v.AutoDelete, Arguments: argumentMap(v.Args),
		})
	}
	for _, x := range b.Exchanges(vhost) {
		if x.Name == "" || strings.HasPrefix(x.Name, "amq.") {
			continue
		}
		d.Exchanges = append(d.Exchanges, api.ExchangeDefinition{
			Name: x.Name, VHost: vhost, Type: x.Type, Durable: x.Durable, AutoDelete: x.AutoDelete, Internal: x.Internal, Arguments: argumentMap(x.Args),
		})
	}
	for _, x := range b.Bindings(vhost, broker.BindingFilter{}) {
		if x.Source == "" || !x.ToExchange && exclusive[x.Dest] {
			continue
		}
		v := bindingOf(&x)
		d.Bindings = append(d.Bindings, api.BindingDefinition{
			Source: v.Source, VHost: vhost, Destination: v.Destination, DestinationType: v.DestinationType, RoutingKey: v.RoutingKey, Arguments: v.Arguments,
		})
	}
}
