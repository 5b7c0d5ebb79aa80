package tidy

// arrows says which packages of this module a package may import. Arrows only go down: a package
// stands below those that import it.
var arrows = map[string][]string{
	// Bytes and values, without state.
	"pool":              {},
	"frames/table":      {},
	"frames/amqp":       {"broker/message", "frames/table"}, // message: the codec of stored properties
	"frames/amqp/text":  {"frames/amqp", "frames/table"},
	"frames/amqp/gen":   {},
	"frames/fmq1":       {"broker/message", "frames/table"},
	"internal/prefetch": {},
	"internal/vfs":      {},
	"internal/leak":     {"pool"},
	"internal/tidy":     {},
	"internal/misspelt": {},
	"internal/ports":    {},

	// RabbitMQ's command lines.
	"internal/rabbitmqctl": {"broker/auth", "internal/misspelt", "mgmt/api"},

	// What clients and the broker have in common of transports.
	"internal/websocket": {},
	"internal/transport": {"internal/websocket"},

	// The broker: decides, without sockets or wire frames.
	"broker/message":     {"frames/table", "internal/prefetch", "pool"},
	"broker/queue":       {"broker/message"},
	"broker/pattern":     {},
	"broker/dedup":       {"frames/table"},
	"broker/policy":      {"broker/dedup", "broker/pattern", "broker/queue", "frames/table"},
	"broker/auth":        {"broker/pattern"},
	"broker/definitions": {"broker", "broker/auth", "broker/policy", "broker/queue", "frames/table", "internal/vfs", "route"},
	"route":              {"broker/dedup", "frames/table", "internal/prefetch"},
	"journal":            {"internal/vfs", "pool"},
	"broker": {
		"broker/auth", "broker/dedup", "broker/message", "broker/policy", "broker/queue", "frames/table",
		"internal/prefetch", "internal/vfs", "journal", "pool", "route",
	},

	// Bytes in, broker calls, bytes out; and sockets, which know no protocol.
	"session":      {"pool"},
	"session/amqp": {"broker", "broker/message", "broker/queue", "frames/amqp", "frames/table", "pool", "session"},
	"session/fmq1": {"broker", "broker/message", "broker/queue", "frames/fmq1", "frames/table", "pool", "session"},
	"loop":         {"internal/websocket", "pool"},

	// What joins and shows them.
	"mgmt": {
		"broker", "broker/auth", "broker/message", "broker/policy", "broker/queue", "frames/table", "journal", "mgmt/api", "pool",
		"route",
	},
	"mgmt/api": {},
	"tracing":  {"broker"},
	"server": {
		"broker", "broker/definitions", "broker/message", "frames/amqp", "frames/fmq1", "internal/misspelt", "internal/vfs",
		"loop", "mgmt", "session", "session/amqp", "session/fmq1", "tracing",
	},
	"": {"server"}, // package firemq

	// Clients and commands.
	"sdk/go":        {"frames/fmq1", "frames/table", "internal/transport"},
	"bench":         {"frames/amqp", "frames/fmq1", "frames/table", "internal/transport", "server"},
	"bench/plot":    {},
	"bench/compare": {"bench", "bench/plot", "internal/ports"},
	"bench/profile": {"bench", "server"},
	"cmd/firemq":    {"bench", "bench/plot", "internal/misspelt", "internal/rabbitmqctl", "mgmt/api", "sdk/go", "server"},

	// What checks clients.
	"conformance":            {"frames/fmq1", "internal/websocket"},
	"cmd/firemq-conformance": {"conformance"},
	"sdk/go/conformance":     {"sdk/go"},

	// Tests of the whole and programs for readers.
	"internal/rawamqp":         {"frames/amqp", "frames/table"},
	"test/internal/brokertest": {"internal/leak", "internal/ports", "sdk/go"},
	"test/internal/suite":      {},

	"deploy/grafana": {},

	"examples/go/amqp_hello":        {},
	"examples/go/hello":             {"sdk/go"},
	"examples/go/publish_subscribe": {"sdk/go"},
	"examples/go/routing":           {"sdk/go"},
	"examples/go/rpc":               {"sdk/go"},
	"examples/go/topics":            {"sdk/go"},
	"examples/go/work_queues":       {"sdk/go"},
}

