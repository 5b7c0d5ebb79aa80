package oracle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/ports"
	"github.com/firemq/firemq/server"
)

// side is one of the two brokers as a script needs it. Any goroutine.
type side interface {
	addr() string
	api() string
	// putUser makes a user with password "pw" or replaces its tags.
	putUser(name, tags string) error
	deleteUser(name string)
	setPermissions(user, vhost, configure, write, read string) error
	clearPermissions(user, vhost string) error
	setTopicPermission(user, vhost, exchange, write, read string) error
	putPolicy(vhost string, p policyDef) error
	deletePolicy(vhost string, p policyDef) error
	setVHostLimit(vhost, limit string, n int) error // negative: none
	setUserLimit(user, limit string, n int) error
	setTracing(vhost string, on bool) error
	setAlarms(memory, disk bool) error // and waits for them
}

// policyDef is a policy, or an operator policy.
type policyDef struct {
	name, pattern, applyTo string
	operator               bool
	priority               int
	definition             table.Table
}

// rabbit is a RabbitMQ node.
type rabbit struct {
	name    string // of the node
	amqp    string
	http    string
	root    string    // the folder that it is installed in; "": the machine's own
	dir     string    // as the machine sees it; "": not ours
	cmd     *exec.Cmd // the group leader of all its processes
	epmd    string    // the port of its epmd
	exited  chan error
	output  bytes.Buffer // of cmd, once exited
	tracing sync.Mutex   // held while the tracing of a vhost changes
	low     [2]bool      // on memory and disk, see setAlarms
}

const (
	rabbitServer = "/usr/lib/rabbitmq/bin/rabbitmq-server"
	startLimit   = 90 * time.Second
)

// startRabbit starts a node, or says why it can't. environment, if it is not "", is a list of the application's
// settings in Erlang's words, {name, value}.
func startRabbit(environment string) (r *rabbit, skip string, err error) {
	if *rabbitFlag != "" {
		amqp, api, _ := strings.Cut(*rabbitFlag, ",")
		r = &rabbit{amqp: amqp, http: api}
		return r, "", r.prepare()
	}
	if _, err := os.Stat(filepath.Join("/", *rootFlag, rabbitServer)); err != nil {
		return nil, "RabbitMQ is not installed (make deps does it, as root on Debian): " + err.Error(), nil
	}
	base := ""
	if *rootFlag != "" {
		base = filepath.Join(*rootFlag, "tmp")
	}
	dir, err := os.MkdirTemp(base, "oracle-")
	if err != nil {
		return nil, "", err
	}
	inside := strings.TrimPrefix(dir, strings.TrimSuffix(*rootFlag, "/"))
	list, err := ports.Free(4)
	if err != nil {
		return nil, "", err
	}
	port := func(i int) string { return strconv.Itoa(list[i]) }
	r = &rabbit{
		name: "oracle" + port(0) + "@localhost",
		amqp: "127.0.0.1:" + port(0), http: "127.0.0.1:" + port(1), epmd: port(3),
		root: *rootFlag, dir: dir, exited: make(chan error, 1),
	}
	config := fmt.Sprintf("listeners.tcp.default = %s\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %s\n", r.amqp, port(1))
	for name, content := range map[string]string{"rabbitmq.conf": config, "plugins": "[rabbitmq_management,rabbitmq_consistent_hash_exchange,rabbitmq_random_exchange]."} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return nil, "", err
		}
	}
	r.cmd = exec.Command(rabbitServer)
	r.cmd.Dir = inside
	r.cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "HOME=" + inside, // HOME: a cookie of its own
		"RABBITMQ_NODENAME=" + r.name,
		"RABBITMQ_NODE_PORT=" + port(0), "RABBITMQ_DIST_PORT=" + port(2),
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(inside, "data"), "RABBITMQ_LOG_BASE=" + filepath.Join(inside, "log"),
		"RABBITMQ_CONFIG_FILE=" + filepath.Join(inside, "rabbitmq.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(inside, "plugins"),
		"ERL_EPMD_ADDRESS=127.0.0.1", "ERL_EPMD_PORT=" + r.epmd,
	}
	if environment != "" { // an empty one has RabbitMQ list its mechanisms in another order
		file := filepath.Join(dir, "advanced.config")
		if err := os.WriteFile(file, []byte("[{rabbit, ["+environment+"]}]."), 0o644); err != nil {
			return nil, "", err
		}
		r.cmd.Env = append(r.cmd.Env, "RABBITMQ_ADVANCED_CONFIG_FILE="+filepath.Join(inside, "advanced.config"))
	}
	r.cmd.Stdout, r.cmd.Stderr = &r.output, &r.output
	// The start script stops the node on SIGTERM, which it gets should the test die.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM, Chroot: *rootFlag}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the signal comes when the thread ends that started the process
		started <- r.cmd.Start()
		r.exited <- r.cmd.Wait()
	}()
	if err := <-started; err != nil {
		return nil, "", fmt.Errorf("start RabbitMQ: %w", err)
	}
	deadline := time.Now().Add(startLimit)
	for {
		err := r.call("GET", "/api/overview", nil)
		if err == nil {
			break
		}
		select {
		case <-r.exited:
			return nil, "", fmt.Errorf("RabbitMQ ended at its start:\n%s", &r.output)
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			r.stop()
			return nil, "", fmt.Errorf("RabbitMQ is not up after %s: %w", startLimit, err)
		}
	}
	if err := r.prepare(); err != nil {
		r.stop()
		return nil, "", err
	}
	return r, "", nil
}

