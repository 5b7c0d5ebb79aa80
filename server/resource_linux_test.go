package server

import (
	"testing"
	"testing/fstest"
)

func TestTotalMemory(t *testing.T) {
	const gib = 1 << 30
	meminfo := "MemTotal:        8388608 kB\nMemFree: 1 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroups": {map[string]string{}, 8 * gib},
		"v2, no limit": {map[string]string{
			"proc/self/cgroup": "0::/user.slice/x.scope\n", "sys/fs/cgroup/user.slice/x.scope/memory.max": "max\n",
		}, 8 * gib},
		"v2, own limit": {map[string]string{
			"proc/self/cgroup": "0::/user.slice/x.scope\n", "sys/fs/cgroup/user.slice/x.scope/memory.max": "1073741824\n",
		}, gib},
		"v2, limit above": {map[string]string{
			"proc/self/cgroup": "0::/a/b/c\n", "sys/fs/cgroup/a/b/c/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.max": "3221225472\n", "sys/fs/cgroup/a/memory.max": "2147483648\n",
		}, 2 * gib},
		"v2, in a container": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1073741824\n",
		}, gib},
		"v2, the machine's path in a container": {map[string]string{
			"proc/self/cgroup": "0::/docker/0123\n", "sys/fs/cgroup/memory.max": "1073741824\n",
		}, gib},
		"v1": {map[string]string{
			"proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a/b\n1:name=systemd:/x\n", "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "1073741824\n",
		}, gib},
		"v1, no limit": {map[string]string{
			"proc/self/cgroup": "4:memory:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
		}, 8 * gib},
		"v1, the machine's path in a container": {map[string]string{
			"proc/self/cgroup": "4:memory:/docker/0123\n0::/docker/0123\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n",
		}, 2 * gib},
		"both": {map[string]string{
			"proc/self/cgroup": "4:memory:/a\n0::/b\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4294967296\n", "sys/fs/cgroup/unified/b/memory.max": "2147483648\n",
		}, 2 * gib},
		"nonsense":        {map[string]string{"proc/self/cgroup": "x\n0\n::\n4:memory\n", "sys/fs/cgroup/memory.max": "lots"}, 8 * gib},
		"above the whole": {map[string]string{"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "99999999999999"}, 8 * gib},
	} {
		root := fstest.MapFS{"proc/meminfo": {Data: []byte(meminfo)}}
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := totalMemory(root); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if got := totalMemory(fstest.MapFS{"sys/fs/cgroup/memory.max": {Data: []byte("1")}}); got != 0 {
		t.Errorf("without /proc/meminfo: %d", got)
	}
}

func TestResidentMemory(t *testing.T) {
	if got, err := residentMemory(fstest.MapFS{"proc/self/statm": {Data: []byte("1000 250 10 5 0 123 0\n")}}); err != nil || got != 250*int64(pageSize) {
		t.Errorf("%d, %v", got, err)
	}
	backlog := fstest.MapFS{"proc/self/statm": {Data: []byte("1000000 90000 80000 5 0 123 0\n")}}
	if got, err := residentMemory(backlog); err != nil || got != 10_000*int64(pageSize)+programPages {
		t.Errorf("while a backlog is read: %d, %v", got, err)
	}
	for _, text := range []string{"", "1000", "1000 x", "1000 250", "1000 x 10", "1000 250 x"} {
		if got, err := residentMemory(fstest.MapFS{"proc/self/statm": {Data: []byte(text)}}); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
	if _, err := residentMemory(fstest.MapFS{}); err == nil {
		t.Error("no file, no error")
	}
}

// The real system gives something that makes sense.
func TestSystemProbe(t *testing.T) {
	p := systemProbe()
	resident, err := p.resident()
	if err != nil || resident < 1<<20 || resident > p.total() {
		t.Errorf("%d of %d, %v", resident, p.total(), err)
	}
	if free, err := p.diskFree(t.TempDir()); err != nil || free <= 0 {
		t.Errorf("%d, %v", free, err)
	}
	if _, err := p.diskFree("/does/not/exist"); err == nil {
		t.Error("no directory, no error")
	}
}

func TestRaiseFileLimit(t *testing.T) {
	n, err := RaiseFileLimit()
	if again, err2 := RaiseFileLimit(); err != nil || err2 != nil || n == 0 || again != n {
		t.Errorf("%d, %v; %d, %v", n, err, again, err2)
	}
}
