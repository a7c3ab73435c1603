//go:build race

package supervisor_test

// raceDetector reports whether the tests, and the supervisors that they start, are built with the
// race detector.
const raceDetector = true
