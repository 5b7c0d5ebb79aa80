package rabbitmqctl

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/mgmt/api"
)

// command is one command of a tool.
type command struct {
	name        string
	form        string // of its arguments, for the usage
	least, most int    // arguments; most -1: any number
	run         func(c *call) error
	tool        string // Plugins, or "" for the two others
}

func (k *command) usage(tool string) string {
	return strings.TrimSpace(fmt.Sprintf("%s [--node <node>] [--longnames] [--quiet] %s %s", tool, k.name, k.form))
}

// commands are all commands. It is filled by init: help reads it.
var commands []command

func init() {
	commands = []command{
		{name: "version", run: func(c *call) error { return c.say("%s", c.t.Version) }},
		{name: "ping", run: ping},
		{name: "status", run: showStatus},
		{name: "cluster_status", run: clusterStatus},
		{name: "server_version", run: serverVersion},
		{name: "listeners", run: showListeners},
		{name: "check_running", run: running("Checking if RabbitMQ is running on node %s ...", false)},
		{name: "is_running", run: running("Asking node %s for its status ...", true)},
		{name: "check_port_listener", form: "<port>", least: 1, most: 1, run: checkPortListener},
		{name: "check_protocol_listener", form: "<protocol>", least: 1, most: 1, run: checkProtocolListener},
		{name: "check_local_alarms", run: checkLocalAlarms},
		{name: "check_alarms", run: checkAlarms},
		{name: "check_port_connectivity", run: checkPorts},
		{name: "check_virtual_hosts", run: checkVHosts},
		{name: "check_certificate_expiration", form: "--within <period> [--unit <days | weeks | months | years>]", run: checkCertificates},
		{name: "alarms", run: showAlarms},
		{name: "memory_breakdown", form: "[--unit <bytes | mb | gb>]", run: memoryBreakdown},
		{name: "is_booting", run: fine("Asking node NODE for its boot status ...", booted, fields{"result": false, "message": booted})},
		{name: "node_health_check", run: nodeHealthCheck},
		{name: "await_startup", run: awaitStartup},
		{name: "wait", form: "[<pidfile>]", most: 1, run: awaitStartup},
		{name: "await_online_nodes", form: "<count>", least: 1, most: 1, run: awaitNodes},
		{name: "stop", form: "[<pidfile>]", most: 1, run: stop},
		{name: "shutdown", run: stop},
		{name: "stop_app", run: func(c *call) error { return c.suspend("Stopping rabbit application on node %s ...", true) }},
		{name: "start_app", run: func(c *call) error { return c.suspend("Starting node %s ...", false) }},
		{name: "suspend_listeners", run: suspendListeners},
		{name: "resume_listeners", run: func(c *call) error { return c.suspend("Will resume client listeners on node %s ...", false) }},

		{name: "add_user", form: "<username> <password>", least: 1, most: 2, run: addUser},
		{name: "delete_user", form: "<username>", least: 1, most: 1, run: deleteUser},
		{name: "hash_password", form: "<cleartext_password>", most: 1, run: hashPassword},
		{name: "change_password", form: "<username> <password>", least: 1, most: 2, run: changePassword},
		{name: "clear_password", form: "<username>", least: 1, most: 1, run: clearPassword},
		{name: "authenticate_user", form: "<username> <password>", least: 1, most: 2, run: authenticateUser},
		{name: "set_user_tags", form: "<username> <tag> [...]", least: 1, most: -1, run: setUserTags},
		userList.command("list_users", "", 0, 0),
		{name: "set_user_limits", form: "<username> <definition>", least: 2, most: 2, run: setUserLimits},
		{name: "clear_user_limits", form: "<username> <limit> | all", least: 2, most: 2, run: clearUserLimits},
		{name: "list_user_limits", form: "[--user <username>]", run: listUserLimits},

		{name: "set_permissions", form: "[--vhost <vhost>] <username> <conf> <write> <read>", least: 4, most: 4, run: setPermissions},
		{name: "set_permissions_globally", form: "<username> <conf> <write> <read>", least: 4, most: 4, run: setPermissionsGlobally},
		{name: "clear_permissions", form: "[--vhost <vhost>] <username>", least: 1, most: 1, run: clearPermissions},
		permissionList.command("list_permissions", "[--vhost <vhost>]", 0, 0),
		userPermissionList.command("list_user_permissions", "<username>", 1, 1),
		{name: "set_topic_permissions", form: "[--vhost <vhost>] <username> <exchange> <write> <read>", least: 4, most: 4, run: setTopicPermissions},
		{name: "clear_topic_permissions", form: "[--vhost <vhost>] <username> [<exchange>]", least: 1, most: 2, run: clearTopicPermissions},
		topicPermissionList.command("list_topic_permissions", "[--vhost <vhost>]", 0, 0),
		userTopicPermissionList.command("list_user_topic_permissions", "<username>", 1, 1),

		{name: "add_vhost", form: "<vhost> [--description <text>] [--tags <tags>] [--default-queue-type <type>]", least: 1, most: 1, run: addVHost},
		{name: "delete_vhost", form: "<vhost>", least: 1, most: 1, run: deleteVHost},
		{name: "update_vhost_metadata", form: "<vhost> [--description <text>] [--tags <tags>] [--default-queue-type <type>]", least: 1, most: 1, run: updateVHost},
		{name: "set_vhost_tags", form: "<vhost> <tag> [...]", least: 1, most: -1, run: setVHostTags},
		{name: "restart_vhost", form: "[--vhost <vhost>]", run: restartVHost},
		{name: "enable_vhost_deletion_protection", form: "<vhost>", least: 1, most: 1, run: protectVHost("POST", `Protecting virtual host "%s" from removal by updating its metadata...`)},
		{name: "disable_vhost_deletion_protection", form: "<vhost>", least: 1, most: 1, run: protectVHost("DELETE", `Removing deletion protection from virtual host "%s" by updating its metadata...`)},
		{name: "reconcile_vhosts", run: fine("Will try to initiate virtual host reconciliation on all reachable cluster nodes...", "", nil)},
		vhostList.command("list_vhosts", "", 0, 0),
		{name: "set_vhost_limits", form: "[--vhost <vhost>] <definition>", least: 1, most: 1, run: setVHostLimits},
		{name: "clear_vhost_limits", form: "[--vhost <vhost>]", run: clearVHostLimits},
		{name: "list_vhost_limits", form: "[--vhost <vhost>] [--global]", run: listVHostLimits},
		{name: "trace_on", form: "[--vhost <vhost>]", run: func(c *call) error { return c.trace(true) }},
		{name: "trace_off", form: "[--vhost <vhost>]", run: func(c *call) error { return c.trace(false) }},

		queueList.command("list_queues", "[--vhost <vhost>]", 0, 0),
		unresponsiveList.command("list_unresponsive_queues", "[--vhost <vhost>] [--local] [--queue-timeout <milliseconds>]", 0, 0),
		exchangeList.command("list_exchanges", "[--vhost <vhost>]", 0, 0),
		bindingList.command("list_bindings", "[--vhost <vhost>]", 0, 0),
		connectionList.command("list_connections", "", 0, 0),
		channelList.command("list_channels", "", 0, 0),
		consumerList.command("list_consumers", "[--vhost <vhost>]", 0, 0),
		{name: "delete_queue", form: "<queue> [--vhost <vhost>] [--if-empty] [--if-unused]", least: 1, most: 1, run: deleteQueue},
		{name: "purge_queue", form: "<queue> [--vhost <vhost>]", least: 1, most: 1, run: purgeQueue},
		{name: "close_connection", form: "<pid> <explanation>", least: 2, most: 2, run: closeConnection},
		{name: "close_all_connections", form: "[--vhost <vhost> | --global] <explanation>", least: 1, most: 1, run: closeConnections},
		{name: "close_all_user_connections", form: "<username> <explanation>", least: 2, most: 2, run: closeUserConnections},

		{name: "set_policy", form: "[--vhost <vhost>] [--priority <priority>] [--apply-to <type>] <name> <pattern> <definition>", least: 3, most: 3, run: setPolicy("policies", "policy")},
		{name: "clear_policy", form: "[--vhost <vhost>] <name>", least: 1, most: 1, run: clearPolicy("policies", "policy")},
		policyList("policies", `Listing policies for vhost "%s" ...`).command("list_policies", "[--vhost <vhost>]", 0, 0),
		{name: "set_operator_policy", form: "[--vhost <vhost>] [--priority <priority>] [--apply-to <type>] <name> <pattern> <definition>", least: 3, most: 3, run: setPolicy("operator-policies", "operator policy override")},
		{name: "clear_operator_policy", form: "[--vhost <vhost>] <name>", least: 1, most: 1, run: clearPolicy("operator-policies", "operator policy")},
		policyList("operator-policies", `Listing operator policy overrides for vhost "%s" ...`).command("list_operator_policies", "[--vhost <vhost>]", 0, 0),
		{name: "set_parameter", form: "[--vhost <vhost>] <component> <name> <value>", least: 3, most: 3, run: setParameter},
		{name: "clear_parameter", form: "[--vhost <vhost>] <component> <name>", least: 2, most: 2, run: clearParameter},
		parameterList.command("list_parameters", "[--vhost <vhost>]", 0, 0),
		{name: "set_global_parameter", form: "<name> <value>", least: 2, most: 2, run: setGlobal},
		{name: "clear_global_parameter", form: "<name>", least: 1, most: 1, run: clearGlobal},
		globalParameterList.command("list_global_parameters", "", 0, 0),
		{name: "set_cluster_name", form: "<name>", least: 1, most: 1, run: setClusterName},

		{name: "set_vm_memory_high_watermark", form: "<fraction> | absolute <value>", least: 1, most: 2, run: setMemory},
		{name: "set_disk_free_limit", form: "<disk_limit> | mem_relative <fraction>", least: 1, most: 2, run: setDiskFree},
		{name: "export_definitions", form: "<file> | -", least: 1, most: 1, run: exportDefinitions},
		{name: "import_definitions", form: "<file> | -", most: 1, run: importDefinitions},

		featureFlagList.command("list_feature_flags", "", 0, 0),
		deprecatedList.command("list_deprecated_features", "[--used]", 0, 0),
		{name: "enable_feature_flag", form: "<flag>", least: 1, most: 1, run: enableFlag},
		absent("reset", "stop the broker and remove its data directory"),
		absent("force_reset", "stop the broker and remove its data directory"),
		{name: "eval", form: "<expression>", least: 1, most: -1, run: eval},
		absent("eval_file", "there is no Erlang in it"),
		absent("exec", "there is no Elixir in it"),
		absent("environment", "'firemq config show' shows the settings"),
		absent("join_cluster", "it is a single node"),
		absent("forget_cluster_node", "it is a single node"),
		absent("set_log_level", "log.level in its settings file is read again on SIGHUP"),
		{name: "rotate_logs", run: func(*call) error {
			return failed(exitUnavailable, "This command does not rotate logs anymore [deprecated]")
		}},
		{name: "report", run: report},
		{name: "autocomplete", form: "[<word>]", most: -1, run: autocomplete},

		{name: "check_if_node_is_quorum_critical", run: fine("Checking if node NODE is critical for quorum of any queues/streams ...",
			"Node NODE seems to be the only one in a single node cluster, the check does not apply",
			fields{"result": "ok", "message": "Target node seems to be the only one in a single node cluster, the check does not apply"})},
		{name: "rebalance", form: "all | classic | quorum", least: 1, most: 1, run: fine("Re-balancing leaders of all queues...", "", nil)},
		{name: "quorum_status", form: "[--vhost <vhost>] <queue>", least: 1, most: 1, run: quorumStatus},
		{name: "grow", form: "<node> <all | even>", least: 2, most: 2, run: grow},
		{name: "shrink", form: "<node>", least: 1, most: 1, run: shrink},
		absent("add_member", "it is a single node"),
		absent("delete_member", "it is a single node"),

		{name: "await_online_quorum_plus_one", run: fine("Will wait for a quorum + 1 of nodes to be online for all quorum queues and streams for TIMEOUT seconds...", alone, nil)},
		{name: "await_online_synchronized_mirror", run: fine("Will wait for a synchronised mirror to be online for all classic mirrored queues for TIMEOUT seconds...", alone, nil)},
		{name: "post_upgrade", run: fine("Executing post upgrade tasks...", "", nil)},
		{name: "drain", run: func(c *call) error {
			return c.suspend("Will put node %s into maintenance mode. The node will no longer serve any client traffic!", true)
		}},
		{name: "revive", run: func(c *call) error {
			return c.suspend("Will put node %s back into regular operating mode. The node will again serve client traffic and host primary queue replicas.", false)
		}},

		{name: "list", form: "[<pattern>]", most: 1, run: listPlugins, tool: Plugins},
		{name: "is_enabled", form: "<plugin> [...]", least: 1, most: -1, run: pluginsEnabled, tool: Plugins},
		{name: "enable", form: "<plugin> [...]", most: -1, run: enablePlugins, tool: Plugins},
		{name: "set", form: "[<plugin> ...]", most: -1, run: enablePlugins, tool: Plugins},
		{name: "disable", form: "<plugin> [...] | --all", most: -1, run: disablePlugins, tool: Plugins},
	}
}

