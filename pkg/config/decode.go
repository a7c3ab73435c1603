package config

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// decoder puts the values of one document into structs. go-toml's own strict
// mode stops at the first value of a wrong type, and an operator who has made
// three mistakes should not need three attempts.
type decoder struct {
	doc      *document
	problems Problems
	// unfound says why a handler that is imported has no runtime_path.
	unfound string
	// search is that of Options.
	search []string
	// snapshotters are what handlers may name.
	snapshotters []string
}

func (d *decoder) at(key, message, suggestion string) Problem {
	o := d.doc.origins[key]
	o.File = cmp.Or(o.File, d.doc.file)
	return Problem{File: o.File, Line: o.Line, Column: o.Column, Key: key, Message: message, Suggestion: suggestion}
}

func (d *decoder) report(key, message, suggestion string) {
	d.problems = append(d.problems, d.at(key, message, suggestion))
}

// table decodes values into the struct dst, whose fields have toml tags. kind
// says which hints unknown keys get, and also names keys that are decoded
// elsewhere.
func (d *decoder) table(kind section, prefix string, values map[string]any, dst reflect.Value, elsewhere ...string) {
	fields := fieldsOf(dst.Type())
	for _, name := range slices.Sorted(maps.Keys(values)) {
		key := under(prefix, name)
		i, known := fields.index[name]
		switch {
		case known:
			d.assign(key, values[name], dst.Field(i))
		case slices.Contains(elsewhere, name):
		default:
			message, suggestion := unknownKey(kind, name, slices.Concat(fields.names, elsewhere))
			d.report(key, message, suggestion)
		}
	}
}

// under puts one more part at the end of a key.
func under(prefix, name string) string {
	if prefix == "" {
		return joinKey(name)
	}
	return prefix + "." + joinKey(name)
}

type fields struct {
	names []string
	index map[string]int
}

func fieldsOf(t reflect.Type) fields {
	f := fields{index: map[string]int{}}
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("toml"); name != "" && name != "-" {
			f.names = append(f.names, name)
			f.index[name] = i
		}
	}
	return f
}

// assign puts one value into a field, or reports that it is of a wrong type.
func (d *decoder) assign(key string, v any, dst reflect.Value) {
	switch dst.Interface().(type) {
	case time.Duration:
		d.duration(key, v, dst)
		return
	case fs.FileMode:
		d.fileMode(key, v, dst)
		return
	}
	switch dst.Kind() {
	case reflect.String:
		if s, ok := v.(string); ok {
			dst.SetString(s)
			return
		}
	case reflect.Bool:
		if b, ok := v.(bool); ok {
			dst.SetBool(b)
			return
		}
	case reflect.Int:
		if n, ok := v.(int64); ok {
			dst.SetInt(n)
			return
		}
	case reflect.Uint32:
		d.unsigned(key, v, dst)
		return
	case reflect.Float64:
		if f, ok := asFloat(v); ok {
			dst.SetFloat(f)
			return
		}
	case reflect.Slice:
		d.list(key, v, dst)
		return
	case reflect.Map:
		if isTables(dst.Type()) {
			d.tables(key, v, dst)
			return
		}
		d.mapping(key, v, dst)
		return
	case reflect.Struct:
		if values, ok := v.(map[string]any); ok {
			d.table(section(key), key, values, dst)
			return
		}
	}
	d.wrongType(key, wanted(dst), v)
}

func (d *decoder) wrongType(key, want string, v any) {
	d.report(key, fmt.Sprintf("must be %s, not %s", want, typeName(v)), spelled(want, v))
}

func (d *decoder) duration(key string, v any, dst reflect.Value) {
	const want = `a duration with its unit in quotes, such as "90s" or "4h"`
	s, ok := v.(string)
	if !ok {
		suggestion := ""
		if n, isInt := v.(int64); isInt {
			suggestion = strconv.FormatInt(n, 10) + "s"
		}
		d.report(key, "must be "+want+", not "+typeName(v), suggestion)
		return
	}
	t, err := time.ParseDuration(s)
	if err != nil {
		d.report(key, fmt.Sprintf("%q is not a duration; write %s", s, want), "")
		return
	}
	dst.SetInt(int64(t))
}

func (d *decoder) fileMode(key string, v any, dst reflect.Value) {
	const want = `a file mode as an octal number in quotes, such as "0660"`
	s, ok := v.(string)
	if !ok {
		d.wrongType(key, want, v)
		return
	}
	mode, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	if err != nil || fs.FileMode(mode)&^fs.ModePerm != 0 {
		d.report(key, fmt.Sprintf("%q is not a file mode; write %s", s, want), "")
		return
	}
	dst.SetUint(mode)
}

func (d *decoder) unsigned(key string, v any, dst reflect.Value) {
	n, ok := v.(int64)
	if !ok || n < 0 || n > math.MaxUint32 {
		d.report(key, fmt.Sprintf("must be a number from 0 to %d", uint32(math.MaxUint32)), "")
		return
	}
	dst.SetUint(uint64(n))
}

func (d *decoder) list(key string, v any, dst reflect.Value) {
	values, ok := v.([]any)
	if !ok {
		suggestion := ""
		if s, isString := v.(string); isString {
			suggestion = fmt.Sprintf("[%q]", s)
		}
		d.report(key, "must be a list of strings, not "+typeName(v), suggestion)
		return
	}
	list := make([]string, 0, len(values))
	for i, e := range values {
		s, ok := e.(string)
		if !ok {
			d.report(key, fmt.Sprintf("must be a list of strings; number %d is %s", i+1, typeName(e)), "")
			return
		}
		list = append(list, s)
	}
	dst.Set(reflect.ValueOf(list))
}

// mapping decodes a table of strings, or keeps a free table as it is.
func (d *decoder) mapping(key string, v any, dst reflect.Value) {
	values, ok := v.(map[string]any)
	if !ok {
		d.wrongType(key, "a table", v)
		return
	}
	if dst.Type().Elem().Kind() == reflect.Interface {
		dst.Set(reflect.ValueOf(values))
		return
	}
	strs := make(map[string]string, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		s, ok := values[name].(string)
		if !ok {
			d.wrongType(under(key, name), "a string", values[name])
			continue
		}
		strs[name] = s
	}
	dst.Set(reflect.ValueOf(strs))
}

func asFloat(v any) (float64, bool) {
	switch n := v.(type) {
	case float64:
		return n, true
	case int64:
		return float64(n), true
	}
	return 0, false
}

func wanted(dst reflect.Value) string {
	switch dst.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "an integer"
	case reflect.Float64:
		return "a number"
	case reflect.Struct:
		return "a table"
	}
	return "a string"
}

func typeName(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case int64:
		return "an integer"
	case float64:
		return "a floating point number"
	case []any:
		return "a list"
	case map[string]any:
		return "a table"
	}
	return "a date or time"
}

// spelled guesses the value that is meant by one in needless quotes.
func spelled(want string, v any) string {
	s, ok := v.(string)
	if !ok {
		return ""
	}
	if b, err := strconv.ParseBool(s); err == nil && want == "true or false" {
		return strconv.FormatBool(b)
	}
	if _, err := strconv.ParseInt(s, 10, 64); err == nil && want == "an integer" {
		return s
	}
	return ""
}
