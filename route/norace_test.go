//go:build !race

package route

const raceDetector = false