// absent is a command that there is nothing for here; instead says what there is.
func absent(name, instead string) command {
	return command{name: name, most: -1, run: func(*call) error {
		return failed(exitUnavailable, "FireMQ has no %s: %s", name, instead)
	}}
}

func noUser(name string) error { return failed(exitNoUser, `User "%s" does not exist`, name) }
func noVHost(name string) error {
	return failed(exitUnavailable, "Virtual host %s does not exist", name)
}
func noParameter(e error) error {
	return otherwise(e, failed(exitUnavailable, "Parameter does not exist"))
}

// otherwise is instead when the API had no such object, else what it said.
func otherwise(err, instead error) error {
	if status(err) == 404 {
		return instead
	}
	return err
}

// Users.

// userOf reads a user as it is, to be put back with one thing changed.
func (c *call) userOf(name string) (map[string]any, error) {
	var u map[string]any
	err := c.get(api.Path("users", name), &u)
	return u, otherwise(err, noUser(name))
}

func addUser(c *call) error {
	name := c.args[0]
	c.announce(`Adding user "%s" ...`, name)
	password, err := c.input(1)
	if err != nil {
		return err
	}
	switch _, err := c.userOf(name); {
	case err == nil:
		return failed(exitSoftware, `User "%s" already exists`, name)
	case !isNoUser(err):
		return err
	}
	body := map[string]any{"tags": ""}
	if c.has("pre-hashed-password") {
		body["password_hash"] = password
	} else {
		body["password"] = password
	}
	if err := c.do("PUT", api.Path("users", name), body); err != nil {
		return err
	}
	c.announce("Done. Don't forget to grant the user permissions to some virtual hosts! See 'rabbitmqctl help set_permissions' to learn more.")
	return nil
}

