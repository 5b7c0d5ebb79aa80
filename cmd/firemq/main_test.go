package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestMain makes the test binary be firemq for the tests that need a process.
func TestMain(m *testing.M) {
	if os.Getenv("FIREMQ_TEST_AS_COMMAND") == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

// result is what a command line did.
type result struct {
	status   int
	out, err string
}

// runWith carries out a command line in this process.
func runWith(ctx context.Context, env map[string]string, in string, args ...string) result {
	var out, err bytes.Buffer
	t := terminal{
		in: strings.NewReader(in), out: &out, err: &err,
		env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	}
	status := run(ctx, t, args)
	return result{status, out.String(), err.String()}
}

// process is a firemq that runs.
type process struct {
	*exec.Cmd
	out *bufio.Reader
	err *bytes.Buffer
}

func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	p := newProcess(t, t.TempDir(), args...)
	p.Stderr = p.err
	p.start(t)
	return p
}

func newProcess(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.CommandContext(t.Context(), exe, args...), err: new(bytes.Buffer)}
	p.Dir = dir
	p.Env = append(os.Environ(), "FIREMQ_TEST_AS_COMMAND=1")
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
}

// followed starts a process and gives the lines of its log, to its end.
func followed(t *testing.T, dir string, args ...string) (*process, <-chan string) {
	t.Helper()
	p := newProcess(t, dir, args...)
	log, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.start(t)
	lines := make(chan string, 1000) // more than there are
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(log); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return p, lines
}

// banner reads up to the banner's last line; an empty one says that the process ended before.
func (p *process) banner() string {
	var b strings.Builder
	for {
		line, err := p.out.ReadString('\n')
		if err != nil {
			return ""
		}
		b.WriteString(line)
		if strings.HasPrefix(line, "  Data") {
			return b.String()
		}
	}
}

// status waits for the end.
func (p *process) status(t *testing.T) int {
	t.Helper()
	late := time.AfterFunc(20*time.Second, func() { p.Process.Kill() })
	defer late.Stop()
	io.Copy(io.Discard, p.out)
	p.Wait()
	return p.ProcessState.ExitCode()
}

// Whatever is wrong with a command line is said in one line that names it, with exit status 2.
func TestUsageErrors(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		want string
	}{
		"unknown flag":         {nil, []string{"--amqpp", "1"}, "unknown flag: --amqpp: did you mean --amqp? see firemq --help"},
		"unknown command":      {nil, []string{"serv"}, `unknown command or argument "serv"`},
		"misspelt command":     {nil, []string{"bensh"}, `unknown command "bensh": did you mean bench? see firemq --help`},
		"no argument":          {nil, []string{"sub"}, "QUEUE is missing: firemq sub QUEUE: see firemq sub --help"},
		"unknown shell":        {nil, []string{"completion", "bsh"}, `unknown command "bsh": did you mean bash?`},
		"no shell":             {nil, []string{"completion"}, "name a shell: bash, zsh, fish or powershell"},
		"no value":             {nil, []string{"--amqp"}, "--amqp"},
		"listener":             {nil, []string{"--amqp", "localhost"}, `--amqp "localhost": neither host:port nor a port nor off`},
		"port":                 {nil, []string{"--http", "localhost:70000"}, "between 0 (any free one) and 65535"},
		"bool":                 {nil, []string{"--fsync=perhaps"}, "--fsync"},
		"log level":            {nil, []string{"--log-level", "loud"}, `log level "loud"`},
		"log format":           {nil, []string{"--log-format", "xml"}, `--log-format "xml": neither text nor json`},
		"no data directory":    {nil, []string{"--data", ""}, `--data "": is empty: name a directory`},
		"no user":              {nil, []string{"--default-user", ""}, "--default-user"},
		"environment":          {map[string]string{"FIREMQ_FSYNC": "perhaps"}, nil, `FIREMQ_FSYNC="perhaps"`},
		"environment listener": {map[string]string{"FIREMQ_AMQP": "x"}, nil, `environment variable FIREMQ_AMQP="x": neither`},
		"settings file":        {map[string]string{"FIREMQ_CONFIG": "/does/not/exist"}, nil, "settings file /does/not/exist cannot be read: no such file"},
		"config":               {nil, []string{"config"}, "check or show"},
		"config show":          {nil, []string{"config", "show", "--amqp", "x"}, `--amqp "x"`},
		"config check of two":  {nil, []string{"config", "check", "a", "b"}, `"b" is one argument too many: firemq config check [FILE]`},
		"unknown flag of show": {nil, []string{"config", "show", "--fyre", "x"}, "did you mean --fire?"},
		"bench size":           {nil, []string{"bench", "--size", "3"}, "size 3"},
		"bench argument":       {nil, []string{"bench", "fast"}, `"fast"`},
		"bench URL":            {nil, []string{"bench", "--url", "http://x"}, "fires://"},
		"bench duration":       {nil, []string{"bench", "--duration", "soon"}, "neither seconds nor a duration"},
		"bench two brokers":    {nil, []string{"bench", "--embedded", "--url", "amqp://x"}, "leave out --url"},
		"bench two protocols":  {nil, []string{"bench", "--amqp", "--url", "fire://x"}, "--amqp does not fit"},
	} {
		t.Run(name, func(t *testing.T) {
			got := runWith(t.Context(), c.env, "", c.args...)
			if got.status != exitUsage || got.out != "" || !isOneLine(got.err) || !strings.Contains(got.err, c.want) {
				t.Errorf("status %d, output %q, error %q; want 2, nothing, one line with %q", got.status, got.out, got.err, c.want)
			}
		})
	}
}

func isOneLine(s string) bool {
	return strings.HasPrefix(s, "firemq: ") && strings.Count(s, "\n") == 1 && strings.HasSuffix(s, "\n")
}

func TestVersionAndHelp(t *testing.T) {
	if got := runWith(t.Context(), nil, "", "--version"); got.status != 0 || !strings.HasPrefix(got.out, "FireMQ ") {
		t.Errorf("--version: %+v", got)
	}
	got := runWith(t.Context(), nil, "", "--help")
	for _, want := range []string{"--amqp", "[FIREMQ_AMQP]", "[FIREMQ_LOOPBACK_USERS]", "(default 40%)", "init", "config", "bench", "pub", "sub", "completion"} {
		if got.status != 0 || !strings.Contains(got.out, want) {
			t.Errorf("--help says nothing of %s:\n%s", want, got.out)
		}
	}
}
