package server

// fileLimit is what the soft limit of open files may be, with this hard one.
func fileLimit(hard uint64) uint64 { return hard }
