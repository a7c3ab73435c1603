package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// builtin are the snapshotters that need no table.
var builtin = []string{"overlayfs", "erofs", "native"}

// snapshotterName is what directories and labels may have.
var snapshotterName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

// snapshotterNames are what a snapshotter key may say.
func (c *Config) snapshotterNames() []string {
	return slices.Concat(builtin, slices.Sorted(maps.Keys(c.Snapshotters)))
}

// tables decodes a table of tables. One that is in several documents is merged.
func (d *decoder) tables(key string, v any, dst reflect.Value) {
	values, ok := v.(map[string]any)
	if !ok {
		d.wrongType(key, "a table of tables, such as [snapshotters.stargz]", v)
		return
	}
	merged := reflect.MakeMap(dst.Type())
	for _, name := range dst.MapKeys() {
		merged.SetMapIndex(name, dst.MapIndex(name))
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		table, ok := values[name].(map[string]any)
		if !ok {
			d.wrongType(under(key, name), "a table", values[name])
			continue
		}
		one := reflect.New(dst.Type().Elem()).Elem()
		if before := merged.MapIndex(reflect.ValueOf(name)); before.IsValid() {
			one.Set(before)
		}
		d.table(section(key+".*"), under(key, name), table, one)
		merged.SetMapIndex(reflect.ValueOf(name), one)
	}
	dst.Set(merged)
}

// isTables says whether a field has a table for each of several names.
func isTables(t reflect.Type) bool {
	return t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Struct
}

func (v *validator) snapshotters(all map[string]Snapshotter) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		key := under("snapshotters", name)
		switch address := all[name].Address; {
		case slices.Contains(builtin, name):
			v.wrong(key, fmt.Sprintf("%q is berth's own; give this one another name", name), "")
		case !snapshotterName.MatchString(name):
			v.wrong(key, "a snapshotter's name must have lower case letters, digits, '.', '_' and '-' only, at most 63", "")
		case address == "":
			v.wrong(key, "address is missing; set it to the path of the snapshotter's socket", "")
		case !filepath.IsAbs(strings.TrimPrefix(address, "unix://")):
			v.wrong(under(key, "address"), fmt.Sprintf("%q must be the absolute path of a unix socket", address), "")
		case len(strings.TrimPrefix(address, "unix://")) > maxSocketPath:
			v.wrong(under(key, "address"), fmt.Sprintf("must be at most %d bytes long, as paths of sockets are", maxSocketPath), "")
		}
	}
}
