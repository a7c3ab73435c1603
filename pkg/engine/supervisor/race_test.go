//go:build race

package supervisor_test

// raceDetector says that the tests, and so the supervisor that they start, look
// for data races.
const raceDetector = true
