// Package printable makes foreign text safe to show. Text from registries, runtimes, plugins,
// images and other daemons ends up in errors, logs, statuses and terminals, where control
// characters could move the cursor, forge lines or hide the text beside them.
package printable

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/status"
)

// Line escapes all characters of text that do not print: control characters and line breaks, format
// characters, such as those that reverse the direction, and bytes that are not UTF-8. It is
// idempotent. Pure.
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

// writeEscaped writes characters as JSON does, because JSON text may pass through here. Invalid
// bytes, which JSON does not have, become \xNN.
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
		high, low := utf16.EncodeRune(r)
		fmt.Fprintf(b, `\u%04x\u%04x`, high, low)
	default:
		fmt.Fprintf(b, `\u%04x`, r)
	}
}

// Clip cuts s after most bytes and marks the cut. Pure.
func Clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Error returns the text of err without the classes and codes that were wrapped into it: a response
// carries the code separately. A bare class keeps its text. Pure.
func Error(err error) string {
	if answer, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return answer.GRPCStatus().Message()
	}
	text := err.Error()
	var classes []string // removed last: text contains the other errors with their classes
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

// isClass reports whether err is a sentinel of errdefs. Context errors do not count: they are
// causes, and stay in the text.
func isClass(err error) bool {
	return errdefs.Resolve(err) == err && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) //nolint:errorlint // the sentinel alone
}

// without removes a class from a text once: an earlier occurrence may be a library's only
// description of the cause. A class on a last line of its own repeats the class that a shim added
// to the line above: both are removed.
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