// prepare makes the workers' vhosts.
func (r *rabbit) prepare() error {
	for w := range 2 * workers {
		if err := r.call("PUT", "/api/vhosts/"+vhost(w), nil); err != nil {
			return err
		}
		if err := r.setPermissions("guest", vhost(w), ".*", ".*", ".*"); err != nil {
			return err
		}
	}
	return nil
}

// stop kills the node: nothing in its folder is worth an orderly end.
func (r *rabbit) stop() error {
	if r.dir == "" {
		return nil
	}
	if err := syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		return err
	}
	<-r.exited
	// epmd refuses to end while it knows a node, for a moment after the node's death.
	var out []byte
	for deadline := time.Now().Add(awaitLimit); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		epmd := exec.Command("epmd", "-port", r.epmd, "-kill")
		if r.root != "" {
			epmd = exec.Command("chroot", r.root, "epmd", "-port", r.epmd, "-kill")
		}
		if out, _ = epmd.CombinedOutput(); !bytes.Contains(out, []byte("not allowed")) {
			return os.RemoveAll(r.dir)
		}
	}
	return fmt.Errorf("epmd: %s", out)
}

func (r *rabbit) addr() string { return r.amqp }
func (r *rabbit) api() string  { return r.http }

func (r *rabbit) call(method, path string, body any) error {
	_, err := call(r.http, method, path, body, nil)
	return err
}

// call makes a request of the API at addr. An answer of 300 and more is an error.
func call(addr, method, path string, body any, header http.Header) (answer []byte, err error) {
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, "http://"+addr+path, payload)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	req.SetBasicAuth("guest", "guest")
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if answer, err = io.ReadAll(resp.Body); err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	return answer, err
}

// kick has the broker with that API close the connection that comes from a port, as soon as the API knows it, for a
// reason if that is not "".
func kick(api, port, reason string) error {
	header := make(http.Header)
	if reason != "" {
		header.Set("X-Reason", reason)
	}
	for deadline := time.Now().Add(awaitLimit); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		answer, err := call(api, "GET", "/api/connections", nil, nil)
		if err != nil {
			return err
		}
		var list []struct{ Name string }
		if err := json.Unmarshal(answer, &list); err != nil {
			return err
		}
		for _, c := range list {
			if strings.Contains(c.Name, ":"+port+" -> ") {
				_, err := call(api, "DELETE", "/api/connections/"+url.PathEscape(c.Name), nil, header)
				return err
			}
		}
	}
	return fmt.Errorf("no connection from port %s is listed", port)
}

