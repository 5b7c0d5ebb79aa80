//go:build !race

package pressure

// raceFactor is how many times as large the memory limits are with the race detector, which takes memory itself.
const raceFactor = 1
