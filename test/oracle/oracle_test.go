// Package oracle runs the same scripts of raw AMQP 0-9-1 frames against RabbitMQ and FireMQ side by
// side and compares everything that the two send back.
//
// The written cases are in testdata/*.txt, in the language that script_test.go describes. What the
// two brokers are allowed to answer differently is listed in testdata/differences.txt, each with its
// reason and both answers: a listed difference that is gone fails the test like one that is not
// listed. TestRandom makes scripts up from a seed.
//
// TestHTTP does the same with requests of the management API, and TestRabbitmqctl with command lines, both of
// testdata/http. TestHTTPCoverage fails when an endpoint that a RabbitMQ says it has is not among the requests.
//
// RabbitMQ is Debian's rabbitmq-server, or with -root one in another root folder, which the test starts once in a
// folder and on ports of its own. Without it the tests are skipped, or fail when FIREMQ_REQUIRE_ORACLE is set. FireMQ runs
// inside the test process.
package oracle

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/firemq/firemq/internal/leak"
)

var (
	rootFlag    = flag.String("root", "", "a root folder with another RabbitMQ installed in it, which the test starts as root instead of the machine's own")
	rabbitFlag  = flag.String("rabbit", "", "a running RabbitMQ, AMQP,API addresses, instead of one that the test starts")
	rewriteFlag = flag.Bool("rewrite", false, "write testdata/differences.txt anew, keeping the reasons that are in it")
	verboseFlag = flag.Bool("transcripts", false, "log what RabbitMQ answered in every case")
	ctlFlag     = flag.Bool("ctl", false, "run TestRabbitmqctl, too: each call of RabbitMQ's own takes a second or more")
	seedFlag    = flag.Uint64("seed", 0, "TestRandom: run this seed alone")
	seedsFlag   = flag.Int("seeds", 60, "TestRandom: how many seeds to run")
	firstFlag   = flag.Uint64("first", 1, "TestRandom: the first of these seeds")
)

// workers is how many scripts run at a time, each in a vhost of its own.
const workers = 8

// brokers are the two sides, shared by all tests of the process.
type brokers struct {
	rabbit *rabbit
	fire   *fire
	skip   string // why RabbitMQ is not there
	err    error
}

var (
	once  sync.Once
	sides brokers
)

// both gives the two running brokers; it skips the test when RabbitMQ is not installed.
func both(t *testing.T) *brokers {
	t.Helper()
	once.Do(func() {
		sides.rabbit, sides.skip, sides.err = startRabbit("")
		if sides.err == nil && sides.skip == "" {
			sides.fire, sides.err = startFire(0)
		}
	})
	switch {
	case sides.err != nil:
		t.Fatal(sides.err)
	case sides.skip != "" && os.Getenv("FIREMQ_REQUIRE_ORACLE") != "":
		t.Fatal(sides.skip)
	case sides.skip != "":
		t.Skip(sides.skip)
	}
	return &sides
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(leak.Main(func() int {
		code := m.Run()
		if sides.fire != nil {
			if err := sides.fire.stop(); err != nil {
				fmt.Fprintln(os.Stderr, "stop FireMQ:", err)
				code = max(code, 1)
			}
		}
		if sides.rabbit != nil {
			if err := sides.rabbit.stop(); err != nil {
				fmt.Fprintln(os.Stderr, "stop RabbitMQ:", err)
				code = max(code, 1)
			}
		}
		return code
	}))
}

// vhost is the vhost of a worker, the same name on both sides.
func vhost(worker int) string { return fmt.Sprintf("v%d", worker) }
