//go:build !race

package fmq1

// raceEnabled: the race detector makes sync.Pool forget on purpose.
const raceEnabled = false
