package journal

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/firemq/firemq/internal/vfs"
)

// Segment is one file of the log, as Inspect finds it.
type Segment struct {
	File     string // its name in the folder
	Bytes    int64  // the file's size
	Used     int64  // up to the end of its last record
	Live     int64  // targets that are not settled
	LiveSize int64  // bytes of their records (an estimate where fan-outs differ)
	Damaged  bool   // the whole file cannot be read
	Aside    bool   // it could not be read at an earlier start, which moved it aside
}

// Inspect reads all of a folder's log into r, as Open without a checkpoint does, verifies every
// checksum, and changes nothing. The folder must not be in use. Options are as for Open; only FS,
// Dir, After, Opening and Log count.
func Inspect(o Options, r Replay) ([]Segment, Stats, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.SegmentBytes = DefaultSegmentBytes
	files := o.FS
	o.FS, o.inspect = vfs.Frozen{FS: files}, true
	j := &Journal{}
	if err := j.recover(o, r); err != nil {
		return nil, Stats{}, fmt.Errorf("inspect journal %s: %w", o.Dir, err)
	}
	found, err := findSegments(files, o.Dir)
	if err != nil {
		return nil, Stats{}, fmt.Errorf("inspect journal %s: %w", o.Dir, err)
	}
	var list []Segment
	for _, f := range found {
		g := Segment{File: segmentName(f.number), Bytes: f.size, Damaged: f.err != nil}
		if s := j.log.Load().find(f.number); s != nil && f.err == nil {
			g.Used, g.Live, g.LiveSize = s.end, s.live.Load(), s.liveBytes()
		}
		list = append(list, g)
	}
	aside, err := findAside(files, o.Dir)
	if err != nil {
		return nil, Stats{}, fmt.Errorf("inspect journal %s: %w", o.Dir, err)
	}
	return append(list, aside...), j.recovered, nil
}

// findAside lists the files that were moved aside.
func findAside(fs vfs.FS, dir string) ([]Segment, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	var list []Segment
	for _, name := range names {
		segment, aside := strings.CutSuffix(name, damagedSuffix)
		if _, ok := parseSegmentName(segment); !aside || !ok {
			continue
		}
		f, err := readHeader(fs, filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		list = append(list, Segment{File: name, Bytes: f.size, Damaged: true, Aside: true})
	}
	return list, nil
}
