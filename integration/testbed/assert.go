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

// Mustf is Must with the name of the step.
func Mustf(t T, err error, format string, args ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", fmt.Sprintf(format, args...), err)
	}
}

// Check is Must, but the test continues.
func Check(t T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%v", err)
	}
}

// Checkf is Check with the name of the step.
func Checkf(t T, err error, format string, args ...any) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", fmt.Sprintf(format, args...), err)
	}
}

// Fails fails the test if err is nil. The format describes what has wrongly succeeded.
func Fails(t T, err error, format string, args ...any) {
	t.Helper()
	if err == nil {
		t.Errorf(format, args...)
	}
}

// Empty fails unless a list is empty. The format describes its items, as in "pods are left".
func Empty[E any](t T, list []E, format string, args ...any) {
	t.Helper()
	if len(list) > 0 {
		t.Errorf("%s: %v", fmt.Sprintf(format, args...), list)
	}
}

// Same fails unless got is want. The format goes before got, as in "the handler is".
func Same[V comparable](t T, got, want V, format string, args ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s %s, want %s", fmt.Sprintf(format, args...), shown(got), shown(want))
	}
}

// MustBe is Same, but a failure ends the test.
func MustBe[V comparable](t T, got, want V, format string, args ...any) {
	t.Helper()
	if got != want {
		t.Fatalf("%s %s, want %s", fmt.Sprintf(format, args...), shown(got), shown(want))
	}
}

// Contains fails unless a text has a part. The format describes the text or the failure.
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