// hashPassword needs no broker: with what it prints, definitions are made before there is one.
func hashPassword(c *call) error {
	password, err := c.input(0)
	switch {
	case err != nil:
		return err
	case password == "":
		return c.badArgument("password cannot be an empty string")
	case len(c.args) > 0:
		c.announce("Will hash password %s", password)
	default:
		c.announce("Will hash provided password")
	}
	return c.say("%s", auth.HashPassword(password))
}

func isNoUser(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.status == exitNoUser
}

func deleteUser(c *call) error {
	c.announce(`Deleting user "%s" ...`, c.args[0])
	return otherwise(c.do("DELETE", api.Path("users", c.args[0]), nil), noUser(c.args[0]))
}

func changePassword(c *call) error {
	c.announce(`Changing password for user "%s" ...`, c.args[0])
	password, err := c.input(1)
	if err != nil {
		return err
	}
	u, err := c.userOf(c.args[0])
	if err != nil {
		return err
	}
	delete(u, "password_hash")
	delete(u, "hashing_algorithm")
	u["password"] = password
	return c.do("PUT", api.Path("users", c.args[0]), u)
}

func clearPassword(c *call) error {
	c.announce(`Clearing password for user "%s" ...`, c.args[0])
	u, err := c.userOf(c.args[0])
	if err != nil {
		return err
	}
	u["password_hash"] = ""
	return c.do("PUT", api.Path("users", c.args[0]), u)
}

