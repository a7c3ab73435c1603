package config

import (
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// commandLine is the origin of values that came by flags.
const commandLine = "command line"

// flags lays values from the command line over those of files.
func (a *assembly) flags() {
	d := &decoder{doc: &document{file: commandLine}}
	for _, key := range slices.Sorted(maps.Keys(a.options.Flags)) {
		field, ok := fieldAt(a.cfg, key)
		if !ok {
			d.report(key, "there is no such key", "")
			continue
		}
		d.assign(key, flagValue(a.options.Flags[key], field), field)
		a.cfg.origins[key] = Origin{File: commandLine}
	}
	a.problems = append(a.problems, d.problems...)
}

// fieldAt finds the field of a full key in the sections.
func fieldAt(c *Config, key string) (reflect.Value, bool) {
	v := reflect.ValueOf(c).Elem()
	for part := range strings.SplitSeq(key, ".") {
		if v.Kind() != reflect.Struct {
			return v, false
		}
		i, ok := fieldsOf(v.Type()).index[part]
		if !ok {
			return v, false
		}
		v = v.Field(i)
	}
	return v, v.Kind() != reflect.Struct
}

// flagValue reads a flag's text as the TOML value that its key takes. Text of
// a wrong form stays a string, which assign then reports.
func flagValue(text string, field reflect.Value) any {
	switch field.Interface().(type) {
	case time.Duration, fs.FileMode:
		return text
	case []string:
		list := []any{}
		for s := range strings.SplitSeq(text, ",") {
			list = append(list, s)
		}
		return list
	}
	var v any
	var err error
	switch field.Kind() {
	case reflect.Bool:
		v, err = strconv.ParseBool(text)
	case reflect.Int:
		v, err = strconv.ParseInt(text, 10, 64)
	case reflect.Float64:
		v, err = strconv.ParseFloat(text, 64)
	default:
		return text
	}
	if err != nil {
		return text
	}
	return v
}
