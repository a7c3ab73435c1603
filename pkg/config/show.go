package config

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/berth-cri/berth/pkg/config/dropin"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// Show writes the complete configuration as TOML that Load would read with the same result, with
// the origin of each value in a comment.
func (c *Config) Show(w io.Writer) error {
	tables, err := c.tables()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, t := range tables {
		if t.name != "" {
			fmt.Fprintf(&b, "\n[%s]%s\n", t.name, t.remark)
		}
		for _, s := range t.settings {
			fmt.Fprintf(&b, "%s = %s # %s\n", strings.TrimPrefix(s.Key, t.name+"."), s.Value, s.Origin)
		}
	}
	for _, n := range c.Broken {
		fmt.Fprintf(&b, "\n# [runtimes.%s] is not in use (%s): %s\n", n.Name, n.Origin, strings.Join(strings.Fields(n.Reason), " "))
	}
	_, err = w.Write(b.Bytes())
	return err
}

// Settings returns every key that Show writes, in that order.
func (c *Config) Settings() ([]dropin.Setting, error) {
	tables, err := c.tables()
	var all []dropin.Setting
	for _, t := range tables {
		all = append(all, t.settings...)
	}
	return all, err
}

// HandlerSettings returns the keys of one handler, relative to its table; none for a handler that
// is not in Runtimes.
func (c *Config) HandlerSettings(name string) ([]dropin.Setting, error) {
	all, err := c.Settings()
	var its []dropin.Setting
	for _, s := range all {
		if key, ok := strings.CutPrefix(s.Key, tomlfile.Under("runtimes", name)+"."); ok {
			s.Key = key
			its = append(its, s)
		}
	}
	return its, err
}

type shownTable struct {
	name, remark string
	// unset is the origin of values that no file sets.
	unset string
	// settings have full keys.
	settings []dropin.Setting
}

// tables returns the sections in the order of the file format, then the handlers.
func (c *Config) tables() ([]shownTable, error) {
	v := reflect.ValueOf(*c)
	top := shownTable{unset: Origin{}.String()}
	c.show(&top, "", v, false)
	all := []shownTable{top}
	section := func(name string, v reflect.Value) {
		t := shownTable{name: name, unset: top.unset}
		c.show(&t, name, v, false)
		all = append(all, t)
	}
	for i := range v.NumField() {
		if tag := v.Type().Field(i).Tag.Get("toml"); tag != "-" && v.Field(i).Kind() == reflect.Struct {
			section(tag, v.Field(i))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Snapshotters)) {
		section(tomlfile.Under("snapshotters", name), reflect.ValueOf(c.Snapshotters[name]))
	}
	for _, d := range c.Runtimes {
		table, err := tableOf(d)
		if err != nil {
			return nil, err
		}
		t := shownTable{name: tomlfile.Under("runtimes", d.Name), remark: " # " + d.Origin, unset: top.unset}
		if c.Origin(t.name) == (Origin{}) { // discovered handlers are in no file
			t.unset = d.Origin
		}
		c.show(&t, t.name, reflect.ValueOf(table), true)
		if d.Type == handler.CRI && d.RemoteHandler == "" && d.AliasOf == "" {
			key := t.name + ".remote_handler"
			t.settings = append(t.settings, dropin.Setting{Key: key, Value: `""`, Origin: c.origin(t, key)})
		}
		all = append(all, t)
	}
	return all, nil
}

// show adds the fields of v to t, as keys below prefix; with onlySet, only those that are not zero.
// Sections and tables of tables are shown separately.
func (c *Config) show(t *shownTable, prefix string, v reflect.Value, onlySet bool) {
	fields := tomlfile.FieldsOf(v.Type())
	for _, name := range fields.Names {
		key, field := tomlfile.Under(prefix, name), v.FieldByIndex(fields.Index[name])
		switch {
		case onlySet && field.IsZero(), field.Kind() == reflect.Struct, tomlfile.IsTables(field.Type()):
		case field.Kind() == reflect.Pointer:
			c.show(t, key, field.Elem(), false)
		case field.Kind() == reflect.Map:
			for _, s := range dropin.Flatten(key, field.Interface()) {
				s.Origin = c.origin(*t, s.Key)
				t.settings = append(t.settings, s)
			}
		default:
			t.settings = append(t.settings, dropin.Setting{Key: key, Value: literal(field.Interface()), Origin: c.origin(*t, key)})
		}
	}
}

// origin returns the origin of a key of t, or of the nearest enclosing table in t that was written
// as a whole.
func (c *Config) origin(t shownTable, key string) string {
	for k := key; len(k) > len(t.name); k = k[:max(0, strings.LastIndexByte(k, '.'))] {
		if o := c.Origin(k); o != (Origin{}) {
			return o.String()
		}
	}
	switch key {
	case "default_runtime":
		return "chosen"
	case "engine.shim_path", "engine.pause_path":
		return "default: beside the berth binary, else where runtimes are discovered"
	}
	return t.unset
}

func tableOf(d *handler.Definition) (runtimeTable, error) {
	if d.AliasOf != "" {
		return runtimeTable{Definition: handler.Definition{AliasOf: d.AliasOf}}, nil
	}
	t := runtimeTable{Definition: *d, Options: d.ShimOptions}
	if d.Type == handler.CRI {
		t.Endpoint = "unix://" + d.Endpoint
	}
	if d.Type == handler.OCI {
		oci := reflect.ValueOf(d.OCI)
		for name, i := range tomlfile.FieldsOf(oci.Type()).Index {
			if option := oci.FieldByIndex(i); !option.IsZero() {
				if t.Options == nil {
					t.Options = map[string]any{}
				}
				t.Options[name] = option.Interface()
			}
		}
	}
	if d.ShimOptionsTOML != "" {
		if err := toml.Unmarshal([]byte(d.ShimOptionsTOML), &t.Options); err != nil {
			return t, fmt.Errorf("show the options of handler %q: %w", d.Name, err)
		}
	} else if d.ShimOptionsType != "" {
		t.Options = map[string]any{typeURL: d.ShimOptionsType}
	}
	return t, nil
}

// literal writes a value as TOML on one line.
func literal(v any) string {
	switch x := v.(type) {
	case time.Duration:
		return tomlfile.Quote(shortDuration(x))
	case fs.FileMode:
		return fmt.Sprintf(`"%04o"`, uint32(x))
	case float64:
		return fmt.Sprint(x)
	}
	return tomlfile.Inline(v)
}

// shortDuration drops the zero units of time.Duration's String: 4h, not 4h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
