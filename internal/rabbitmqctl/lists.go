package rabbitmqctl

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/firemq/firemq/mgmt/api"
)

// object is one object of a list of the API.
type object map[string]any

// at is the value at a path of fields; nil if there is none.
func (o object) at(path string) any {
	var v any = map[string]any(o)
	for name := range strings.SplitSeq(path, ".") {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

func (o object) text(path string) string {
	s, _ := o.at(path).(string)
	return s
}

// list is a command that prints columns.
type list struct {
	columns  []string // in the order of the help; those that may be asked for
	defaults []string // nil: all
	// path is where the API has it, and first what is announced, with the vhost in it.
	path  func(c *call) string
	first func(c *call) string
	// value gives the columns that the API has under another name or in another form; ok is false for the others.
	value func(o object, column string) (v any, ok bool)
	keep  func(c *call, o object) bool // nil: every object
	fixed bool                         // the columns cannot be chosen
	plain bool                         // no headings
}

func (l *list) command(name, form string, least, most int) command {
	if !l.fixed {
		form, most = strings.TrimSpace(form+" [<column> ...]"), -1
	}
	return command{name: name, form: form, least: least, most: most, run: func(c *call) error {
		columns := l.defaults
		if columns == nil {
			columns = l.columns
		}
		if !l.fixed && len(c.args) > 0 {
			columns = nil
			var unknown []string
			for _, a := range c.args {
				for name := range strings.FieldsFuncSeq(a, func(r rune) bool { return r == ',' || r == ' ' }) {
					columns = append(columns, name)
					if !slices.Contains(l.columns, name) {
						unknown = append(unknown, name)
					}
				}
			}
			if unknown != nil {
				return c.badArguments("Info key(s) %s are not supported", strings.Join(unknown, ","))
			}
		}
		c.announce("%s", l.first(c))
		var all []object
		if err := c.get(l.path(c), &all); err != nil {
			switch {
			case status(err) == 404 && strings.HasPrefix(name, "list_user_"):
				return noUser(c.args[0])
			case status(err) == 404 && strings.Contains(name, "permissions"):
				return noVHost(c.vhost())
			case status(err) != 404: // RabbitMQ lists nothing of a vhost that does not exist
				return err
			}
		}
		rows := make([][]any, 0, len(all))
		for _, o := range all {
			if l.keep != nil && !l.keep(c, o) {
				continue
			}
			row := make([]any, len(columns))
			for i, column := range columns {
				v, ok := any(nil), false
				if l.value != nil {
					v, ok = l.value(o, column)
				}
				if !ok {
					v = shown(o.at(column))
				}
				row[i] = v
			}
			rows = append(rows, row)
		}
		if l.plain {
			c.options["no-table-headers"] = ""
		}
		return c.rows(columns, rows)
	}}
}

// shown is a value of the API as a column has it.
func shown(v any) any {
	if m, ok := v.(map[string]any); ok {
		return arguments(m)
	}
	return v
}

// compact is a value as JSON.
func compact(v any) raw {
	p, err := json.Marshal(v)
	if err != nil {
		panic("BUG: a value of the API is no JSON: " + err.Error())
	}
	return raw(p)
}

// pid is what stands for the process of a connection, or with a number of a channel: it has no spaces, and no angle
// brackets but those around it, so that scripts may take it apart at them and hand it to close_connection.
func pid(connection string, channel any) string {
	s := strings.ReplaceAll(connection, " -> ", "-")
	if channel != nil {
		s += fmt.Sprintf(".%v", channel)
	}
	return "<" + s + ">"
}

// inVHost is the path of a list of the vhost that is asked for.
func inVHost(kind string) func(c *call) string {
	return func(c *call) string { return api.Path(kind, c.vhost()) }
}

func saying(format string) func(c *call) string {
	return func(c *call) string {
		if !strings.Contains(format, "%s") {
			return format
		}
		return fmt.Sprintf(format, c.vhost())
	}
}

var queueList = list{
	columns: []string{
		"name", "durable", "auto_delete", "arguments", "policy", "operator_policy", "effective_policy_definition", "pid", "owner_pid", "exclusive",
		"exclusive_consumer_pid", "exclusive_consumer_tag", "messages_ready", "messages_unacknowledged", "messages", "messages_ready_ram",
		"messages_unacknowledged_ram", "messages_ram", "messages_persistent", "message_bytes", "message_bytes_ready",
		"message_bytes_unacknowledged", "message_bytes_ram", "message_bytes_persistent", "head_message_timestamp", "disk_reads", "disk_writes",
		"consumers", "consumer_utilisation", "consumer_capacity", "memory", "slave_pids", "synchronised_slave_pids", "mirror_pids",
		"synchronised_mirror_pids", "state", "type", "leader", "members", "online", "single_active_consumer_tag",
	},
	defaults: []string{"name", "messages"},
	path:     inVHost("queues"),
	first: func(c *call) string {
		if c.has(reporting) {
			return fmt.Sprintf("Listing queues for vhost %s ...", c.vhost())
		}
		limit := c.options["timeout"]
		if limit == "" {
			limit = "60"
		}
		return fmt.Sprintf("Timeout: %s.0 seconds ...\nListing queues for vhost %s ...", limit, c.vhost())
	},
	value: func(o object, column string) (any, bool) {
		switch column {
		case "pid":
			return "<" + o.text("node") + "." + o.text("name") + ">", true
		case "messages_ready_ram":
			return o.at("messages_ready"), true
		case "messages_unacknowledged_ram":
			return o.at("messages_unacknowledged"), true
		case "leader":
			return o.at("node"), true
		case "members", "online":
			return []atom{atom(o.text("node"))}, true
		}
		return nil, false
	},
}

// unresponsiveList has none: the API lists a queue when it has answered.
var unresponsiveList = list{
	columns:  []string{"name", "durable", "auto_delete", "arguments", "pid"},
	defaults: []string{"name"},
	path:     inVHost("queues"),
	first:    saying("Listing unresponsive queues for vhost %s ..."),
	keep:     func(*call, object) bool { return false },
}

var featureFlagList = list{
	columns:  []string{"name", "state", "stability", "provided_by", "desc", "doc_url", "require_level"},
	defaults: []string{"name", "state"},
	path:     func(*call) string { return api.Path("feature-flags") },
	first:    saying("Listing feature flags ..."),
}

var deprecatedList = list{
	columns:  []string{"name", "deprecation_phase", "provided_by", "desc", "doc_url"},
	defaults: []string{"name", "deprecation_phase"},
	path: func(c *call) string {
		if c.has("used") {
			return api.Path("deprecated-features", "used")
		}
		return api.Path("deprecated-features")
	},
	first: func(c *call) string {
		if c.has("used") {
			return "Listing deprecated features in use ..."
		}
		return "Listing deprecated features ..."
	},
}

var exchangeList = list{
	columns:  []string{"name", "type", "durable", "auto_delete", "internal", "arguments", "policy"},
	defaults: []string{"name", "type"},
	path:     inVHost("exchanges"),
	first:    saying("Listing exchanges for vhost %s ..."),
}

var bindingList = list{
	columns:  []string{"source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments", "vhost"},
	defaults: []string{"source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments"},
	path:     inVHost("bindings"),
	first:    saying("Listing bindings for vhost %s..."),
	value: func(o object, column string) (any, bool) {
		switch column {
		case "source_name":
			return o.at("source"), true
		case "source_kind":
			return "exchange", true
		case "destination_name":
			return o.at("destination"), true
		case "destination_kind":
			return o.at("destination_type"), true
		}
		return nil, false
	},
}

var connectionList = list{
	columns: []string{
		"pid", "name", "port", "host", "peer_port", "peer_host", "ssl", "ssl_protocol", "ssl_key_exchange", "ssl_cipher", "ssl_hash",
		"peer_cert_subject", "peer_cert_issuer", "peer_cert_validity", "state", "channels", "protocol", "auth_mechanism", "user", "vhost",
		"timeout", "frame_max", "channel_max", "client_properties", "connected_at", "recv_oct", "recv_cnt", "send_oct", "send_cnt", "send_pend",
		"user_provided_name", "node",
	},
	defaults: []string{"user", "peer_host", "peer_port", "state"},
	path:     func(*call) string { return api.Path("connections") },
	first:    saying("Listing connections ..."),
	value: func(o object, column string) (any, bool) {
		switch column {
		case "pid":
			return pid(o.text("name"), nil), true
		case "protocol":
			if o.text("protocol") == "AMQP 0-9-1" {
				return raw("{0,9,1}"), true
			}
		}
		return nil, false
	},
}

var channelList = list{
	columns: []string{
		"pid", "connection", "name", "number", "user", "vhost", "transactional", "confirm", "consumer_count", "messages_unacknowledged",
		"messages_uncommitted", "acks_uncommitted", "messages_unconfirmed", "prefetch_count", "global_prefetch_count", "state",
	},
	defaults: []string{"pid", "user", "consumer_count", "messages_unacknowledged"},
	path:     func(*call) string { return api.Path("channels") },
	first:    saying("Listing channels ..."),
	value: func(o object, column string) (any, bool) {
		switch column {
		case "pid":
			return pid(o.text("connection_details.name"), o.at("number")), true
		case "connection":
			return pid(o.text("connection_details.name"), nil), true
		}
		return nil, false
	},
}

var consumerList = list{
	columns: []string{
		"queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active", "arguments", "exclusive", "activity_status",
	},
	defaults: []string{"queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active", "arguments"},
	path:     inVHost("consumers"),
	first:    saying("Listing consumers in vhost %s ..."),
	value: func(o object, column string) (any, bool) {
		switch column {
		case "queue_name":
			return o.at("queue.name"), true
		case "channel_pid":
			return pid(o.text("channel_details.connection_name"), o.at("channel_details.number")), true
		}
		return nil, false
	},
}

var userList = list{
	columns: []string{"user", "tags"},
	path:    func(*call) string { return api.Path("users") },
	first:   saying("Listing users ..."),
	fixed:   true,
	value: func(o object, column string) (any, bool) {
		switch column {
		case "user":
			return o.at("name"), true
		case "tags":
			tags := []atom{}
			list, _ := o.at("tags").([]any)
			for _, t := range list {
				tags = append(tags, atom(fmt.Sprint(t)))
			}
			return tags, true
		}
		return nil, false
	},
}

var vhostList = list{
	columns:  []string{"name", "tracing", "cluster_state", "description", "tags", "default_queue_type", "protected_from_deletion"},
	defaults: []string{"name"},
	path:     func(*call) string { return api.Path("vhosts") },
	first:    saying("Listing vhosts ..."),
	value: func(o object, column string) (any, bool) {
		switch column {
		case "tags":
			tags := []atom{}
			list, _ := o.at("tags").([]any)
			for _, t := range list {
				tags = append(tags, atom(fmt.Sprint(t)))
			}
			return tags, true
		case "cluster_state":
			of, _ := o.at("cluster_state").(map[string]any)
			return states(of), true
		}
		return nil, false
	},
}

var permissionList = list{
	columns: []string{"user", "configure", "write", "read"},
	path:    func(c *call) string { return api.Path("vhosts", c.vhost(), "permissions") },
	first:   saying(`Listing permissions for vhost "%s" ...`),
	fixed:   true,
}

var userPermissionList = list{
	columns: []string{"vhost", "configure", "write", "read"},
	path:    func(c *call) string { return api.Path("users", c.args[0], "permissions") },
	first:   func(c *call) string { return fmt.Sprintf(`Listing permissions for user "%s" ...`, c.args[0]) },
	fixed:   true,
}

var topicPermissionList = list{
	columns: []string{"user", "exchange", "write", "read"},
	path:    func(c *call) string { return api.Path("vhosts", c.vhost(), "topic-permissions") },
	first:   saying(`Listing topic permissions for vhost "%s" ...`),
	fixed:   true,
}

var userTopicPermissionList = list{
	columns: []string{"vhost", "exchange", "write", "read"},
	path:    func(c *call) string { return api.Path("users", c.args[0], "topic-permissions") },
	first:   func(c *call) string { return fmt.Sprintf(`Listing topic permissions for user "%s" ...`, c.args[0]) },
	fixed:   true,
	plain:   true,
}

func policyList(kind, first string) *list {
	return &list{
		columns: []string{"vhost", "name", "pattern", "apply-to", "definition", "priority"},
		path:    inVHost(kind),
		first:   saying(first),
		fixed:   true,
		value: func(o object, column string) (any, bool) {
			if column == "definition" {
				return compact(o.at(column)), true
			}
			return nil, false
		},
	}
}

var globalParameterList = list{
	columns: []string{"name", "value"},
	path:    func(*call) string { return api.Path("global-parameters") },
	first:   saying("Listing global runtime parameters ..."),
	fixed:   true,
	value: func(o object, column string) (any, bool) {
		if column == "value" {
			return compact(o.at(column)), true
		}
		return nil, false
	},
}

// parameterList leaves out what has commands of its own.
var parameterList = list{
	columns: []string{"component", "name", "value"},
	path:    func(*call) string { return api.Path("parameters") },
	first:   saying(`Listing runtime parameters for vhost "%s" ...`),
	fixed:   true,
	keep: func(c *call, o object) bool {
		return o.text("vhost") == c.vhost() && o.text("component") != "operator_policy" && o.text("component") != "vhost-limits"
	},
	value: globalParameterList.value,
}
