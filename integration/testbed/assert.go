package testbed

import (
	"fmt"
	"strings"
)

// Must ends the test if a step failed.
func Must(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// Mustf is like Must. The format names the step.
func Mustf(t T, err error, format string, args ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", fmt.Sprintf(format, args...), err)
	}
}

// Check fails the test if a step failed. The test continues.
func Check(t T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%v", err)
	}
}

// Checkf is like Check. The format names the step.
func Checkf(t T, err error, format string, args ...any) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", fmt.Sprintf(format, args...), err)
	}
}

// Fails fails the test if err is nil. The format says what happened instead of a failure.
func Fails(t T, err error, format string, args ...any) {
	t.Helper()
	if err == nil {
		t.Errorf(format, args...)
	}
}

// Empty fails the test unless the list is empty. The format describes the items of the list, as in
// "pods are left".
func Empty[E any](t T, list []E, format string, args ...any) {
	t.Helper()
	if len(list) > 0 {
		t.Errorf("%s: %v", fmt.Sprintf(format, args...), list)
	}
}

// Same fails the test unless got equals want. With the format "the handler is", the message is "the
// handler is GOT, want WANT".
func Same[V comparable](t T, got, want V, format string, args ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s %s, want %s", fmt.Sprintf(format, args...), shown(got), shown(want))
	}
}

// MustBe is like Same, but a failure ends the test.
func MustBe[V comparable](t T, got, want V, format string, args ...any) {
	t.Helper()
	if got != want {
		t.Fatalf("%s %s, want %s", fmt.Sprintf(format, args...), shown(got), shown(want))
	}
}

// Contains fails the test unless text contains part. The format describes the text or the failure.
func Contains(t T, text, part, format string, args ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s: want %q in:\n%s", fmt.Sprintf(format, args...), part, text)
	}
}

func shown(value any) string {
	if text, ok := value.(string); ok {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%v", value)
}
