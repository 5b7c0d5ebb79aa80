package vfs

// Frozen is an FS that reads what FS holds and changes nothing: changes succeed without effect.
// It lets a recovery run on a folder that is only to be looked at.
type Frozen struct{ FS }

func (Frozen) Create(string) (File, error)    { return frozenFile{}, nil }
func (Frozen) OpenWrite(string) (File, error) { return frozenFile{}, nil }
func (Frozen) Rename(_, _ string) error       { return nil }
func (Frozen) Remove(string) error            { return nil }
func (Frozen) MakeDir(string) error           { return nil }
func (Frozen) SyncDir(string) error           { return nil }

// frozenFile takes writes and forgets them. It is not read.
type frozenFile struct{ File }

func (frozenFile) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (frozenFile) Truncate(int64) error                   { return nil }
func (frozenFile) Sync() error                            { return nil }
func (frozenFile) Close() error                           { return nil }
