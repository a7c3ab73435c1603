package config

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// commandLine is the origin of values from flags.
const commandLine = "command line"

func (a *assembly) flags() {
	d := tomlfile.Decoder{Doc: &tomlfile.Document{File: commandLine}}
	for _, key := range slices.Sorted(maps.Keys(a.options.Flags)) {
		field, ok := fieldAt(a.cfg, key)
		if !ok {
			message, suggestion := noSuchKey(key)
			d.Report(key, message, suggestion)
			continue
		}
		d.Assign(key, flagValue(a.options.Flags[key], field), field)
		a.cfg.origins[key] = Origin{File: commandLine}
	}
	a.problems = append(a.problems, d.Problems...)
}

func fieldAt(c *Config, key string) (field reflect.Value, ok bool) {
	for _, k := range configKeys() {
		if k.String() == key {
			field = reflect.ValueOf(c).Elem().FieldByIndex(k.field)
			return field, !tomlfile.IsTables(field.Type())
		}
	}
	return field, false
}

func noSuchKey(key string) (message, suggestion string) {
	first, rest, _ := strings.Cut(key, ".")
	switch first {
	case "runtimes":
		return "handlers come from files; write [runtimes.<handler>] into a drop-in", ""
	case "snapshotters":
		return "snapshotters come from files; write [snapshotters.<name>] into a drop-in", ""
	}
	var keys []string
	for _, k := range configKeys() {
		keys = append(keys, k.String())
	}
	if near, ok := handler.Nearest(key, keys); ok {
		return "unknown key", near
	}
	top := tomlfile.FieldsOf(reflect.TypeFor[Config]())
	i, known := top.Index[first]
	if !known {
		return unknownKey(sectionTop, first, top.Names)
	}
	names := tomlfile.FieldsOf(reflect.TypeFor[Config]().FieldByIndex(i).Type).Names
	if rest == "" {
		return "is a table; " + expected(names) + " in it", ""
	}
	return unknownKey(first, rest, names)
}

// flagValue parses a flag's text into the type of its key. An invalid text stays a string, which
// Assign then reports.
func flagValue(text string, field reflect.Value) any {
	var value any
	var err error
	switch field.Interface().(type) {
	case []string:
		list := []any{}
		for s := range strings.SplitSeq(text, ",") {
			list = append(list, s)
		}
		return list
	case bool:
		value, err = strconv.ParseBool(text)
	case int:
		value, err = strconv.ParseInt(text, 10, 64)
	case float64:
		value, err = strconv.ParseFloat(text, 64)
	default:
		return text
	}
	if err != nil {
		return text
	}
	return value
}
