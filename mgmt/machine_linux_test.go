package mgmt

import (
	"os"
	"testing"
)

// Both ways to count open files see one more when one is opened.
func TestOpenFiles(t *testing.T) {
	if n := openFiles(); n < 3 {
		t.Fatalf("%d open files", n)
	}
	for name, count := range map[string]func() int{"openFiles": openFiles, "listFiles": func() int { return listFiles("/proc/self/fd") }} {
		before := count()
		var files [20]*os.File
		for i := range files {
			f, err := os.Open("/dev/null")
			if err != nil {
				t.Fatal(err)
			}
			files[i] = f
		}
		after := count()
		for _, f := range files {
			f.Close()
		}
		if after != before+len(files) {
			t.Errorf("%s: %d, and %d with %d more", name, before, after, len(files))
		}
	}
	if n := listFiles("/proc/absent"); n != 0 {
		t.Errorf("%d files in no directory", n)
	}
}
