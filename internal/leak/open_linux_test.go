package leak

import (
	"os"
	"path/filepath"
	"syscall"
)

func init() {
	left["open file"] = "open: /dev/null, 1 times more"
	left["pipe"] = "open: pipe, 2 times more"
	left["mapping"] = "open: mapping of "
}

// leaveMapping maps a file that is closed and removed.
func leaveMapping() {
	name := filepath.Join(os.TempDir(), "mapped")
	os.WriteFile(name, make([]byte, 100), 0o600)
	f, err := os.Open(name)
	if err != nil {
		return
	}
	syscall.Mmap(int(f.Fd()), 0, 100, syscall.PROT_READ, syscall.MAP_PRIVATE)
	f.Close()
	os.Remove(name)
}
