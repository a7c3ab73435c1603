package printable

import (
	"context"
	"errors"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/status"
)

// Error is the text of an error without the classes and codes that were wrapped into
// it: an answer has the code beside its text. A bare class keeps its text. Pure.
func Error(err error) string {
	if answer, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return answer.GRPCStatus().Message()
	}
	text := err.Error()
	var classes []string // after the others, whose own classes stand in the text as well
	for _, inner := range wrapped(err) {
		was, is := inner.Error(), Error(inner)
		if isClass(inner) {
			classes = append(classes, was)
		} else if at := strings.LastIndex(text, was); is != was && at >= 0 {
			text = text[:at] + is + text[at+len(was):]
		}
	}
	for _, class := range classes {
		text = without(text, class)
	}
	return text
}

func wrapped(err error) []error {
	switch err := err.(type) { //nolint:errorlint // this takes errors apart
	case interface{ Unwrap() []error }:
		return err.Unwrap()
	case interface{ Unwrap() error }:
		if inner := err.Unwrap(); inner != nil {
			return []error{inner}
		}
	}
	return nil
}

// isClass finds the sentinels of errdefs. Ends of contexts are causes, and stay.
func isClass(err error) bool {
	return errdefs.Resolve(err) == err && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) //nolint:errorlint // the sentinel alone
}

// without takes a class off a text once: what stands before it may be a library's only
// word for the cause. On a line of its own it repeats what a shim has added.
func without(text, class string) string {
	if cut, ok := strings.CutSuffix(text, "\n"+class); ok {
		return strings.TrimSuffix(cut, ": "+class)
	}
	if cut, ok := strings.CutSuffix(text, ": "+class); ok {
		return cut
	}
	if cut, ok := strings.CutPrefix(text, class+": "); ok {
		return cut
	}
	return strings.Replace(text, ": "+class+": ", ": ", 1)
}
