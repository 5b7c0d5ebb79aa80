package mgmt

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"slices"
	"strconv"
	"strings"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/mgmt/api"
	"github.com/firemq/firemq/route"
)

func importAll(r *request) error { return r.importInto("") }

func importVHost(r *request) error {
	if r.known() != nil {
		return errVHostMissing
	}
	return r.importInto(r.vars["vhost"])
}

func (r *request) importInto(vhost string) error {
	p := r.PostBody()
	if kind := string(r.Request.Header.ContentType()); strings.HasPrefix(kind, "multipart/form-data") {
		var err error
		if p, err = uploaded(kind, p); err != nil {
			return badRequest("failed_to_parse_json")
		}
	} else if k := r.Request.Header.ContentType(); len(k) > 0 && !jsonBody(r) && !bytes.HasPrefix(k, []byte("application/x-www-form-urlencoded")) {
		return &failure{status: 415}
	}
	warnings, err := Import(r.s.opt.Broker, p, vhost)
	if e, ok := errors.AsType[noDocument](err); ok {
		r.warn([]string{e.Error()}) // where RabbitMQ says no more than this
		return badRequest("failed_to_parse_json")
	}
	for _, w := range warnings {
		r.s.opt.Log.Warn("definitions: " + w)
	}
	r.warn(warnings)
	if err != nil {
		return badRequest(err.Error())
	}
	return r.done(false)
}

// Bounds of the warnings in an answer: those of the clients of HTTP that know the least.
const (
	maxWarnings     = 40
	maxWarningBytes = 4096
)

// warn shows warnings to who asked, in headers that RabbitMQ does not have: each a Go string literal in ASCII.
func (r *request) warn(warnings []string) {
	bytes := 0
	for i, w := range warnings {
		text := strconv.QuoteToASCII(w)
		if bytes += len(text); i >= maxWarnings || bytes > maxWarningBytes {
			r.Response.Header.Add(api.WarningHeader, strconv.QuoteToASCII(fmt.Sprintf("and %d more: see the broker's log", len(warnings)-i)))
			return
		}
		r.Response.Header.Add(api.WarningHeader, text)
	}
}

// uploaded is the part "file" of a form, as browsers send it.
func uploaded(kind string, form []byte) ([]byte, error) {
	_, params, err := mime.ParseMediaType(kind)
	if err != nil {
		return nil, err
	}
	for parts := multipart.NewReader(bytes.NewReader(form), params["boundary"]); ; {
		part, err := parts.NextRawPart()
		if err != nil {
			return nil, err
		}
		if part.FormName() == "file" {
			return io.ReadAll(part)
		}
	}
}

// noDocument is why a document is no JSON object: where in it, and the cause.
type noDocument struct{ error }

// Import makes what a definitions document of FireMQ or RabbitMQ says, in one vhost if that is named. What
// exists stays, users, permissions, policies and parameters excepted: they are replaced. The whole document is
// checked first: after an error, which names everything wrong, nothing has changed. Warnings, 1,000 at most, say what was
// skipped and why.
func Import(b *broker.Broker, document []byte, vhost string) (warnings []string, err error) {
	doc, err := api.Document(document)
	if err != nil {
		return nil, noDocument{err}
	}
	m := &importer{b: b, only: vhost, vhosts: make(map[string]bool), users: make(map[string]bool)}
	m.read(doc)
	if len(m.faults) > 0 {
		return nil, errors.New(strings.Join(m.faults, "; "))
	}
	if !m.found && (len(doc) > 0 || len(document) == 0) && doc["limits"] == nil {
		m.warn("there are no definitions in the file")
	}
	err = m.apply()
	if m.unsaid > 0 {
		m.warnings = append(m.warnings, fmt.Sprintf("and %d more", m.unsaid))
	}
	return m.warnings, err
}

// newVHost is what a file says of a vhost: each is one change.
type newVHost []func(v *broker.VHostMeta)