func (r *rabbit) putUser(name, tags string) error {
	return r.call("PUT", "/api/users/"+url.PathEscape(name), map[string]string{"password": "pw", "tags": tags})
}

func (r *rabbit) deleteUser(name string) { r.call("DELETE", "/api/users/"+url.PathEscape(name), nil) }

func (r *rabbit) setPermissions(user, vhost, configure, write, read string) error {
	return r.call("PUT", "/api/permissions/"+vhost+"/"+url.PathEscape(user),
		map[string]string{"configure": configure, "write": write, "read": read})
}

func (r *rabbit) clearPermissions(user, vhost string) error {
	return r.call("DELETE", "/api/permissions/"+vhost+"/"+url.PathEscape(user), nil)
}

func (r *rabbit) setTopicPermission(user, vhost, exchange, write, read string) error {
	return r.call("PUT", "/api/topic-permissions/"+vhost+"/"+url.PathEscape(user),
		map[string]string{"exchange": exchange, "write": write, "read": read})
}

func (p *policyDef) path(vhost string) string {
	kind := "policies"
	if p.operator {
		kind = "operator-policies"
	}
	return "/api/" + kind + "/" + vhost + "/" + url.PathEscape(p.name)
}

func (r *rabbit) putPolicy(vhost string, p policyDef) error {
	return r.call("PUT", p.path(vhost), map[string]any{
		"pattern": p.pattern, "apply-to": p.applyTo, "priority": p.priority, "definition": p.definition.Map(),
	})
}

func (r *rabbit) deletePolicy(vhost string, p policyDef) error {
	return r.call("DELETE", p.path(vhost), nil)
}

func (r *rabbit) setVHostLimit(vhost, limit string, n int) error {
	return r.setLimit("/api/vhost-limits/"+vhost+"/"+limit, n)
}

func (r *rabbit) setUserLimit(user, limit string, n int) error {
	return r.setLimit("/api/user-limits/"+url.PathEscape(user)+"/"+limit, n)
}

// setTracing: RabbitMQ loses one of two changes at the same time, of different vhosts too.
func (r *rabbit) setTracing(vhost string, on bool) error {
	r.tracing.Lock()
	defer r.tracing.Unlock()
	return r.call("PUT", "/api/vhosts/"+vhost, map[string]bool{"tracing": on})
}

func (r *rabbit) setLimit(path string, n int) error {
	if n < 0 {
		return r.call("DELETE", path, nil)
	}
	return r.call("PUT", path, map[string]int{"value": n})
}

func (r *rabbit) setAlarms(memory, disk bool) error {
	limits := [2][2][]string{ // all is well, and low
		{{"set_vm_memory_high_watermark", "0.4"}, {"set_vm_memory_high_watermark", "0"}},
		{{"set_disk_free_limit", "50000000"}, {"set_disk_free_limit", "9000000GB"}},
	}
	for i, low := range [2]bool{memory, disk} {
		if low == r.low[i] {
			continue
		}
		args := limits[i][0]
		if low {
			args = limits[i][1]
		}
		p, err := r.ctl(context.Background(), args)
		if err != nil || p.status != 0 {
			return fmt.Errorf("%q: status %d, %s%s %w", args, p.status, p.out, p.errors, err)
		}
		r.low[i] = low
	}
	for deadline := time.Now().Add(awaitLimit); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		if err := r.call("GET", "/api/health/checks/alarms", nil); (err != nil) == (memory || disk) {
			return nil
		}
	}
	return errors.New("the alarms do not change")
}

// fire is a FireMQ in this process, with a journal on disk.
type fire struct {
	s   *server.Server
	dir string
}

