package tomlfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Quote writes a TOML basic string. Go's own quoting has escapes (\x, \a, \v)
// that TOML lacks.
func Quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// InlineTable writes a table of strings on one line.
func InlineTable(m map[string]string) string {
	if len(m) == 0 {
		return "{}"
	}
	parts := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, Quote(k)+" = "+Quote(m[k]))
	}
	return "{ " + strings.Join(parts, ", ") + " }"
}
