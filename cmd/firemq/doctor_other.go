//go:build !unix

package main

// fileLimit reports that the system has no limit of open files to speak of.
func fileLimit() (soft, hard uint64, ok bool) { return 0, 0, false }
