// Package printable makes text that somebody else wrote safe to show. What
// registries, runtimes, plugins, images and other daemons say ends up in errors,
// logs, statuses and terminals, where control characters would move the cursor,
// forge lines or hide what stands beside them.
package printable

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/status"
)

// Line is text with everything escaped that does not print: control characters,
// line breaks among them, characters that only change how others are shown, and
// bytes that are not UTF-8. It leaves its own answers as they are. Pure.
func Line(text string) string { return escape(text, unicode.IsGraphic) }

// Lines is Line for text of several lines: line feeds and tabs stay. Pure.
func Lines(text string) string { return escape(text, printsInLines) }

func printsInLines(r rune) bool { return r == '\n' || r == '\t' || unicode.IsGraphic(r) }

func escape(text string, prints func(rune) bool) string {
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !prints(r) }) < 0 {
		return text
	}
	var b strings.Builder
	done := 0 // text[:done] is in b
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRuneInString(text[at:])
		if invalid := r == utf8.RuneError && size == 1; invalid || !prints(r) {
			b.WriteString(text[done:at])
			writeEscaped(&b, r, text[at], invalid)
			done = at + size
		}
		at += size
	}
	b.WriteString(text[done:])
	return b.String()
}

// writeEscaped writes characters in a form that is JSON's too, because encoded
// messages may go this way.
func writeEscaped(b *strings.Builder, r rune, first byte, invalid bool) {
	switch {
	case invalid:
		fmt.Fprintf(b, `\x%02x`, first)
	case r == '\n':
		b.WriteString(`\n`)
	case r == '\r':
		b.WriteString(`\r`)
	case r == '\t':
		b.WriteString(`\t`)
	case r > 0xffff:
		fmt.Fprintf(b, `\U%08x`, r)
	default:
		fmt.Fprintf(b, `\u%04x`, r)
	}
}

// Clip cuts a text to its first most bytes, and marks that there was more. Pure.
func Clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

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
