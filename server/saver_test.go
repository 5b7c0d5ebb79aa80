package server

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/firemq/firemq/broker/definitions"
	"github.com/firemq/firemq/internal/vfs"
)

// The first write of a start and that of a change half a second later, on a slow disk, are one after the other: they
// share the name of the file that becomes definitions.json.
func TestDefinitionsAreWrittenByOneAtATime(t *testing.T) {
	dir := t.TempDir()
	s, err := Start(t.Context(), Options{AMQP: free, Data: dir, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown(within(t))
	file := filepath.Join(dir, "definitions.json")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5 {
				if err := s.saver.now(); err != nil {
					t.Error(err)
					return
				}
				if _, err := definitions.Load(vfs.OS{}, file); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if _, err := os.Stat(file + ".tmp"); !os.IsNotExist(err) {
		t.Errorf("the file beside it: %v", err)
	}
}