// importer is one import: what it has read and will make.
type importer struct {
	b        *broker.Broker
	only     string          // the vhost that everything goes to; "": each object names its own
	vhosts   map[string]bool // that exist or are made
	users    map[string]bool
	faults   []string
	found    bool // there is a section of definitions in it
	warnings []string
	unsaid   int // warnings beyond those

	newUsers    []auth.User
	newVHosts   map[string]newVHost
	permissions []auth.Permission
	topics      []auth.TopicPermission
	globals     []api.GlobalParameter
	policies    []broker.PolicyDef
	limits      map[string]broker.Limits
	exchanges   []inVHost[broker.ExchangeDeclare]
	queues      []inVHost[broker.QueueDeclare]
	bindings    []route.Binding
}

type inVHost[T any] struct {
	vhost string
	def   T
}

// fault says what is wrong, the same once.
func (m *importer) fault(format string, args ...any) {
	// A document can be wrong in every line; the first ones are enough.
	const most = 100
	if text := fmt.Sprintf(format, args...); len(m.faults) < most && !slices.Contains(m.faults, text) {
		m.faults = append(m.faults, text)
	}
}

// warn says what is skipped.
func (m *importer) warn(format string, args ...any) {
	const most = 1000
	if len(m.warnings) >= most {
		m.unsaid++
		return
	}
	m.warnings = append(m.warnings, fmt.Sprintf(format, args...))
}

// section gives each object of a list to read.
func (m *importer) section(doc body, key string, read func(b body)) {
	if doc[key] == nil {
		return
	}
	m.found = true
	list, ok := doc[key].([]any)
	if !ok {
		m.fault("%s is not a list", key)
		return
	}
	for i, v := range list {
		o, ok := v.(map[string]any)
		if !ok {
			m.fault("%s[%d] is not an object", key, i)
			continue
		}
		read(o)
	}
}

// name reads a mandatory string.
func (m *importer) name(b body, section, key string) (string, bool) {
	s, ok := b[key].(string)
	if !ok || s == "" {
		m.fault("an object of %s has no %s", section, key)
		return "", false
	}
	if len(s) > 255 {
		m.fault("%s %s is longer than 255 bytes", section, key)
		return "", false
	}
	return s, true
}

// vhost reads the vhost of an object, which must exist or be made.
func (m *importer) vhost(b body, section string) (string, bool) {
	if m.only != "" {
		return m.only, true
	}
	v, ok := b["vhost"].(string)
	if !ok {
		m.fault("an object of %s names no vhost: is this the export of one vhost?", section)
		return "", false
	}
	if !m.vhosts[v] {
		m.fault("%s: vhost '%s' does not exist", section, v)
		return "", false
	}
	return v, true
}

func (m *importer) read(doc body) {
	for _, v := range m.b.VHosts() {
		m.vhosts[v] = true
	}
	for _, u := range m.b.Users().Users() {
		m.users[u.Name] = true
	}
	if m.only == "" {
		m.readUsers(doc)
		m.section(doc, "vhosts", m.readVHost)
		m.readPermissions(doc)
		m.section(doc, "global_parameters", func(b body) {
			if name, ok := m.name(b, "global_parameters", "name"); ok {
				value := encode(nil, b["value"], nil)
				if err := within("global parameter '"+name+"'", len(value)); err != nil {
					m.fault("%s", reasonOf(err))
				}
				m.globals = append(m.globals, api.GlobalParameter{Name: name, Value: value})
			}
		})
	}
	if m.only != "" {
		m.readLimits(m.only, doc["limits"])
	}
	m.section(doc, "exchanges", m.readExchange)
	m.section(doc, "policies", func(b body) { m.readPolicy(b, b, false) })
	m.section(doc, "parameters", m.readParameter)
	m.section(doc, "queues", m.readQueue)
	m.section(doc, "bindings", m.readBinding)
	m.checkQueueLimits()
}

func (m *importer) readUsers(doc body) {
	algorithm := auth.DefaultAlgorithm
	if v, _ := doc["rabbit_version"].(string); v != "" && olderThan(v, 3, 6) {
		algorithm = auth.MD5
	}
	m.section(doc, "users", func(b body) {
		name, ok := m.name(b, "users", "name")
		if !ok {
			return
		}
		u, err := userFrom(name, b)
		if err != nil {
			m.fault("user '%s': %s", name, reasonOf(err))
			return
		}
		if u.Algorithm == "" {
			u.Algorithm = algorithm
		}
		if err := u.Validate(); err != nil {
			m.fault("user '%s': %s", name, err)
			return
		}
		m.users[name] = true
		m.newUsers = append(m.newUsers, u)
	})
}

