package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/definitions"
	"github.com/firemq/firemq/internal/vfs"
)

// Inspection is what Inspect found.
type Inspection = broker.Inspection

// Inspect reads a data directory that no broker uses and verifies every checksum in it. It changes
// nothing but the lock file.
func Inspect(dir string) (Inspection, error) {
	var none Inspection
	if _, err := os.Stat(filepath.Join(dir, "node.json")); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return none, fmt.Errorf("%s is not a data directory of FireMQ: it has no node.json", dir)
		}
		return none, dataError(dir, err)
	}
	lock, err := vfs.Lock(filepath.Join(dir, "firemq.lock"))
	if err != nil {
		if errors.Is(err, vfs.ErrInUse) {
			return none, fmt.Errorf("data directory %s is in use by a broker: stop it first", dir)
		}
		return none, dataError(dir, err)
	}
	defer lock.Close()
	if err := definitions.CheckFormat(vfs.OS{}, filepath.Join(dir, "node.json")); err != nil {
		return none, err
	}
	start, err := definitions.Load(vfs.OS{}, filepath.Join(dir, "definitions.json"))
	if err != nil {
		return none, err
	}
	if len(start.VHosts) == 0 {
		start.VHosts = []string{"/"}
	}
	return broker.Inspect(broker.Options{FS: vfs.OS{}, JournalDir: filepath.Join(dir, "journal"), Start: start, Codecs: codecs})
}