// authenticateUser asks who the user is: a right password is known by any other answer than that it is wrong.
func authenticateUser(c *call) error {
	name := c.args[0]
	c.announce(`Authenticating user "%s" ...`, name)
	password, err := c.input(1)
	if err != nil {
		return err
	}
	_, err = c.request(name, password, "GET", api.Path("whoami"), nil)
	if r, ok := errors.AsType[*refusal](err); ok && strings.HasPrefix(r.reason, "wrong user or password") {
		return failed(exitData, "Error: failed to authenticate user \"%s\"\nuser '%s' - invalid credentials", name, name)
	} else if err != nil && !ok {
		return err
	}
	return c.say("Success")
}

func setUserTags(c *call) error {
	name, tags := c.args[0], []string{}
	for _, a := range c.args[1:] {
		tags = append(tags, api.SplitTags(a)...)
	}
	c.announce(`Setting tags for user "%s" to [%s] ...`, name, strings.Join(tags, ", "))
	u, err := c.userOf(name)
	if err != nil {
		return err
	}
	u["tags"] = tags
	return c.do("PUT", api.Path("users", name), u)
}

// limitsFrom reads the definition of limits, numbers by name.
func limitsFrom(text string) (map[string]json.Number, error) {
	var m map[string]json.Number
	if err := api.Decode([]byte(text), &m); err != nil || m == nil {
		return nil, failed(exitUnavailable, "JSON decoding error. Reason: %s is no object of numbers", text)
	}
	return m, nil
}

// setLimits puts each limit, in the order of their names.
func (c *call) setLimits(kind, owner, definition string, missing error) error {
	m, err := limitsFrom(definition)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if err := c.do("PUT", api.Path(kind, owner, name), map[string]any{"value": m[name]}); err != nil {
			return otherwise(err, missing)
		}
	}
	return nil
}

// limitsOf reads the limits of one owner, or all.
func (c *call) limitsOf(kind string, owner ...string) (list []object, err error) {
	err = c.get(api.Path(kind, owner...), &list)
	return list, err
}

func setUserLimits(c *call) error {
	c.announce(`Setting user limits to "%s" for user "%s" ...`, c.args[1], c.args[0])
	if _, err := c.userOf(c.args[0]); err != nil {
		return err
	}
	return c.setLimits("user-limits", c.args[0], c.args[1], noUser(c.args[0]))
}

func clearUserLimits(c *call) error {
	name, limit := c.args[0], c.args[1]
	c.announce(`Clearing "%s" limit for user "%s" ...`, limit, name)
	if _, err := c.userOf(name); err != nil {
		return err
	}
	names := []string{limit}
	if limit == "all" {
		names = []string{"max-connections", "max-channels"}
	}
	for _, n := range names {
		if err := c.do("DELETE", api.Path("user-limits", name, n), nil); err != nil && status(err) != 404 {
			return err
		}
	}
	return nil
}

