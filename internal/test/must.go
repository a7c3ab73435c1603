// Package test ends tests whose steps fail.
package test

import (
	"fmt"
	"testing"
)

// Must ends the test if a step failed.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Mustf is Must with the name of the step.
func Mustf(t testing.TB, err error, format string, args ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", fmt.Sprintf(format, args...), err)
	}
}