// olderThan compares the first two numbers of a version.
func olderThan(version string, major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(version, "%d.%d", &a, &b); err != nil {
		return false
	}
	return a < major || a == major && b < minor
}

func reasonOf(err error) string {
	if f, ok := err.(*failure); ok {
		return strings.TrimSpace(fmt.Sprint(f.reason))
	}
	return err.Error()
}

func (m *importer) readVHost(b body) {
	name, ok := m.name(b, "vhosts", "name")
	if !ok {
		return
	}
	meta, _ := b["metadata"].(map[string]any)
	pick := func(key string) any {
		if v := meta[key]; v != nil {
			return v
		}
		return b[key]
	}
	// What a file does not say of a vhost that exists, as those of older versions, stays.
	var says newVHost
	if d, ok := pick("description").(string); ok {
		if err := metaWithin(&broker.VHostMeta{Description: d}); err != nil {
			m.fault("vhost '%s': %s", name, reasonOf(err))
		}
		says = append(says, func(v *broker.VHostMeta) { v.Description = d })
	}
	if t := pick("tags"); t != nil {
		tags, err := tagsOf(t)
		if err != nil {
			m.fault("vhost '%s': tags are neither a list nor a string", name)
		}
		if err := metaWithin(&broker.VHostMeta{Tags: tags}); err != nil {
			m.fault("vhost '%s': %s", name, reasonOf(err))
		}
		says = append(says, func(v *broker.VHostMeta) { v.Tags = tags })
	}
	if kind, ok := pick("default_queue_type").(string); ok {
		switch kind {
		case "", "undefined", "classic":
			kind = ""
		case "quorum":
		default:
			m.fault("vhost '%s': default queue type '%s' is not supported", name, kind)
		}
		says = append(says, func(v *broker.VHostMeta) { v.DefaultQueueType = kind })
	}
	if on, ok := pick("tracing").(bool); ok {
		says = append(says, func(v *broker.VHostMeta) { v.Tracing = on })
	}
	if on, ok := pick("protected_from_deletion").(bool); ok {
		says = append(says, func(v *broker.VHostMeta) { v.Protected = on })
	}
	m.readLimits(name, b["limits"])
	if m.newVHosts == nil {
		m.newVHosts = make(map[string]newVHost)
	}
	m.newVHosts[name] = append(m.newVHosts[name], says...)
	m.vhosts[name] = true
}

// readLimits reads the limits of a vhost as a newer RabbitMQ has them beside the parameter of that name, which comes
// later; what is empty says nothing.
func (m *importer) readLimits(vhost string, v any) {
	if l, ok := v.(map[string]any); ok && len(l) > 0 {
		m.setLimits(vhost, l)
	}
}

func (m *importer) setLimits(vhost string, value map[string]any) {
	limits, err := limitsFrom(value)
	if err != nil {
		m.fault("limits of vhost '%s': %s", vhost, reasonOf(err))
		return
	}
	if m.limits == nil {
		m.limits = make(map[string]broker.Limits)
	}
	m.limits[vhost] = limits
}

// useless says why a policy's key means nothing here.
func useless(key string) string {
	switch {
	case strings.HasPrefix(key, "ha-") || key == "queue-master-locator":
		return "there are no mirrored queues"
	case strings.HasPrefix(key, "federation-"):
		return "there is no federation"
	}
	return "it means nothing here"
}

