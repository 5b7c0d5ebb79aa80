package journal

import (
	"fmt"
	"log/slog"

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
	return list, j.recovered, nil
}
