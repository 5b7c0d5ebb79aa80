//go:build race

package broker

// raceEnabled: the race detector makes sync.Pool forget on purpose.
const raceEnabled = true