func (m *importer) readPermissions(doc body) {
	subject := func(b body, section string) (user, vhost string, ok bool) {
		if user, ok = m.name(b, section, "user"); !ok {
			return
		}
		if !m.users[user] {
			m.fault("%s: user '%s' does not exist", section, user)
			return user, "", false
		}
		vhost, ok = m.vhost(b, section)
		return user, vhost, ok
	}
	m.section(doc, "permissions", func(b body) {
		user, vhost, ok := subject(b, "permissions")
		if !ok {
			return
		}
		p, err := permissionFrom(user, vhost, b)
		if err == nil {
			err = p.Validate()
		}
		if err != nil {
			m.fault("permissions of user '%s' in vhost '%s': %s", user, vhost, reasonOf(err))
			return
		}
		m.permissions = append(m.permissions, p)
	})
	m.section(doc, "topic_permissions", func(b body) {
		user, vhost, ok := subject(b, "topic_permissions")
		if !ok {
			return
		}
		p := auth.TopicPermission{User: user, VHost: vhost}
		p.Exchange, _ = b["exchange"].(string)
		p.Write, _ = b["write"].(string)
		p.Read, _ = b["read"].(string)
		err := within("topic permission", len(p.Exchange)+len(p.Write)+len(p.Read))
		if err == nil {
			err = p.Validate()
		}
		if err != nil {
			m.fault("topic permissions of user '%s' in vhost '%s': %s", user, vhost, reasonOf(err))
			return
		}
		m.topics = append(m.topics, p)
	})
}

// readPolicy reads a policy, or the value of an operator policy. What only a cluster or a plugin has use for is left
// out.
func (m *importer) readPolicy(b, value body, operator bool) {
	name, ok := m.name(b, "policies", "name")
	if !ok {
		return
	}
	vhost, ok := m.vhost(b, "policies")
	if !ok {
		return
	}
	if def, ok := value["definition"].(map[string]any); ok {
		known := make(map[string]any)
		var out []string
		for _, k := range sortedKeys(def) {
			if policy.Known(k, operator) {
				known[k] = def[k]
			} else {
				out = append(out, k)
			}
		}
		if out != nil {
			kind := "policy"
			if operator {
				kind = "operator policy"
			}
			if len(known) == 0 {
				m.warn("%s '%s' in vhost '%s' was skipped (%s): %s", kind, name, vhost, strings.Join(out, ", "), useless(out[0]))
				return
			}
			for _, k := range out {
				m.warn("%s '%s' in vhost '%s' goes without %s: %s", kind, name, vhost, k, useless(k))
			}
			copied := make(body, len(value))
			for k, v := range value {
				copied[k] = v
			}
			copied["definition"] = known
			value = copied
		}
	}
	p, err := policyFrom(name, value, operator)
	if err != nil {
		m.fault("%s (%s/%s)", reasonOf(err), vhost, name)
		return
	}
	m.policies = append(m.policies, broker.PolicyDef{VHost: vhost, Operator: operator, Policy: p})
}

func (m *importer) readParameter(b body) {
	component, _ := b["component"].(string)
	name, ok := m.name(b, "parameters", "name")
	if !ok {
		return
	}
	vhost, ok := m.vhost(b, "parameters")
	if !ok {
		return
	}
	value, isObject := b["value"].(map[string]any)
	switch component {
	case componentOperatorPolicy:
		m.readPolicy(b, value, true)
	case componentLimits:
		if list, ok := b["value"].([]any); ok && len(list) == 0 {
			isObject = true
		}
		if !isObject {
			m.fault("limits of vhost '%s' are no object", vhost)
			return
		}
		m.setLimits(vhost, value)
	default:
		m.warn("parameter '%s' of component '%s' in vhost '%s' was skipped: there is no such component", name, component, vhost)
	}
}

func (m *importer) readExchange(b body) {
	name, ok := m.name(b, "exchanges", "name")
	if !ok || strings.HasPrefix(name, "amq.") {
		return
	}
	vhost, ok := m.vhost(b, "exchanges")
	if !ok {
		return
	}
	d := broker.ExchangeDeclare{Name: name}
	d.Type, _ = b["type"].(string)
	if d.Type == "" {
		d.Type = "direct"
	}
	if !broker.IsExchangeType(d.Type) {
		m.fault("exchange '%s' in vhost '%s' has the unsupported type '%s'", name, vhost, d.Type)
		return
	}
	var errs [4]error
	d.Durable, errs[0] = b.boolean("durable", true)
	d.AutoDelete, errs[1] = b.boolean("auto_delete", false)
	d.Internal, errs[2] = b.boolean("internal", false)
	d.Args, errs[3] = b.arguments("arguments")
	if _, e := broker.ExchangeKind(d.Type, d.Args); e != nil && errs[3] == nil {
		errs[3] = errors.New(e.Text)
	}
	if e := broker.CheckTable(d.Args, "arguments"); e != nil {
		errs[3] = e
	}
	for _, err := range errs {
		if err != nil {
			m.fault("exchange '%s' in vhost '%s': %s", name, vhost, reasonOf(err))
			return
		}
	}
	if _, bad := policy.AlternateExchange(d.Args, name); bad != nil {
		m.fault("%s", bad.Text)
		return
	}
	m.exchanges = append(m.exchanges, inVHost[broker.ExchangeDeclare]{vhost, d})
}

