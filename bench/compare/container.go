package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/firemq/firemq/bench"
	"github.com/firemq/firemq/internal/ports"
)

// place is where brokers run: processes of this machine, or containers.
type place interface {
	describe() string
	found(*kind) error
	make(*kind) (node, error)
}

// engine chooses: containers where Docker answers, unless told otherwise.
func engine(ctx context.Context, s settings) (place, error) {
	answers := func() error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if out, err := exec.CommandContext(ctx, "docker", "info").CombinedOutput(); err != nil {
			return fmt.Errorf("no Docker engine answers: %s", lastLine(out))
		}
		return nil
	}
	switch s.engine {
	case "native":
		return processes{s}, nil
	case "":
		if answers() != nil {
			return processes{s}, nil
		}
	case "docker":
		if err := answers(); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("%q is neither native nor docker", s.engine)
	}
	return newContainers(ctx, s)
}

func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

// processes run on this machine, the broker and the load each on cores of its own.
type processes struct{ s settings }

func (p processes) describe() string {
	if p.s.brokerCores == "" {
		return "processes, not pinned"
	}
	return fmt.Sprintf("processes, the broker on core %s, the load on core %s", p.s.brokerCores, p.s.loadCores)
}

func (p processes) found(k *kind) error        { return k.found() }
func (p processes) make(k *kind) (node, error) { return newNative(p.s, k) }

// loadImage has FireMQ's binary and nothing else; it is made from the binary under test.
const loadImage = "firemq-compare"

// containers run in Docker, each limited to some CPUs and memory.
type containers struct{ s settings }

func newContainers(ctx context.Context, s settings) (containers, error) {
	dir, err := os.MkdirTemp("", "compare-image-")
	if err != nil {
		return containers{}, err
	}
	defer os.RemoveAll(dir)
	binary, err := os.ReadFile(s.firemq)
	if err != nil {
		return containers{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, "firemq"), binary, 0o755); err != nil {
		return containers{}, err
	}
	const text = "FROM scratch\nCOPY firemq /firemq\nWORKDIR /data\nENTRYPOINT [\"/firemq\"]\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o644); err != nil {
		return containers{}, err
	}
	_, err = docker(ctx, "build", "--quiet", "--tag", loadImage, dir)
	return containers{s}, err
}

func docker(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("docker %s: %s", args[0], lastLine(out))
	}
	return strings.TrimSpace(string(out)), nil
}

func (c containers) describe() string {
	return fmt.Sprintf("containers with %s CPUs and %s of memory each", c.s.cpus, c.s.memory)
}

func (c containers) found(k *kind) error {
	if k.image == "" {
		return errors.New("it has no image")
	}
	if _, err := docker(context.Background(), "image", "inspect", k.image); err == nil {
		return nil
	}
	_, err := docker(context.Background(), "pull", "--quiet", k.image)
	return err
}

func (c containers) make(k *kind) (node, error) {
	list, err := ports.Free(1)
	if err != nil {
		return nil, err
	}
	return &container{s: c.s, kind: k, name: "compare-" + strings.ToLower(rand.Text()[:8]), port: list[0]}, nil
}

// container is a broker in one. The load joins its network and process namespaces: so it reaches the
// broker over loopback, and sees the processes whose CPU time and memory it measures.
type container struct {
	s    settings
	kind *kind
	name string
	port int // of this machine
	made bool
}

func (c *container) start(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	var err error
	if c.made {
		_, err = docker(ctx, "start", c.name)
	} else {
		args := []string{"run", "--detach", "--name", c.name, "--cpus", c.s.cpus, "--memory", c.s.memory,
			"--publish", fmt.Sprintf("127.0.0.1:%d:%d", c.port, cmp.Or(c.kind.port, 5672)), "--env", "FIREMQ_LOOPBACK_USERS="}
		args = append(append(args, c.kind.image), c.kind.flags...)
		_, err = docker(ctx, args...)
		c.made = true
	}
	if err != nil {
		return 0, err
	}
	if err := awaitReady(ctx, c.url(cmp.Or(c.kind.main, "amqp")), nil); err != nil {
		return 0, fmt.Errorf("start %s: %w", c.kind.name, err)
	}
	return time.Since(began), nil
}

func (c *container) do(args ...string) error {
	_, err := docker(context.Background(), append(args, c.name)...)
	return err
}

func (c *container) stop() error {
	return c.do("stop", "--time", fmt.Sprint(int(stopPatience.Seconds())))
}
func (c *container) kill() error { return c.do("kill") }
func (c *container) remove()     { c.do("rm", "--force", "--volumes") }

func (c *container) freeze(on bool) error {
	if on {
		return c.do("pause")
	}
	return c.do("unpause")
}

func (c *container) url(scheme string) string {
	return fmt.Sprintf("%s://127.0.0.1:%d", scheme, c.port)
}

func (c *container) load(ctx context.Context, scheme string, flags ...string) (*bench.Report, []byte, error) {
	command := []string{"docker", "run", "--rm", "--network", "container:" + c.name, "--pid", "container:" + c.name, "--cpus", c.s.cpus,
		loadImage, "bench", "--json", "--quiet", "--url", scheme + "://localhost", "--broker-pid", "1"}
	return runLoad(ctx, append(command, flags...))
}

// rss is what the engine counts as used by the container.
func (c *container) rss() (int64, error) {
	out, err := docker(context.Background(), "stats", "--no-stream", "--format", "{{.MemUsage}}", c.name)
	if err != nil {
		return 0, err
	}
	used, _, _ := strings.Cut(out, " ")
	return parseBytes(used)
}

// parseBytes reads what docker prints: 12.3MiB.
func parseBytes(text string) (int64, error) {
	number := strings.TrimRight(text, "kKMGTiB")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no size", text)
	}
	switch text[len(number):] {
	case "B":
	case "KiB", "kB", "KB":
		v *= 1 << 10
	case "MiB", "MB":
		v *= 1 << 20
	case "GiB", "GB":
		v *= 1 << 30
	default:
		return 0, fmt.Errorf("%q is no size", text)
	}
	return int64(v), nil
}