func listUserLimits(c *call) error {
	name, one := c.options["user"]
	if one {
		c.announce(`Listing limits for user "%s" ...`, name)
		if _, err := c.userOf(name); err != nil {
			return err
		}
		list, err := c.limitsOf("user-limits", name)
		return c.oneLimit(list, err)
	}
	c.announce("Listing limits for all users ...")
	list, err := c.limitsOf("user-limits")
	return c.allLimits("user", list, err)
}

// oneLimit prints the limits of one owner as JSON, an empty line if there are none.
func (c *call) oneLimit(list []object, err error) error {
	if err != nil || len(list) == 0 {
		return cmp.Or(err, c.say(""))
	}
	return c.say("%s", compact(list[0]["value"]))
}

func (c *call) allLimits(owner string, list []object, err error) error {
	if err != nil {
		return err
	}
	rows := make([][]any, len(list))
	for i, o := range list {
		rows[i] = []any{o[owner], compact(o["value"])}
	}
	return c.rows([]string{owner, "limits"}, rows)
}

// Permissions.

// userInVHost finds out what a 404 about a user in a vhost means.
func (c *call) userInVHost(err error, user string) error {
	if r, ok := errors.AsType[*refusal](err); !ok || r.status != 404 && r.reason != "vhost_or_user_not_found" {
		return err
	}
	if _, err := c.userOf(user); err != nil {
		return err
	}
	return noVHost(c.vhost())
}

func setPermissions(c *call) error {
	c.announce(`Setting permissions for user "%s" in vhost "%s" ...`, c.args[0], c.vhost())
	if _, err := c.userOf(c.args[0]); isNoUser(err) {
		return failed(exitNoUser, "User %s does not exist", c.args[0])
	} else if err != nil {
		return err
	}
	return c.userInVHost(c.do("PUT", api.Path("permissions", c.vhost(), c.args[0]),
		map[string]string{"configure": c.args[1], "write": c.args[2], "read": c.args[3]}), c.args[0])
}

func setPermissionsGlobally(c *call) error {
	c.announce(`Setting permissions for user "%s" in all virtual hosts ...`, c.args[0])
	if _, err := c.userOf(c.args[0]); isNoUser(err) {
		return failed(exitNoUser, "User %s does not exist", c.args[0])
	} else if err != nil {
		return err
	}
	var vhosts []api.VHost
	if err := c.get(api.Path("vhosts"), &vhosts); err != nil {
		return err
	}
	for i := range vhosts {
		if err := c.do("PUT", api.Path("permissions", vhosts[i].Name, c.args[0]),
			map[string]string{"configure": c.args[1], "write": c.args[2], "read": c.args[3]}); err != nil {
			return err
		}
	}
	return nil
}

func clearPermissions(c *call) error {
	c.announce(`Clearing permissions for user "%s" in vhost "%s" ...`, c.args[0], c.vhost())
	return c.cleared(c.do("DELETE", api.Path("permissions", c.vhost(), c.args[0]), nil))
}

// cleared takes it as done when there was nothing to clear, but for users and vhosts that do not exist.
func (c *call) cleared(err error) error {
	if status(err) != 404 {
		return err
	}
	if _, err := c.userOf(c.args[0]); err != nil {
		return err
	}
	return otherwise(c.do("GET", api.Path("vhosts", c.vhost()), nil), noVHost(c.vhost()))
}

func setTopicPermissions(c *call) error {
	c.announce(`Setting topic permissions on "%s" for user "%s" in vhost "%s" ...`, c.args[1], c.args[0], c.vhost())
	if _, err := c.userOf(c.args[0]); err != nil {
		return err
	}
	return c.userInVHost(c.do("PUT", api.Path("topic-permissions", c.vhost(), c.args[0]),
		map[string]string{"exchange": c.args[1], "write": c.args[2], "read": c.args[3]}), c.args[0])
}

func clearTopicPermissions(c *call) error {
	where := api.Path("topic-permissions", c.vhost(), c.args[0])
	if len(c.args) == 2 {
		c.announce(`Clearing topic permissions on "%s" for user "%s" in vhost "%s" ...`, c.args[1], c.args[0], c.vhost())
		where = api.Path("topic-permissions", c.vhost(), c.args[0], c.args[1])
	} else {
		c.announce(`Clearing topic permissions for user "%s" in vhost "%s" ...`, c.args[0], c.vhost())
	}
	return c.cleared(c.do("DELETE", where, nil))
}

// Vhosts.

