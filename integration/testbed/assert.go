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

// Check is Must for a step after which the test goes on.
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

// Fails fails the test if something that must not work did. The format says what did.
func Fails(t T, err error, format string, args ...any) {
	t.Helper()
	if err == nil {
		t.Errorf(format, args...)
	}
}

// Empty fails if something is in a list. The format is of what it has, as "pods are left".
func Empty[E any](t T, list []E, format string, args ...any) {
	t.Helper()
	if len(list) > 0 {
		t.Errorf("%s: %v", fmt.Sprintf(format, args...), list)
	}
}

// Same fails unless got is want. The format is of what got is, as "the handler is".
func Same[V comparable](t T, got, want V, format string, args ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s %s, want %s", fmt.Sprintf(format, args...), shown(got), shown(want))
	}
}

// MustBe is Same that ends the test.
func MustBe[V comparable](t T, got, want V, format string, args ...any) {
	t.Helper()
	if got != want {
		t.Fatalf("%s %s, want %s", fmt.Sprintf(format, args...), shown(got), shown(want))
	}
}

// Contains fails unless a text has a part. The format is of what the text is, or of what is
// wrong without the part.
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
