package tomlfile

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

// Decoder decodes the values of one document into structs. go-toml's own strict mode stops at the
// first value of a wrong type; an operator with three mistakes should not need three attempts.
type Decoder struct {
	Doc      *Document
	Problems Problems
	// Unknown is called for each unknown key of a table. It returns the message, and the known key
	// that was probably meant. Table requires it.
	Unknown func(kind, name string, known []string) (message, suggestion string)
}

// At returns a problem of a key.
func (d *Decoder) At(key, message, suggestion string) Problem {
	o := d.Doc.Origins[key]
	o.File = cmp.Or(o.File, d.Doc.File)
	return Problem{Origin: o, Key: key, Message: message, Suggestion: suggestion}
}

// Report adds a problem of a key.
func (d *Decoder) Report(key, message, suggestion string) {
	d.Problems = append(d.Problems, d.At(key, message, suggestion))
}

// Table decodes values into the struct dst by its toml tags. kind is passed to Unknown; for tables
// in the struct it is their key. The keys in elsewhere are decoded by the caller.
func (d *Decoder) Table(kind, prefix string, values map[string]any, dst reflect.Value, elsewhere ...string) {
	fields := FieldsOf(dst.Type())
	for _, name := range slices.Sorted(maps.Keys(values)) {
		key := Under(prefix, name)
		i, known := fields.Index[name]
		switch {
		case known:
			d.Assign(key, values[name], dst.FieldByIndex(i))
		case slices.Contains(elsewhere, name):
		default:
			message, suggestion := d.Unknown(kind, name, slices.Concat(fields.Names, elsewhere))
			d.Report(key, message, suggestion)
		}
	}
}

// Fields are the fields of a struct with toml tags, including those of embedded structs.
type Fields struct {
	Names []string
	Index map[string][]int
}

// FieldsOf returns the Fields of a struct.
func FieldsOf(t reflect.Type) Fields {
	f := Fields{Index: map[string][]int{}}
	for _, field := range reflect.VisibleFields(t) {
		if name := field.Tag.Get("toml"); name != "" && name != "-" {
			f.Names = append(f.Names, name)
			f.Index[name] = field.Index
		}
	}
	return f
}

// Assign stores one value in a field, or reports its wrong type.
func (d *Decoder) Assign(key string, v any, dst reflect.Value) {
	switch dst.Interface().(type) {
	case time.Duration:
		d.duration(key, v, dst)
		return
	case fs.FileMode:
		d.fileMode(key, v, dst)
		return
	}
	switch dst.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Float64:
		value := reflect.ValueOf(v)
		number := value.Kind() == reflect.Int64 && (dst.Kind() == reflect.Int || dst.Kind() == reflect.Float64)
		if number || value.Kind() == dst.Kind() {
			dst.Set(value.Convert(dst.Type()))
			return
		}
	case reflect.Uint32:
		if n, ok := v.(int64); ok && n >= 0 && n <= math.MaxUint32 {
			dst.SetUint(uint64(n))
		} else {
			d.Report(key, fmt.Sprintf("must be a number from 0 to %d", uint32(math.MaxUint32)), "")
		}
		return
	case reflect.Slice:
		d.list(key, v, dst)
		return
	case reflect.Map:
		d.mapping(key, v, dst)
		return
	case reflect.Struct:
		if values, ok := v.(map[string]any); ok {
			d.Table(key, key, values, dst)
			return
		}
	case reflect.Pointer:
		one := reflect.New(dst.Type().Elem())
		d.Assign(key, v, one.Elem())
		dst.Set(one)
		return
	}
	d.WrongType(key, cmp.Or(wanted[dst.Kind()], "a string"), v)
}

// WrongType reports a value of a wrong type.
func (d *Decoder) WrongType(key, want string, v any) {
	d.Report(key, fmt.Sprintf("must be %s, not %s", want, TypeName(v)), spelled(want, v))
}

