package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/firemq/firemq/server"
)

func TestInit(t *testing.T) {
	t.Chdir(t.TempDir())
	got := runWith(t.Context(), nil, "", "init")
	if got.status != 0 || got.out != "firemq.toml is written: change what you need, and start the broker with firemq\n" {
		t.Fatalf("%+v", got)
	}
	text, err := os.ReadFile("firemq.toml")
	if err != nil || string(text) != server.DefaultText() {
		t.Fatalf("%v\n%s", err, text)
	}
	if info, err := os.Stat("firemq.toml"); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: others may read the password in it", info.Mode(), err)
	}
	if err := os.WriteFile("firemq.toml", []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := runWith(t.Context(), nil, "", "init"); got.status != exitFailure || !isOneLine(got.err) || !strings.Contains(got.err, "never overwritten") {
		t.Errorf("%+v", got)
	}
	if text, _ := os.ReadFile("firemq.toml"); string(text) != "mine" {
		t.Errorf("it was overwritten: %s", text)
	}
	if got := runWith(t.Context(), nil, "", "init", filepath.Join("no", "directory")); got.status != exitFailure || !isOneLine(got.err) {
		t.Errorf("%+v", got)
	}
	if got := runWith(t.Context(), nil, "", "init", "other.toml"); got.status != 0 || !strings.HasSuffix(got.out, " with firemq --config other.toml\n") {
		t.Errorf("%+v", got)
	}
	if got := runWith(t.Context(), nil, "", "config", "check", "other.toml"); got.status != 0 || got.out != "other.toml is fine\n" {
		t.Errorf("%+v", got)
	}
}

func TestConfigCheck(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("firemq.toml", []byte("[limits]\nmemroy = 1\n[log]\nlevel = 'loud'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := runWith(t.Context(), map[string]string{"FIREMQ_AMQP": "not read"}, "", "config", "check")
	want := "firemq.toml:2: unknown key limits.memroy: did you mean limits.memory?\n" +
		`firemq.toml:4: log.level = "loud": log level "loud" is none of trace, debug, info, warn, error, off, or MODULE=LEVEL after it` + "\n"
	if got.status != exitFailure || got.out != "" || got.err != want {
		t.Errorf("status %d\n%s%swant\n%s", got.status, got.out, got.err, want)
	}
	// The broker does not start with it, and says the same in one line.
	got = runWith(t.Context(), nil, "")
	if got.status != exitUsage || !isOneLine(got.err) || !strings.Contains(got.err, "firemq.toml:2: unknown key limits.memroy") {
		t.Errorf("%+v", got)
	}
}

func TestConfigShow(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("mine.toml", []byte("[users]\ndefault_pass = 'hunter2'\n[tracing]\nheaders = []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"FIREMQ_CONFIG": "mine.toml", "FIREMQ_MEMORY_LIMIT": "1GB", "FIREMQ_DATA": ""}
	got := runWith(t.Context(), env, "", "config", "show", "--amqp", "6672", "--ephemeral", "--dev")
	if got.status != 0 || got.err != "" || strings.Contains(got.out, "hunter2") {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{
		"amqp = 6672                          # --amqp\n",
		`memory = "1GB"                       # FIREMQ_MEMORY_LIMIT` + "\n",
		"ephemeral = true                     # --ephemeral\n",
		`data = "firemq-data"                 # default` + "\n",
		"loopback_users = []                  # --dev\n",
		`default_pass = "********"            # mine.toml:2` + "\n",
		"headers = []                         # mine.toml:4\n",
	} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %q in\n%s", want, got.out)
		}
	}
}
