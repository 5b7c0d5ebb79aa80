//go:build race

package pressure

// raceFactor is how many times as large limits of memory are that a race build could not keep.
const raceFactor = 4
