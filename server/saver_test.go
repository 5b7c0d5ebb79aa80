package server

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/firemq/firemq/broker/definitions"
	"github.com/firemq/firemq/internal/vfs"
)

func TestSaveAfter(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: saveDelay, time.Millisecond: saveDelay, time.Second: 4 * time.Second, time.Hour: time.Minute,
	} {
		if got := saveAfter(took); got != want {
			t.Errorf("after %s that took %s, want %s", got, took, want)
		}
	}
}

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