func (m *importer) readQueue(b body) {
	name, ok := m.name(b, "queues", "name")
	if !ok {
		return
	}
	vhost, ok := m.vhost(b, "queues")
	if !ok {
		return
	}
	if strings.HasPrefix(name, "amq.") {
		m.warn("queue '%s' in vhost '%s' was skipped: names that begin with 'amq.' are given by the broker", name, vhost)
		return
	}
	d := broker.QueueDeclare{Name: name}
	var errs [3]error
	d.Durable, errs[0] = b.boolean("durable", true)
	d.AutoDelete, errs[1] = b.boolean("auto_delete", false)
	d.Args, errs[2] = b.arguments("arguments")
	if e := broker.CheckTable(d.Args, "arguments"); e != nil {
		errs[2] = e
	}
	for _, err := range errs {
		if err != nil {
			m.fault("queue '%s' in vhost '%s': %s", name, vhost, reasonOf(err))
			return
		}
	}
	if kind, _ := b["type"].(string); kind != "" && kind != "classic" && kind != "default" && d.Args == nil {
		d.Args = table.Table{{Name: "x-queue-type", Value: table.StringValue(kind)}}
	}
	// A quorum queue becomes what it is here: a durable queue with a delivery limit.
	_, bad := policy.Parse(d.Args, policy.Properties{Durable: d.Durable, AutoDelete: d.AutoDelete}, fmt.Sprintf("queue '%s' in vhost '%s'", name, vhost))
	if bad != nil {
		m.fault("queue '%s' in vhost '%s': %s", name, vhost, bad.Text)
		return
	}
	m.queues = append(m.queues, inVHost[broker.QueueDeclare]{vhost, d})
}

func (m *importer) readBinding(b body) {
	source, ok := b["source"].(string)
	if !ok || source == "" {
		return // of the default exchange: there anyway
	}
	r := route.Binding{Source: source}
	if r.Dest, ok = m.name(b, "bindings", "destination"); !ok {
		return
	}
	if r.VHost, ok = m.vhost(b, "bindings"); !ok {
		return
	}
	r.Key, _ = b["routing_key"].(string)
	switch kind, _ := b["destination_type"].(string); kind {
	case "queue", "":
	case "exchange":
		r.ToExchange = true
	default:
		m.fault("binding of '%s' in vhost '%s' leads to the unknown type '%s'", r.Dest, r.VHost, kind)
		return
	}
	var err error
	if r.Args, err = b.arguments("arguments"); err != nil {
		m.fault("binding of '%s' in vhost '%s': %s", r.Dest, r.VHost, reasonOf(err))
		return
	}
	if e := broker.CheckTable(r.Args, "arguments"); e != nil {
		m.fault("binding of '%s' in vhost '%s': %s", r.Dest, r.VHost, e.Text)
		return
	}
	if err := route.CheckBinding(m.kindOf(r.VHost, source), &r); err != nil {
		m.fault("binding of '%s' in vhost '%s': %s", r.Dest, r.VHost, err)
		return
	}
	m.bindings = append(m.bindings, r)
}

// kindOf is the type of an exchange that exists or is made; 0: there will be none.
func (m *importer) kindOf(vhost, name string) route.Kind {
	kind, args := "", table.Table(nil)
	if x, ok := m.b.Exchange(vhost, name); ok {
		kind, args = x.Type, x.Args
	} else if strings.HasPrefix(name, "amq.") {
		kind = map[string]string{"amq.headers": "headers", "amq.match": "headers"}[name]
	}
	for i := range m.exchanges {
		if x := &m.exchanges[i]; kind == "" && x.vhost == vhost && x.def.Name == name {
			kind, args = x.def.Type, x.def.Args
		}
	}
	k, _ := broker.ExchangeKind(kind, args)
	return k
}

