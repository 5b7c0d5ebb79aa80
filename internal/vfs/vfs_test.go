package vfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// both runs a test on the operating system and in memory: they must not differ.
func both(t *testing.T, test func(t *testing.T, fs FS, dir string)) {
	t.Run("os", func(t *testing.T) { test(t, OS{}, t.TempDir()) })
	t.Run("memory", func(t *testing.T) {
		mem := NewMem()
		mem.MakeDir("data")
		test(t, mem, "data")
	})
}

func write(t *testing.T, fs FS, name, content string) {
	t.Helper()
	f, err := fs.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(content), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, fs FS, name string) string {
	t.Helper()
	b, err := ReadFile(fs, name, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFiles(t *testing.T) {
	both(t, func(t *testing.T, sys FS, dir string) {
		sub := filepath.Join(dir, "a", "b")
		if err := sys.MakeDir(sub); err != nil {
			t.Fatal(err)
		}
		if err := sys.MakeDir(sub); err != nil {
			t.Fatal("a second time:", err)
		}
		one, two := filepath.Join(sub, "one"), filepath.Join(sub, "two")
		write(t, sys, two, "22")
		write(t, sys, one, "11111")
		write(t, sys, one, "1")
		if got := content(t, sys, one); got != "1" {
			t.Fatalf("created anew: %q", got)
		}
		if names, err := sys.List(sub); err != nil || !slices.Equal(names, []string{"one", "two"}) {
			t.Fatalf("List gave %v, %v", names, err)
		}
		if err := sys.Rename(one, two); err != nil {
			t.Fatal(err)
		}
		if got := content(t, sys, two); got != "1" {
			t.Fatalf("renamed over: %q", got)
		}
		for name, err := range map[string]error{
			"open":   second(sys.Open(one)),
			"write":  second(sys.OpenWrite(one)),
			"remove": sys.Remove(one),
			"rename": sys.Rename(one, two),
			"create": second(sys.Create(filepath.Join(dir, "none", "x"))),
			"list":   second(sys.List(filepath.Join(dir, "none"))),
		} {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("%s what is not there: %v", name, err)
			}
		}

		f, err := sys.OpenWrite(two)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("xyz"), 4); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 7)
		if _, err := f.ReadAt(b, 0); err != nil || string(b) != "1\x00\x00\x00xyz" {
			t.Fatalf("read %q, %v", b, err)
		}
		if n, err := f.ReadAt(b, 5); n != 2 || err != io.EOF {
			t.Fatalf("read past the end: %d, %v", n, err)
		}
		if err := f.Truncate(2); err != nil {
			t.Fatal(err)
		}
		if n, err := f.Size(); n != 2 || err != nil {
			t.Fatalf("size %d, %v", n, err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		if m, err := f.Map(2); err == nil {
			if string(m) != "1\x00" {
				t.Fatalf("mapped %q", m)
			}
			Populate(m)
			if err := sys.Unmap(m); err != nil {
				t.Fatal(err)
			}
		} else if !errors.Is(err, errors.ErrUnsupported) {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := f.ReadAt(b, 0); !errors.Is(err, fs.ErrClosed) {
			t.Fatalf("read after Close: %v", err)
		}
		r, err := sys.Open(two)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, err := r.WriteAt(b, 0); err == nil {
			t.Fatal("wrote to a file opened for reading")
		}
		if _, err := ReadFile(sys, two, 1); err == nil {
			t.Fatal("read more than the limit")
		}
		if err := sys.SyncDir(sub); err != nil {
			t.Fatal(err)
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestLockIsForOne(t *testing.T) {
	both(t, func(t *testing.T, sys FS, dir string) {
		name := filepath.Join(dir, "firemq.lock")
		l, err := sys.Lock(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sys.Lock(name); !errors.Is(err, ErrInUse) {
			t.Fatalf("locked twice: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l, err = sys.Lock(name)
		if err != nil {
			t.Fatal("after Close:", err)
		}
		l.Close()
	})
}

// TestWriteFileIsAtomic crashes at each of its operations: the old or the new content is there,
// and the new one once it has returned.
func TestWriteFileIsAtomic(t *testing.T) {
	crash := errors.New("the power failed")
	for at := 1; ; at++ {
		mem := NewMem()
		mem.MakeDir("d")
		if err := WriteFile(mem, "d/f", []byte("old")); err != nil {
			t.Fatal(err)
		}
		left := at
		err := WriteFile(&Faults{mem, func(o Op) error {
			if !o.Changes() {
				return nil
			}
			if left--; left <= 0 {
				return crash
			}
			return nil
		}}, "d/f", bytes.Repeat([]byte("new"), 1000))
		for seed := range uint64(50) {
			got := content(t, mem.Crash(seed), "d/f")
			isNew := got == string(bytes.Repeat([]byte("new"), 1000))
			if got != "old" && !isNew || err == nil && !isNew {
				t.Fatalf("crash at %d, seed %d: %.20q (%v)", at, seed, got, err)
			}
		}
		if err == nil {
			break
		}
		if !errors.Is(err, crash) {
			t.Fatal(err)
		}
	}
}

// TestCrashKeepsWhatWasSyncedAndAnyPartOfTheRest looks for each outcome that a test may have to
// survive, over many seeds.
func TestCrashKeepsWhatWasSyncedAndAnyPartOfTheRest(t *testing.T) {
	mem := NewMem()
	mem.MakeDir("d")
	f, _ := mem.Create("d/f")
	f.WriteAt(bytes.Repeat([]byte("a"), 4*sector), 0)
	f.Sync()
	mem.SyncDir("d")
	f.WriteAt(bytes.Repeat([]byte("b"), 2*sector), sector/2)
	f.WriteAt([]byte("c"), 3*sector)
	mem.Create("d/unsynced")
	mem.Rename("d/f", "d/g")

	seen := map[string]bool{}
	for seed := range uint64(500) {
		after := mem.Crash(seed)
		names, _ := after.List("d")
		name := "d/f"
		if slices.Contains(names, "g") {
			name = "d/g"
			seen["renamed"] = true
			if slices.Contains(names, "f") || !slices.Contains(names, "unsynced") {
				t.Fatalf("seed %d: names out of order: %v", seed, names)
			}
		} else if slices.Contains(names, "unsynced") {
			seen["created"] = true
		} else {
			seen["no names"] = true
		}
		b := []byte(content(t, after, name))
		if len(b) != 4*sector || b[0] != 'a' || b[4*sector-1] != 'a' {
			t.Fatalf("seed %d: synced bytes are lost", seed)
		}
		part := func(from, to int) byte {
			for _, c := range b[from:to] {
				if c != b[from] {
					t.Fatalf("seed %d: a sector is torn", seed)
				}
			}
			return b[from]
		}
		outcome := string([]byte{part(sector/2, sector), part(sector, 2*sector), part(2*sector, 2*sector+sector/2), b[3*sector]})
		seen[outcome] = true
	}
	for _, want := range []string{"no names", "created", "renamed", "aaaa", "bbbc", "abaa", "baba", "aaac", "bbba", "aabc"} {
		if !seen[want] {
			t.Fatalf("%q was never the outcome: %v", want, seen)
		}
	}
	if got := content(t, mem, "d/g"); got[sector/2] != 'b' {
		t.Fatal("Crash changed the file system it was called on")
	}
}

func TestFaults(t *testing.T) {
	mem := NewMem()
	mem.MakeDir("d")
	f, err := (&Faults{mem, Fail(OpWrite, 2, &Short{N: 3, Err: syscall.EIO})}).Create("d/f")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("12345"), 0); err != nil {
		t.Fatal(err)
	}
	if n, err := f.WriteAt([]byte("abcde"), 0); n != 3 || err != syscall.EIO {
		t.Fatalf("wrote %d, %v", n, err)
	}
	if got := content(t, mem, "d/f"); got != "abc45" {
		t.Fatalf("%q after a short write", got)
	}
	if _, err := f.WriteAt([]byte("x"), 0); err != nil {
		t.Fatal("the third write:", err)
	}

	space := &Space{}
	space.Add(4)
	f, _ = (&Faults{mem, space.Check}).Create("d/g")
	if n, err := f.WriteAt([]byte("123456"), 0); n != 4 || !Full(err) {
		t.Fatalf("wrote %d, %v", n, err)
	}
	space.Add(6)
	if _, err := f.WriteAt([]byte("123456"), 0); err != nil {
		t.Fatal(err)
	}
}

func TestFull(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false, io.EOF: false, syscall.ENOSPC: true, syscall.EIO: false,
		&os.PathError{Err: syscall.ENOSPC}: true, &Short{Err: syscall.ENOSPC}: true,
	} {
		if got := Full(err); got != want {
			t.Fatalf("Full(%v) = %v", err, got)
		}
	}
}
