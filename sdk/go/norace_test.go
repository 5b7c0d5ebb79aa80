//go:build !race

package fire

// raceEnabled: the race detector makes sync.Pool forget on purpose.
const raceEnabled = false
