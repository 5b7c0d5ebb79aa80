// Package vfs is the seam to files: the operating system (OS), memory with crashes (Mem) and
// injected faults (Faults).
//
// It states what the journal and the definitions need to keep a promise across a power failure
// and no more. The rules are those of POSIX: bytes are safe after File.Sync, names (a file that
// was created, renamed or removed) after SyncDir of their folder, and nothing else is.
//
// Any goroutine may call any method; a File's WriteAt calls must not overlap in range.
package vfs

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
)

// FS is a file system. Names are paths; the folder of a name must exist.
type FS interface {
	// Create makes an empty file for reading and writing, in place of an older one.
	Create(name string) (File, error)
	// Open opens an existing file for reading.
	Open(name string) (File, error)
	// OpenWrite opens an existing file for reading and writing.
	OpenWrite(name string) (File, error)
	// Rename replaces newname if it exists. Both are in one folder, and neither is open.
	Rename(oldname, newname string) error
	Remove(name string) error
	// List gives the names of a folder's files, without the folder, sorted.
	List(dir string) ([]string, error)
	// MakeDir makes a folder and its missing parents, for the owner alone, and syncs their names.
	MakeDir(dir string) error
	// SyncDir makes the names of a folder safe. It does nothing where the system has no such call.
	SyncDir(dir string) error
	// Lock takes name as an advisory lock until the Closer is closed or the process ends.
	// ErrInUse: another broker holds it.
	Lock(name string) (io.Closer, error)
	// Unmap ends a mapping made by File.Map.
	Unmap(m []byte) error
}

// File is an open file. ReadAt and WriteAt follow io.ReaderAt and io.WriterAt: fewer bytes than
// asked for come with an error.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync makes the file's bytes and its length safe. After an error nothing is known of what
	// was written since the last success, and a later success does not say anything about it.
	Sync() error
	Size() (int64, error)
	Truncate(size int64) error
	// Map maps the first n bytes for reading; it outlives Close and ends with FS.Unmap. Touching
	// a page past the end of the file, or one that the disk fails to read, is a memory fault.
	// errors.ErrUnsupported: read with ReadAt instead.
	Map(n int64) ([]byte, error)
}

// ErrInUse is what Lock gives, wrapped, when another broker uses the directory.
var ErrInUse = errors.New("the data directory is in use by another broker")

// ReadFile reads a whole file of at most limit bytes.
func ReadFile(fs FS, name string, limit int64) ([]byte, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, fmt.Errorf("read %s: %d bytes are more than the limit of %d", name, n, limit)
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && !(err == io.EOF && n == 0) {
		return nil, err
	}
	return b, nil
}

// WriteFile replaces a file's content so that a crash leaves either the old or the new one:
// write beside it (name.tmp), sync, rename, sync the folder.
func WriteFile(fs FS, name string, content []byte) error {
	return WriteFileFrom(fs, name, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// WriteFileFrom is WriteFile for content that is written bit by bit. An error of write is returned, and the file is as
// it was.
func WriteFileFrom(fs FS, name string, write func(io.Writer) error) (err error) {
	tmp := name + ".tmp"
	f, err := fs.Create(tmp)
	if err != nil {
		return err
	}
	if err = write(io.NewOffsetWriter(f, 0)); err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = fs.Rename(tmp, name)
	}
	if err != nil {
		fs.Remove(tmp)
		return fmt.Errorf("replace %s: %w", name, err)
	}
	if err := fs.SyncDir(filepath.Dir(name)); err != nil {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	return nil
}