func (d *Decoder) duration(key string, v any, dst reflect.Value) {
	const want = `a duration with its unit in quotes, such as "90s" or "4h"`
	s, ok := v.(string)
	if !ok {
		suggestion := ""
		if n, isInt := v.(int64); isInt {
			suggestion = strconv.FormatInt(n, 10) + "s"
		}
		d.Report(key, "must be "+want+", not "+TypeName(v), suggestion)
		return
	}
	t, err := time.ParseDuration(s)
	if err != nil {
		d.Report(key, fmt.Sprintf("%q is not a duration; write %s", s, want), "")
		return
	}
	dst.SetInt(int64(t))
}

func (d *Decoder) fileMode(key string, v any, dst reflect.Value) {
	const want = `a file mode as an octal number in quotes, such as "0660"`
	s, ok := v.(string)
	if !ok {
		d.WrongType(key, want, v)
		return
	}
	mode, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	if err != nil || fs.FileMode(mode)&^fs.ModePerm != 0 {
		d.Report(key, fmt.Sprintf("%q is not a file mode; write %s", s, want), "")
		return
	}
	dst.SetUint(mode)
}

func (d *Decoder) list(key string, v any, dst reflect.Value) {
	values, ok := v.([]any)
	if !ok {
		suggestion := ""
		if s, isString := v.(string); isString {
			suggestion = fmt.Sprintf("[%q]", s)
		}
		d.Report(key, "must be a list of strings, not "+TypeName(v), suggestion)
		return
	}
	list := make([]string, 0, len(values))
	for i, e := range values {
		s, ok := e.(string)
		if !ok {
			d.Report(key, fmt.Sprintf("must be a list of strings; element %d is %s", i+1, TypeName(e)), "")
			return
		}
		list = append(list, s)
	}
	dst.Set(reflect.ValueOf(list))
}

// IsTables reports whether a field is a table of named tables.
func IsTables(t reflect.Type) bool {
	return t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Struct
}

// mapping decodes a table with named values, or keeps a table of any values as it is. Tables in
// several documents are merged.
func (d *Decoder) mapping(key string, v any, dst reflect.Value) {
	values, ok := v.(map[string]any)
	if !ok {
		want := "a table"
		if IsTables(dst.Type()) {
			want = "a table of tables, such as [" + Under(key, "name") + "]"
		}
		d.WrongType(key, want, v)
		return
	}
	if dst.Type().Elem().Kind() == reflect.Interface {
		dst.Set(reflect.ValueOf(values))
		return
	}
	merged := reflect.MakeMap(dst.Type())
	for name, before := range dst.Seq2() {
		merged.SetMapIndex(name, before)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, table := values[name].(map[string]any); !table && IsTables(dst.Type()) {
			d.WrongType(Under(key, name), "a table", values[name])
			continue
		}
		one := reflect.New(dst.Type().Elem()).Elem()
		if before := merged.MapIndex(reflect.ValueOf(name)); before.IsValid() {
			one.Set(before)
		}
		d.Assign(Under(key, name), values[name], one)
		merged.SetMapIndex(reflect.ValueOf(name), one)
	}
	dst.Set(merged)
}

// wanted describes the expected types of fields other than strings.
var wanted = map[reflect.Kind]string{
	reflect.Bool:    "true or false",
	reflect.Int:     "an integer",
	reflect.Float64: "a number",
	reflect.Struct:  "a table",
}

var typeNames = map[reflect.Kind]string{
	reflect.String:  "a string",
	reflect.Bool:    "a boolean",
	reflect.Int64:   "an integer",
	reflect.Float64: "a floating point number",
	reflect.Slice:   "a list",
	reflect.Map:     "a table",
}

// TypeName returns the type of a value in words.
func TypeName(v any) string { return cmp.Or(typeNames[reflect.ValueOf(v).Kind()], "a date or time") }

// spelled suggests the value without needless quotes.
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
