//go:build race

package brokertest

// RaceFactor is how many times as large memory limits are with the race detector, which takes memory itself.
const RaceFactor = 4
