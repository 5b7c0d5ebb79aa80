//go:build !linux

package main

import "runtime/debug"

// trim gives back the heap that only the start needed.
func trim() { debug.FreeOSMemory() }