// startFire starts a FireMQ with a consumer timeout, 0 for the default.
func startFire(timeout time.Duration) (*fire, error) {
	dir, err := os.MkdirTemp("", "oracle-fire-")
	if err != nil {
		return nil, err
	}
	vhosts := []map[string]any{{"name": "/", "metadata": map[string]any{"description": "Default virtual host"}}} // as a start makes it
	for w := range 2 * workers {
		vhosts = append(vhosts, map[string]any{"name": vhost(w)})
	}
	definitions, err := json.Marshal(map[string]any{"vhosts": vhosts})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "definitions.json"), definitions, 0o644); err != nil {
		return nil, err
	}
	s, err := server.Start(context.Background(), server.Options{AMQP: "127.0.0.1:0", HTTP: "127.0.0.1:0", Data: dir, NoSync: true, ConsumerTimeout: timeout, Version: "test"})
	if err != nil {
		return nil, err
	}
	return &fire{s, dir}, nil
}

func (f *fire) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	return errors.Join(f.s.Shutdown(ctx), os.RemoveAll(f.dir))
}

func (f *fire) addr() string { return f.s.AMQPAddr().String() }
func (f *fire) api() string  { return f.s.HTTPAddr().String() }

func (f *fire) putUser(name, tags string) error {
	users := f.s.Broker().Users()
	err := users.AddUser(name, "pw", tags)
	if errors.Is(err, auth.ErrUserExists) {
		return users.SetTags(name, tags)
	}
	return err
}

func (f *fire) deleteUser(name string) { f.s.Broker().DeleteUser(name) }

func (f *fire) setPermissions(user, vhost, configure, write, read string) error {
	_, err := f.s.Broker().Users().SetPermissions(auth.Permission{User: user, VHost: vhost, Configure: configure, Write: write, Read: read})
	return err
}

func (f *fire) clearPermissions(user, vhost string) error {
	f.s.Broker().Users().ClearPermissions(user, vhost)
	return nil
}

func (f *fire) setTopicPermission(user, vhost, exchange, write, read string) error {
	_, err := f.s.Broker().Users().SetTopicPermission(auth.TopicPermission{User: user, VHost: vhost, Exchange: exchange, Write: write, Read: read})
	return err
}

func (f *fire) putPolicy(vhost string, p policyDef) error {
	made, err := policy.Make(p.name, p.pattern, p.definition, int64(p.priority), p.applyTo, p.operator)
	if err != nil {
		return err
	}
	return plain(f.s.Broker().PutPolicy(broker.PolicyDef{VHost: vhost, Operator: p.operator, Policy: made}))
}

func (f *fire) deletePolicy(vhost string, p policyDef) error {
	return plain(f.s.Broker().DeletePolicy(vhost, p.name, p.operator))
}

func (f *fire) setVHostLimit(vhost, limit string, n int) error {
	return plain(f.s.Broker().SetVHostLimit(vhost, limit, n))
}

func (f *fire) setUserLimit(user, limit string, n int) error {
	return f.s.Broker().Users().SetLimit(user, limit, n)
}

func (f *fire) setTracing(vhost string, on bool) error {
	return plain(f.s.Broker().ChangeVHostMeta(vhost, func(m *broker.VHostMeta) { m.Tracing = on }))
}

func (f *fire) setAlarms(memory, disk bool) error {
	var err error
	if memory {
		err = f.s.SetMemoryLimit("", 0)
	} else {
		err = f.s.SetMemoryLimit("0", 0)
	}
	if err != nil {
		return err
	}
	free := "0"
	if disk {
		free = "9000000GB"
	}
	if err := f.s.SetDiskFreeLimit(free, 0); err != nil {
		return err
	}
	for deadline := time.Now().Add(awaitLimit); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		if r := f.s.Resources(); r.MemoryAlarm == memory && r.DiskAlarm == disk {
			return nil
		}
	}
	return errors.New("the alarms do not change")
}

func plain(e *broker.Error) error {
	if e == nil {
		return nil
	}
	return e
}