func addVHost(c *call) error {
	c.announce(`Adding vhost "%s" ...`, c.args[0])
	if err := c.do("GET", api.Path("vhosts", c.args[0]), nil); err == nil {
		return nil // it stays as it is
	}
	body := map[string]any{"description": c.options["description"], "tags": c.options["tags"]}
	if kind := c.options["default-queue-type"]; kind != "" {
		body["default_queue_type"] = kind
	}
	return c.do("PUT", api.Path("vhosts", c.args[0]), body)
}

func deleteVHost(c *call) error {
	c.announce(`Deleting vhost "%s" ...`, c.args[0])
	err := c.do("DELETE", api.Path("vhosts", c.args[0]), nil)
	if status(err) == 412 {
		return failed(exitData, "Cannot delete this virtual host: it is protected from deletion. To lift the protection, inspect and update its metadata")
	}
	return otherwise(err,
		&failure{exitData, fmt.Sprintf("Virtual host '%s' does not exist", c.args[0]), true})
}

// changeVHost puts a vhost back with something changed; absent is the error when there is none.
func (c *call) changeVHost(name string, changes map[string]any, absent error) error {
	var v api.VHost
	if err := c.get(api.Path("vhosts", name), &v); err != nil {
		return otherwise(err, absent)
	}
	body := map[string]any{"description": v.Description, "tags": v.Tags, "tracing": v.Tracing}
	if kind := v.Metadata.DefaultQueueType; kind != "" {
		body["default_queue_type"] = kind
	}
	maps.Copy(body, changes)
	return c.do("PUT", api.Path("vhosts", name), body)
}

func setVHostTags(c *call) error {
	c.announce(`Setting tags for virtual host "%s" to [%s] ...`, c.args[0], strings.Join(c.args[1:], ", "))
	return c.changeVHost(c.args[0], map[string]any{"tags": append([]string{}, c.args[1:]...)}, failed(exitData, `Virtual host "%s" does not exist`, c.args[0]))
}

func updateVHost(c *call) error {
	changes := map[string]any{}
	for option, field := range map[string]string{"description": "description", "tags": "tags", "default-queue-type": "default_queue_type"} {
		if v, ok := c.options[option]; ok {
			changes[field] = v
		}
	}
	if len(changes) == 0 {
		return c.badArguments("not enough arguments.")
	}
	if kind, ok := c.options["default-queue-type"]; ok && kind != "quorum" && kind != "classic" {
		return c.badArgument("Default queue type must be one of: quorum, classic. Provided: %s", kind)
	}
	c.announce(`Updating metadata of vhost "%s" ...`, c.args[0])
	return c.changeVHost(c.args[0], changes, failed(exitData, "Virtual host '%s' does not exist", c.args[0]))
}

// restartVHost finds that the vhost runs: it does as long as it exists.
func restartVHost(c *call) error {
	node, err := c.nodeName()
	if err != nil {
		return err
	}
	c.announce("Trying to restart vhost '%s' on node '%s' ...", c.vhost(), node)
	if err := c.do("POST", api.Path("vhosts", c.vhost(), "start", node), nil); err != nil {
		if r, ok := errors.AsType[*refusal](err); ok && strings.Contains(r.reason, "no_such_vhost") {
			return failed(exitSoftware, "Failed to start vhost '%s' on node '%s'\nReason: it does not exist", c.vhost(), node)
		}
		return err
	}
	return c.result(fmt.Sprintf("Vhost '%s' is already running on node '%s'", c.vhost(), node), nil)
}

func protectVHost(method, announced string) func(c *call) error {
	return func(c *call) error {
		c.announce(announced, c.args[0])
		return otherwise(c.do(method, api.Path("vhosts", c.args[0], "deletion", "protection"), nil),
			failed(exitData, "Virtual host '%s' does not exist", c.args[0]))
	}
}

func (c *call) trace(on bool) error {
	doing, done := "Stopping", "disabled"
	if on {
		doing, done = "Starting", "enabled"
	}
	c.announce(`%s tracing for vhost "%s" ...`, doing, c.vhost())
	if err := c.changeVHost(c.vhost(), map[string]any{"tracing": on}, noVHost(c.vhost())); err != nil {
		return err
	}
	return c.say("Trace %s for vhost %s", done, c.vhost())
}

func setVHostLimits(c *call) error {
	c.announce(`Setting vhost limits to "%s" for vhost "%s" ...`, c.args[0], c.vhost())
	return c.setLimits("vhost-limits", c.vhost(), c.args[0], noVHost(c.vhost()))
}

func clearVHostLimits(c *call) error {
	c.announce(`Clearing vhost "%s" limits ...`, c.vhost())
	list, err := c.limitsOf("vhost-limits", c.vhost())
	if err != nil {
		return otherwise(err, noVHost(c.vhost()))
	}
	for _, o := range list {
		limits, _ := o["value"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(limits)) {
			if err := c.do("DELETE", api.Path("vhost-limits", c.vhost(), name), nil); err != nil && status(err) != 404 {
				return err
			}
		}
	}
	return nil
}

