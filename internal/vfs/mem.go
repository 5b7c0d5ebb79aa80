package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
)

// sector is what a disk writes whole or not at all.
const sector = 512

// Mem is a file system in memory that remembers what a power failure would leave: see Crash.
// The zero value is not usable; see NewMem.
type Mem struct {
	mu    sync.Mutex
	dirs  map[string]*memDir  // guarded by mu
	locks map[string]struct{} // guarded by mu
}

// memDir is a folder. All fields are guarded by the Mem's mu, as are those of memNode.
type memDir struct {
	now  map[string]*memNode
	safe map[string]*memNode
	ops  []dirOp // what leads from safe to now, in order
}

// dirOp sets (add) and takes away (del) a name in one step; either may be empty.
type dirOp struct {
	del, add string
	node     *memNode
}

func (op dirOp) apply(names map[string]*memNode) {
	if op.del != "" {
		delete(names, op.del)
	}
	if op.add != "" {
		names[op.add] = op.node
	}
}

type memNode struct {
	data   []byte
	safe   []byte
	writes []memWrite // what leads from safe to data, in order
}

// memWrite is one WriteAt, or a Truncate to off when data is nil.
type memWrite struct {
	off  int64
	data []byte
}

// NewMem makes an empty file system.
func NewMem() *Mem {
	return &Mem{dirs: map[string]*memDir{}, locks: map[string]struct{}{}}
}

// Crash gives a new file system with what a power failure might leave of m, which stays as it
// is. All that was synced is there. Of what was not, the seed decides: each folder keeps the
// first few of its changed names (file systems journal them in order), each file any of the
// written sectors, whatever their order, so writes may be lost, torn or swapped.
func (m *Mem) Crash(seed uint64) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	rng := rand.New(rand.NewPCG(seed, 0x5bd1e995))
	after := NewMem()
	copies := map[*memNode]*memNode{}
	for _, path := range slices.Sorted(maps.Keys(m.dirs)) {
		d := m.dirs[path]
		names := maps.Clone(d.safe)
		for _, op := range d.ops[:rng.IntN(len(d.ops)+1)] {
			op.apply(names)
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			n := names[name]
			if copies[n] == nil {
				data := n.crash(rng)
				copies[n] = &memNode{data: data, safe: slices.Clone(data)}
			}
			names[name] = copies[n]
		}
		after.dirs[path] = &memDir{now: names, safe: maps.Clone(names)}
	}
	return after
}

func (n *memNode) crash(rng *rand.Rand) []byte {
	data := slices.Clone(n.safe)
	keep := [...]int{0, 50, 90, 100}[rng.IntN(4)] // percent of this file's sectors
	for _, w := range n.writes {
		if w.data == nil {
			if rng.IntN(100) < keep {
				data = resize(data, w.off)
			}
			continue
		}
		for done := int64(0); done < int64(len(w.data)); {
			off := w.off + done
			piece := min(sector-off%sector, int64(len(w.data))-done)
			if rng.IntN(100) < keep {
				data = writeAt(data, w.data[done:done+piece], off)
			}
			done += piece
		}
	}
	return data
}

func resize(b []byte, n int64) []byte {
	if n <= int64(len(b)) {
		return b[:n]
	}
	return append(b, make([]byte, n-int64(len(b)))...)
}

func writeAt(b, p []byte, off int64) []byte {
	if end := off + int64(len(p)); end > int64(len(b)) {
		b = resize(b, end)
	}
	copy(b[off:], p)
	return b
}

func notExist(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }

func (m *Mem) dir(name string) *memDir { return m.dirs[filepath.Dir(filepath.Clean(name))] }

func (m *Mem) Create(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.dir(name)
	if d == nil {
		return nil, notExist("create", name)
	}
	base := filepath.Base(name)
	n := d.now[base]
	if n == nil {
		n = &memNode{}
		op := dirOp{add: base, node: n}
		op.apply(d.now)
		d.ops = append(d.ops, op)
	} else if len(n.data) > 0 {
		n.truncate(0)
	}
	return &memFile{m: m, n: n, name: name, write: true}, nil
}