// testArrows says what the tests of a package may import beside its arrows, itself and internal/leak.
var testArrows = map[string][]string{
	"":                     {"pool", "sdk/go"}, // its leak check, and the other end of its benchmark
	"broker/definitions":   {"broker/message", "journal"},
	"frames/amqp":          {"frames/amqp/text"},
	"internal/rabbitmqctl": {"server"},  // a whole broker
	"loop":                 {"session"}, // that a connection is the outbox that sessions need
	"session/amqp":         {"broker/auth", "frames/amqp/text", "internal/vfs", "journal"},
	"session/fmq1":         {"broker/auth", "internal/vfs", "journal"},
	"sdk/go":               {""}, // a whole broker
	"server":               {"internal/rawamqp", "internal/transport", "pool", "sdk/go"},
	"test/compat":          {"test/internal/brokertest"},
	"test/conformance":     {"test/internal/brokertest"},
	"test/crash":           {"sdk/go", "test/internal/brokertest"},
	"test/oracle":          {"broker", "broker/auth", "broker/policy", "frames/amqp", "frames/amqp/text", "frames/table", "internal/ports", "internal/rabbitmqctl", "server"},
	"test/pressure":        {"bench/plot", "frames/amqp", "frames/fmq1", "frames/table", "internal/rawamqp", "sdk/go", "test/internal/brokertest"},
	"test/scale":           {"test/internal/brokertest"},
	"test/ui":              {"test/internal/brokertest"},
	"mgmt":                 {"frames/amqp", "internal/vfs", "server"}, // properties of messages, a broken disk, a whole broker
	"tracing":              {"sdk/go", "server"},

	"test/compat/go":            {"test/internal/brokertest"},
	"test/compat/rabbitmqadmin": {"test/internal/brokertest"},
	"test/compat/tools":         {"test/internal/brokertest"},
	"test/prometheus":           {"test/internal/brokertest"},
}

// homes says which packages may import a module of others. Most have one home, so that replacing
// one touches one package.
var homes = map[string][]string{
	"github.com/panjf2000/gnet/v2":            {"loop"},
	"github.com/tinylib/msgp":                 {"frames/fmq1"},
	"github.com/valyala/fasthttp":             {"loop", "mgmt"},
	"github.com/fasthttp/websocket":           {"loop"},
	"github.com/cespare/xxhash/v2":            {"broker/dedup", "journal", "route"},
	"github.com/VictoriaMetrics/metrics":      {"mgmt"},
	"github.com/klauspost/compress":           {"mgmt"},
	"github.com/HdrHistogram/hdrhistogram-go": {"bench"},
	"github.com/spf13/cobra":                  {"cmd/firemq"},
	"github.com/spf13/pflag":                  {"cmd/firemq"},
	"github.com/pelletier/go-toml/v2":         {"server"},
	"golang.org/x/term":                       {"cmd/firemq"},
	"golang.org/x/sys":                        {"bench", "cmd/firemq", "internal/vfs", "loop", "server", "test/pressure"},
	"go.opentelemetry.io/otel":                {"tracing"},
	"go.opentelemetry.io/proto/otlp":          {"tracing"},
	"google.golang.org/protobuf":              {"tracing"},
	"github.com/rabbitmq/amqp091-go":          {"conformance", "examples/go/amqp_hello"},
	"go.uber.org/goleak":                      {"internal/leak"},
}

// testModules are for tests only, of any package.
var testModules = []string{
	"github.com/rabbitmq/amqp091-go",
	"github.com/tinylib/msgp",
	"pgregory.net/rapid",
}
