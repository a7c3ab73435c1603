// Package printable makes text that somebody else wrote safe to show. What
// registries, runtimes, plugins, images and other daemons say ends up in errors,
// logs, statuses and terminals, where control characters would move the cursor,
// forge lines or hide what stands beside them.
package printable

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
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
