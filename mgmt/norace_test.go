//go:build !race

package mgmt_test

// raceEnabled: CPU time says nothing.
const raceEnabled = false
