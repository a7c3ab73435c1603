// Package test has checks that fail a test in one line.
package test

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
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

// Value returns the result of a step, and ends the test if the step failed:
// test.Value(os.ReadFile(path))(t).
func Value[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Must(t, err)
		return v
	}
}

// File returns the text of a file.
func File(t testing.TB, path string) string {
	t.Helper()
	return string(Value(os.ReadFile(path))(t))
}

// Err returns the error of a step and drops its result.
func Err[T any](_ T, err error) error { return err }

// Check fails the test if a step failed; the test continues.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Checkf is Check with the name of the step.
func Checkf(t testing.TB, err error, format string, args ...any) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", fmt.Sprintf(format, args...), err)
	}
}

// Fails fails the test if a step did not fail; the message describes what happened instead.
func Fails(t testing.TB, err error, format string, args ...any) {
	t.Helper()
	if err == nil {
		t.Errorf(format, args...)
	}
}

// Is fails the test unless an error is of a class: a function such as errdefs.IsNotFound. The
// format names the step.
func Is(t testing.TB, err error, class func(error) bool, format string, args ...any) {
	t.Helper()
	if !class(err) {
		t.Errorf("%s: the error is %v, of another class", fmt.Sprintf(format, args...), err)
	}
}

// ErrorIs fails the test unless errors.Is reports want for the error.
func ErrorIs(t testing.TB, err, want error, format string, args ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: the error is %v, want %v", fmt.Sprintf(format, args...), err, want)
	}
}

// Refused fails the test unless the error of a step is of a class and contains all the texts.
func Refused(t testing.TB, err error, class func(error) bool, texts ...string) {
	t.Helper()
	Is(t, err, class, "the refusal")
	Says(t, err, texts...)
}

// Says fails the test unless a step failed with an error that contains all the texts.
func Says(t testing.TB, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one that says %q", texts)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error is %v, want one that says %q", err, text)
		}
	}
}

// Equal compares two values.
func Equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got "+verb(got)+", want "+verb(want), what, got, want)
	}
}

// EqualLists compares two lists.
func EqualLists[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got "+verb(got)+", want "+verb(want), what, got, want)
	}
}

// verb returns %q for text and lists of text, otherwise %v.
func verb(v any) string {
	of := reflect.TypeOf(v)
	if of == nil { // an interface without a value
		return "%v"
	}
	if of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() == reflect.String {
		return "%q"
	}
	return "%v"
}

// Eventually waits up to a minute until is() is true; what is the failure's text.
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	Retry(t, func() error {
		if !is() {
			return errors.New(what)
		}
		return nil
	})
}

// Retry calls check, for up to a minute, until it returns no error.
func Retry(t testing.TB, check func() error) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	for tick := time.Tick(5 * time.Millisecond); ; <-tick {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %v", err)
		}
	}
}