func listVHostLimits(c *call) error {
	if c.has("global") {
		c.announce("Listing limits for all vhosts ...")
		list, err := c.limitsOf("vhost-limits")
		return c.allLimits("vhost", list, err)
	}
	c.announce(`Listing limits for vhost "%s" ...`, c.vhost())
	list, err := c.limitsOf("vhost-limits", c.vhost())
	return c.oneLimit(list, otherwise(err, noVHost(c.vhost())))
}

// Queues and connections.

func deleteQueue(c *call) error {
	q, said := url.Values{}, ""
	if c.has("if-empty") {
		q.Set("if-empty", "true")
		said += " if queue is empty"
	}
	if c.has("if-unused") {
		q.Set("if-unused", "true")
		if said != "" {
			said += " and"
		}
		said += " if queue is unused"
	}
	c.announce("Deleting queue '%s' on vhost '%s'%s ...", c.args[0], c.vhost(), said)
	where := api.Path("queues", c.vhost(), c.args[0])
	var queue api.Queue
	if err := c.get(where, &queue); err != nil {
		return otherwise(err, failed(exitUsage, "Queue not found"))
	}
	if err := c.do("DELETE", where+"?"+q.Encode(), nil); err != nil {
		return otherwise(err, failed(exitUsage, "Queue not found"))
	}
	c.announce("Queue was successfully deleted with %d ready messages", queue.Ready)
	return nil
}

func purgeQueue(c *call) error {
	c.announce("Purging queue '%s' in vhost '%s' ...", c.args[0], c.vhost())
	return otherwise(c.do("DELETE", api.Path("queues", c.vhost(), c.args[0], "contents"), nil), failed(exitUnavailable, "not_found"))
}

// closeConnection takes the pid that list_connections shows, or the connection's name.
func closeConnection(c *call) error {
	c.announce("Closing connection %s, reason: %s...", c.args[0], c.args[1])
	c.options["reason"] = c.args[1]
	all, err := c.connections()
	if err != nil {
		return err
	}
	for _, k := range all {
		if k.Name == c.args[0] || pid(k.Name, nil) == c.args[0] {
			if err := c.do("DELETE", api.Path("connections", k.Name), nil); status(err) != 404 {
				return err
			}
		}
	}
	return nil // gone: RabbitMQ takes that as done, too
}

func (c *call) connections() (all []api.Connection, err error) {
	err = c.get(api.Path("connections"), &all)
	return all, err
}

func closeConnections(c *call) error {
	if c.has("global") {
		c.announce("Closing all connections, reason: %s...", c.args[0])
	} else {
		c.announce("Closing all connections in vhost %s, reason: %s...", c.vhost(), c.args[0])
	}
	c.options["reason"] = c.args[0]
	all, err := c.connections()
	if err != nil {
		return err
	}
	closed := 0
	for _, k := range all {
		if !c.has("global") && k.VHost != c.vhost() {
			continue
		}
		if limit, _ := strconv.Atoi(c.options["limit"]); limit > 0 && closed == limit {
			break
		}
		switch err := c.do("DELETE", api.Path("connections", k.Name), nil); {
		case err == nil:
			closed++
		case status(err) != 404:
			return err
		}
	}
	c.announce("Closed %d connections", closed)
	return nil
}

func closeUserConnections(c *call) error {
	c.announce("Closing connections of user %s, reason: %s...", c.args[0], c.args[1])
	c.options["reason"] = c.args[1]
	return c.do("DELETE", api.Path("connections/username", c.args[0]), nil)
}

// Policies and parameters.

func setPolicy(kind, said string) func(c *call) error {
	return func(c *call) error {
		name, pattern, text := c.args[0], c.args[1], c.args[2]
		priority := cmp.Or(c.options["priority"], "0")
		c.announce(`Setting %s "%s" for pattern "%s" to "%s" with priority "%s" for vhost "%s" ...`, said, name, pattern, text, priority, c.vhost())
		var definition any
		if err := api.Decode([]byte(text), &definition); err != nil {
			return failed(exitUnavailable, "JSON decoding error. Reason: %s", err)
		}
		n, err := strconv.Atoi(priority)
		if err != nil {
			return failed(exitUnavailable, "priority %s is no number", priority)
		}
		return otherwise(c.do("PUT", api.Path(kind, c.vhost(), name), map[string]any{
			"pattern": pattern, "definition": definition, "priority": n, "apply-to": cmp.Or(c.options["apply-to"], "all"),
		}), noVHost(c.vhost()))
	}
}

func clearPolicy(kind, said string) func(c *call) error {
	return func(c *call) error {
		c.announce(`Clearing %s "%s" on vhost "%s" ...`, said, c.args[0], c.vhost())
		return noParameter(c.do("DELETE", api.Path(kind, c.vhost(), c.args[0]), nil))
	}
}

