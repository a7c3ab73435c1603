package tomlfile

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/pelletier/go-toml/v2"
)

// Quote returns a TOML basic string. Go's own quoting has escapes (\x, \a, \v) that TOML lacks.
// Unprintable characters are escaped.
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
		case !unicode.IsPrint(r) && r > 0xffff:
			fmt.Fprintf(&b, `\U%08X`, r)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Inline returns a value as TOML on one line.
func Inline(v any) string {
	var parts []string
	r := reflect.ValueOf(v)
	switch r.Kind() {
	case reflect.String:
		return Quote(r.String())
	case reflect.Slice:
		for i := range r.Len() {
			parts = append(parts, Inline(r.Index(i).Interface()))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case reflect.Map:
		for name, value := range r.Seq2() {
			parts = append(parts, JoinKey(name.String())+" = "+Inline(value.Interface()))
		}
		slices.Sort(parts)
	case reflect.Struct:
		for name, i := range FieldsOf(r.Type()).Index { // a date has no fields
			parts = append(parts, name+" = "+Inline(r.FieldByIndex(i).Interface()))
		}
		slices.Sort(parts)
	}
	if len(parts) > 0 {
		return "{ " + strings.Join(parts, ", ") + " }"
	}
	if r.Kind() == reflect.Map {
		return "{}"
	}
	text, err := toml.Marshal(map[string]any{"v": v})
	if err != nil { // never for numbers, booleans and times
		return Quote(fmt.Sprint(v))
	}
	return strings.TrimSpace(strings.TrimPrefix(string(text), "v = "))
}