// checkQueueLimits finds the vhosts that cannot take the new queues.
func (m *importer) checkQueueLimits() {
	fresh := make(map[string]int)
	for i := range m.queues {
		if _, exists := m.b.Queue(m.queues[i].vhost, m.queues[i].def.Name); !exists {
			fresh[m.queues[i].vhost]++
		}
	}
	for _, v := range sortedKeys(fresh) {
		limits, ok := m.limits[v]
		if !ok {
			limits = m.b.VHostLimits(v)
		}
		if most, limited := limits[broker.MaxQueues]; limited && most >= 0 && len(m.b.Queues(v))+fresh[v] > most {
			m.fault("vhost '%s' may have %d queues: %d more are too many", v, most, fresh[v])
		}
	}
}

// apply makes what was read. All of it was checked: an error is a change that somebody else made meanwhile, or
// a broker that stops.
func (m *importer) apply() error {
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	refused := func(e *broker.Error) {
		if e != nil {
			errs = append(errs, e)
		}
	}
	users := m.b.Users()
	var changed []string
	for _, u := range m.newUsers {
		_, err := users.PutUser(u)
		note(err)
		changed = append(changed, u.Name)
	}
	for _, v := range sortedKeys(m.newVHosts) {
		m.b.AddVHost(v)
		refused(m.b.ChangeVHostMeta(v, func(old *broker.VHostMeta) {
			for _, change := range m.newVHosts[v] {
				change(old)
			}
		}))
	}
	for _, p := range m.permissions {
		_, err := users.SetPermissions(p)
		note(err)
		changed = append(changed, p.User)
	}
	for _, p := range m.topics {
		_, err := users.SetTopicPermission(p)
		note(err)
		changed = append(changed, p.User)
	}
	m.b.UsersChanged(changed...)
	for _, g := range m.globals {
		m.b.SetGlobal(g.Name, g.Value)
	}
	for _, p := range m.policies {
		refused(m.b.PutPolicy(p))
	}
	for _, v := range sortedKeys(m.limits) {
		for _, name := range vhostLimitNames {
			n, ok := m.limits[v][name]
			if !ok {
				n = -1
			}
			refused(m.b.SetVHostLimit(v, name, n))
		}
	}
	for _, v := range m.touched() {
		note(m.declare(v))
	}
	return errors.Join(errs...)
}

// touched are the vhosts in which something is declared.
func (m *importer) touched() []string {
	seen := make(map[string]bool)
	for i := range m.exchanges {
		seen[m.exchanges[i].vhost] = true
	}
	for i := range m.queues {
		seen[m.queues[i].vhost] = true
	}
	for i := range m.bindings {
		seen[m.bindings[i].VHost] = true
	}
	return sortedKeys(seen)
}

// declare makes the topology of one vhost.
func (m *importer) declare(vhost string) error {
	c, e := m.b.Administer(vhost)
	if e != nil {
		return e
	}
	defer c.Close()
	var errs []error
	for i := range m.exchanges {
		x := &m.exchanges[i]
		if _, exists := m.b.Exchange(vhost, x.def.Name); x.vhost != vhost || exists {
			continue
		}
		if e := c.DeclareExchange(&x.def); e != nil {
			errs = append(errs, e)
		}
	}
	for i := range m.queues {
		q := &m.queues[i]
		if _, exists := m.b.Queue(vhost, q.def.Name); q.vhost != vhost || exists {
			continue
		}
		if _, e := c.DeclareQueue(&q.def); e != nil {
			errs = append(errs, e)
		}
	}
	for i := range m.bindings {
		r := &m.bindings[i]
		if r.VHost != vhost {
			continue
		}
		var e *broker.Error
		if r.ToExchange {
			e = c.BindExchange(r.Dest, r.Source, r.Key, r.Args)
		} else {
			e = c.BindQueue(r.Dest, r.Source, r.Key, r.Args)
		}
		switch {
		case e == nil:
		case e.Kind == broker.NotFound: // as in RabbitMQ
			m.warn("binding of '%s' to '%s' with the key '%s' in vhost '%s' was skipped: %s", r.Dest, r.Source, r.Key, vhost, e.Text)
		default:
			errs = append(errs, e)
		}
	}
	return errors.Join(errs...)
}
