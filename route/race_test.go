//go:build race

package route

// raceDetector is on: sync.Pool then drops things at random, so that pooled code may allocate.
const raceDetector = true