// value reads an argument that is JSON.
func value(text string) (any, error) {
	var v any
	if err := api.Decode([]byte(text), &v); err != nil {
		return nil, failed(exitUnavailable, "JSON decoding error. Reason: %s", err)
	}
	return v, nil
}

func setParameter(c *call) error {
	c.announce(`Setting runtime parameter "%s" for component "%s" to "%s" in vhost "%s" ...`, c.args[1], c.args[0], c.args[2], c.vhost())
	v, err := value(c.args[2])
	if err != nil {
		return err
	}
	return otherwise(c.do("PUT", api.Path("parameters", c.args[0], c.vhost(), c.args[1]), map[string]any{"value": v}), noVHost(c.vhost()))
}

func clearParameter(c *call) error {
	c.announce(`Clearing runtime parameter "%s" for component "%s" on vhost "%s" ...`, c.args[1], c.args[0], c.vhost())
	return noParameter(c.do("DELETE", api.Path("parameters", c.args[0], c.vhost(), c.args[1]), nil))
}

func setGlobal(c *call) error {
	c.announce(`Setting global runtime parameter "%s" to "%s" ...`, c.args[0], c.args[1])
	v, err := value(c.args[1])
	if err != nil {
		return err
	}
	return c.do("PUT", api.Path("global-parameters", c.args[0]), map[string]any{"value": v})
}

func clearGlobal(c *call) error {
	c.announce(`Clearing global runtime parameter "%s" ...`, c.args[0])
	return noParameter(c.do("DELETE", api.Path("global-parameters", c.args[0]), nil))
}

func setClusterName(c *call) error {
	c.announce("Setting cluster name to %s ...", c.args[0])
	return c.do("PUT", api.Path("cluster-name"), map[string]string{"name": c.args[0]})
}

func enableFlag(c *call) error {
	if c.args[0] == "all" {
		c.announce("Enabling all feature flags ...")
		return nil
	}
	c.announce(`Enabling feature flag "%s" ...`, c.args[0])
	return c.do("PUT", api.Path("feature-flags", c.args[0], "enable"), map[string]any{})
}

// Limits and definitions.

// fraction reads a share between 0 and 1.
func fraction(text string) (float64, bool) {
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil && f >= 0
}

func setMemory(c *call) error {
	body, said := map[string]any{}, c.args[0]
	if c.args[0] == "absolute" {
		if len(c.args) < 2 {
			return c.badArguments("not enough arguments.")
		}
		body["memory"], said = c.args[1], c.args[1]+" bytes"
	} else {
		f, ok := fraction(c.args[0])
		if !ok || f > 1 || len(c.args) > 1 {
			return c.badArgument("The threshold should be a fraction between 0.0 and 1.0")
		}
		body["memory_fraction"] = f
	}
	return c.limit("Setting memory threshold on %s to %s ...", said, body)
}

func setDiskFree(c *call) error {
	body, said := map[string]any{}, c.args[0]+" bytes"
	if c.args[0] == "mem_relative" {
		if len(c.args) < 2 {
			return c.badArguments("not enough arguments.")
		}
		f, ok := fraction(c.args[1])
		if !ok {
			return c.badArguments("Bad argument: The fraction should be 0.0 or more")
		}
		body["disk_free_fraction"], said = f, c.args[1]+" times the total RAM"
	} else {
		body["disk_free"] = c.args[0]
	}
	return c.limit("Setting disk free limit on %s to %s ...", said, body)
}

func (c *call) limit(announced, said string, body map[string]any) error {
	node, err := c.nodeName()
	if err != nil {
		return err
	}
	c.announce(announced, node, said)
	return c.do("PUT", api.Path("nodes", node, "limits"), body)
}

func exportDefinitions(c *call) error {
	if c.args[0] != "-" {
		c.announce(`Exporting definitions in JSON to a file at "%s" ...`, c.args[0])
	}
	p, err := c.request(c.user, c.pass, "GET", api.Path("definitions"), nil)
	if err != nil {
		return err
	}
	return c.writeFile(c.args[0], append(p, '\n'))
}

func importDefinitions(c *call) error {
	var p []byte
	var err error
	if len(c.args) == 0 || c.args[0] == "-" {
		c.announce("Importing definitions in JSON from standard input ...")
		p, err = io.ReadAll(c.t.In)
	} else {
		c.announce(`Importing definitions in JSON from a file at "%s" ...`, c.args[0])
		p, err = os.ReadFile(c.args[0])
	}
	if err != nil {
		return failed(exitUnavailable, "%s", err)
	}
	if err := c.do("POST", api.Path("definitions"), p); err != nil {
		return err
	}
	return c.say("Successfully started definition import. This process is asynchronous and can take some time.")
}
