package vfs

import (
	"io"
	"sync"
	"sync/atomic"
	"syscall"
)

// Kind is an operation that Faults can make fail.
type Kind uint8

const (
	OpCreate Kind = iota
	OpOpen
	OpRead
	OpWrite
	OpTruncate
	OpSync
	OpRename
	OpRemove
	OpSyncDir
	OpList
)

// Op is one operation about to happen.
type Op struct {
	Kind Kind
	Name string
	Off  int64 // reads and writes
	Len  int   // reads and writes
}

// Changes reports whether the operation changes what is on disk or what survives a crash.
func (o Op) Changes() bool {
	return o.Kind != OpOpen && o.Kind != OpRead && o.Kind != OpList
}

// Short is an error for OpWrite: the first N bytes are written, then the write fails with Err.
type Short struct {
	N   int
	Err error
}

func (s *Short) Error() string { return "short write: " + s.Err.Error() }
func (s *Short) Unwrap() error { return s.Err }

// Faults is an FS whose operations may fail: Check is asked before each, from the goroutine
// that does it, and its error is the operation's.
type Faults struct {
	FS
	Check func(Op) error
}

func (f *Faults) Create(name string) (File, error) {
	if err := f.Check(Op{Kind: OpCreate, Name: name}); err != nil {
		return nil, err
	}
	return f.wrap(name)(f.FS.Create(name))
}

func (f *Faults) Open(name string) (File, error) {
	if err := f.Check(Op{Kind: OpOpen, Name: name}); err != nil {
		return nil, err
	}
	return f.wrap(name)(f.FS.Open(name))
}

func (f *Faults) OpenWrite(name string) (File, error) {
	if err := f.Check(Op{Kind: OpOpen, Name: name}); err != nil {
		return nil, err
	}
	return f.wrap(name)(f.FS.OpenWrite(name))
}

func (f *Faults) wrap(name string) func(File, error) (File, error) {
	return func(file File, err error) (File, error) {
		if err != nil {
			return nil, err
		}
		return &faultFile{file, name, f.Check}, nil
	}
}

func (f *Faults) Rename(oldname, newname string) error {
	if err := f.Check(Op{Kind: OpRename, Name: oldname}); err != nil {
		return err
	}
	return f.FS.Rename(oldname, newname)
}

func (f *Faults) Remove(name string) error {
	if err := f.Check(Op{Kind: OpRemove, Name: name}); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f *Faults) List(dir string) ([]string, error) {
	if err := f.Check(Op{Kind: OpList, Name: dir}); err != nil {
		return nil, err
	}
	return f.FS.List(dir)
}

func (f *Faults) SyncDir(dir string) error {
	if err := f.Check(Op{Kind: OpSyncDir, Name: dir}); err != nil {
		return err
	}
	return f.FS.SyncDir(dir)
}

func (f *Faults) Lock(name string) (io.Closer, error) { return f.FS.Lock(name) }

type faultFile struct {
	File
	name  string
	check func(Op) error
}

func (f *faultFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.check(Op{Kind: OpRead, Name: f.name, Off: off, Len: len(p)}); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *faultFile) WriteAt(p []byte, off int64) (int, error) {
	err := f.check(Op{Kind: OpWrite, Name: f.name, Off: off, Len: len(p)})
	if short, ok := err.(*Short); ok {
		n, werr := f.File.WriteAt(p[:min(short.N, len(p))], off)
		if werr != nil {
			return n, werr
		}
		return n, short.Err
	}
	if err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func (f *faultFile) Truncate(size int64) error {
	if err := f.check(Op{Kind: OpTruncate, Name: f.name, Off: size}); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultFile) Sync() error {
	if err := f.check(Op{Kind: OpSync, Name: f.name}); err != nil {
		return err
	}
	return f.File.Sync()
}

// Fail gives a Check that fails the nth operation of the kind, counted from 1, with err.
func Fail(kind Kind, nth int64, err error) func(Op) error {
	var seen atomic.Int64
	return func(o Op) error {
		if o.Kind == kind && seen.Add(1) == nth {
			return err
		}
		return nil
	}
}

// Space is a Check for a disk with a limited room: every byte written takes some (an overwrite
// as well), and a write that needs more than there is ends short with ENOSPC.
type Space struct{ free atomic.Int64 }

// Add gives n bytes of room.
func (s *Space) Add(n int64) { s.free.Add(n) }

func (s *Space) Check(o Op) error {
	if o.Kind != OpWrite {
		return nil
	}
	for {
		free := s.free.Load()
		n := min(free, int64(o.Len))
		if !s.free.CompareAndSwap(free, free-n) {
			continue
		}
		if n < int64(o.Len) {
			return &Short{N: int(n), Err: syscall.ENOSPC}
		}
		return nil
	}
}

// Gate is a Check that lets syncs wait while it is shut. The zero value is open.
type Gate struct {
	mu   sync.Mutex
	open sync.Cond
	shut bool // guarded by mu
}

// Shut and Open change it for the syncs that begin, and Open for those that wait, too.
func (g *Gate) Shut() { g.set(true) }
func (g *Gate) Open() { g.set(false) }

func (g *Gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	g.cond().Broadcast()
}

func (g *Gate) cond() *sync.Cond {
	g.open.L = &g.mu
	return &g.open
}

func (g *Gate) Check(o Op) error {
	if o.Kind == OpSync {
		g.mu.Lock()
		defer g.mu.Unlock()
		for g.shut {
			g.cond().Wait()
		}
	}
	return nil
}