func (m *Mem) Open(name string) (File, error) { return m.open(name, false) }

func (m *Mem) OpenWrite(name string) (File, error) { return m.open(name, true) }

func (m *Mem) open(name string, write bool) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.dir(name); d != nil {
		if n := d.now[filepath.Base(name)]; n != nil {
			return &memFile{m: m, n: n, name: name, write: write}, nil
		}
	}
	return nil, notExist("open", name)
}

func (m *Mem) Rename(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.dir(oldname)
	if d == nil || d.now[filepath.Base(oldname)] == nil {
		return notExist("rename", oldname)
	}
	if m.dir(newname) != d {
		return fmt.Errorf("rename %s: %s is in another folder", oldname, newname)
	}
	op := dirOp{del: filepath.Base(oldname), add: filepath.Base(newname), node: d.now[filepath.Base(oldname)]}
	op.apply(d.now)
	d.ops = append(d.ops, op)
	return nil
}

func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.dir(name)
	if d == nil || d.now[filepath.Base(name)] == nil {
		return notExist("remove", name)
	}
	op := dirOp{del: filepath.Base(name)}
	op.apply(d.now)
	d.ops = append(d.ops, op)
	return nil
}

func (m *Mem) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.dirs[filepath.Clean(dir)]
	if d == nil {
		return nil, notExist("list", dir)
	}
	return slices.Sorted(maps.Keys(d.now)), nil
}

// MakeDir makes a folder; it survives a crash at once, and its parents need not exist.
func (m *Mem) MakeDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir = filepath.Clean(dir)
	if m.dirs[dir] == nil {
		m.dirs[dir] = &memDir{now: map[string]*memNode{}, safe: map[string]*memNode{}}
	}
	return nil
}

func (m *Mem) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.dirs[filepath.Clean(dir)]
	if d == nil {
		return notExist("sync", dir)
	}
	for _, op := range d.ops {
		op.apply(d.safe)
	}
	d.ops = nil
	return nil
}

func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, taken := m.locks[name]; taken {
		return nil, fmt.Errorf("lock %s: %w", name, ErrInUse)
	}
	m.locks[name] = struct{}{}
	return &memLock{m, name}, nil
}

type memLock struct {
	m    *Mem
	name string
}

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.m.locks, l.name)
	return nil
}

func (*Mem) Unmap([]byte) error { return errors.ErrUnsupported }

type memFile struct {
	m      *Mem     // immutable, as are n, name and write
	n      *memNode // its fields are guarded by m.mu
	name   string
	write  bool
	closed bool // guarded by m.mu
}

func (f *memFile) use(op string) error {
	if f.closed {
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	if op == "write" && !f.write {
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrPermission}
	}
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.use("read"); err != nil {
		return 0, err
	}
	if off >= int64(len(f.n.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.n.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.use("write"); err != nil {
		return 0, err
	}
	if len(p) > 0 {
		f.n.data = writeAt(f.n.data, p, off)
		f.n.writes = append(f.n.writes, memWrite{off, slices.Clone(p)})
	}
	return len(p), nil
}

func (f *memFile) Truncate(size int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.use("write"); err != nil {
		return err
	}
	f.n.truncate(size)
	return nil
}

func (n *memNode) truncate(size int64) {
	n.data = resize(n.data, size)
	n.writes = append(n.writes, memWrite{off: size})
}

func (f *memFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.use("sync"); err != nil {
		return err
	}
	for _, w := range f.n.writes {
		if w.data == nil {
			f.n.safe = resize(f.n.safe, w.off)
		} else {
			f.n.safe = writeAt(f.n.safe, w.data, w.off)
		}
	}
	f.n.writes = nil
	return nil
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return int64(len(f.n.data)), f.use("size")
}

func (*memFile) Map(int64) ([]byte, error) { return nil, errors.ErrUnsupported }

func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.use("close"); err != nil {
		return err
	}
	f.closed = true
	return nil
}
