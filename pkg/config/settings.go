package config

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
)

// Setting is one key of a configuration.
type Setting struct {
	// Key is the full key, or the key inside one handler's table.
	Key string
	// Value is TOML on one line.
	Value string
	// Origin says where the value is from; it is empty in settings that are to
	// be written.
	Origin string
}

// Settings returns every key that Show writes, with its value and where that
// is from: the sections' keys in alphabetical order, then the handlers'.
func (c *Config) Settings() ([]Setting, error) {
	var text bytes.Buffer
	if err := c.Show(&text); err != nil {
		return nil, err
	}
	var values map[string]any
	if err := toml.Unmarshal(text.Bytes(), &values); err != nil {
		return nil, fmt.Errorf("format the configuration as TOML: %w", err)
	}
	handlers := map[string]string{}
	for _, d := range c.Runtimes {
		handlers[tomlfile.Under("runtimes", d.Name)] = d.Origin
	}
	tables := values["runtimes"]
	delete(values, "runtimes")
	s := shower{cfg: c}
	all := flatten("", values, nil)
	for i := range all {
		all[i].Origin = s.origin(all[i].Key)
	}
	if tables, ok := tables.(map[string]any); ok {
		for _, name := range slices.Sorted(maps.Keys(tables)) {
			all = append(all, s.handlerSettings(name, tables[name], handlers)...)
		}
	}
	return all, nil
}

// HandlerSettings are those of one handler, by their keys inside its table; none
// for a handler that is not configured or cannot be read.
func (c *Config) HandlerSettings(name string) ([]Setting, error) {
	all, err := c.Settings()
	if err != nil {
		return nil, err
	}
	prefix := tomlfile.Under("runtimes", name) + "."
	var its []Setting
	for _, s := range all {
		if key, ok := strings.CutPrefix(s.Key, prefix); ok {
			s.Key = key
			its = append(its, s)
		}
	}
	return its, nil
}

func (s shower) handlerSettings(name string, table any, origins map[string]string) []Setting {
	prefix := tomlfile.Under("runtimes", name)
	settings := flatten(prefix, table, nil)
	for i, one := range settings {
		settings[i].Origin = s.originBelow(prefix, one.Key)
		// What was discovered has no place in a file.
		if settings[i].Origin == (Origin{}).String() && s.cfg.Origin(prefix) == (Origin{}) {
			settings[i].Origin = origins[prefix]
		}
	}
	return settings
}

// originBelow is the origin of a key, or of the nearest table that it is in and
// that was written as a whole.
func (s shower) originBelow(prefix, key string) string {
	for k := key; len(k) > len(prefix); k = k[:strings.LastIndexByte(k, '.')] {
		if o := s.cfg.Origin(k); o != (Origin{}) {
			return o.String()
		}
	}
	return Origin{}.String()
}

// flatten lists the values of a table by their dotted keys, sorted.
func flatten(prefix string, v any, to []Setting) []Setting {
	table, ok := v.(map[string]any)
	if !ok || len(table) == 0 && prefix != "" {
		return append(to, Setting{Key: prefix, Value: tomlfile.Inline(v)})
	}
	// Keys of the table itself go before those of tables in it, as in a file.
	names := slices.Sorted(maps.Keys(table))
	slices.SortStableFunc(names, func(a, b string) int {
		return isTable(table[a]) - isTable(table[b])
	})
	for _, name := range names {
		to = flatten(tomlfile.Under(prefix, name), table[name], to)
	}
	return to
}

func isTable(v any) int {
	if _, ok := v.(map[string]any); ok {
		return 1
	}
	return 0
}

// Value makes a TOML value of what somebody has typed: what is one stays as it
// is, and anything else is a string.
func Value(text string) string {
	if checkValue(text) == nil {
		return text
	}
	return tomlfile.Quote(text)
}

func checkValue(text string) error {
	var parsed map[string]any
	if strings.ContainsAny(text, "\n\r") {
		return fmt.Errorf("%q has several lines; write the value on one: %w", text, errdefs.ErrInvalidArgument)
	}
	err := toml.Unmarshal([]byte("v = "+text), &parsed)
	if err != nil {
		return fmt.Errorf("%q is not a valid TOML value (%s); strings need quotes: %w", text, strings.TrimPrefix(err.Error(), "toml: "), errdefs.ErrInvalidArgument)
	}
	return nil
}

// dottedKey has no key that could end the line that it is written on.
var dottedKey = regexp.MustCompile(`^([A-Za-z0-9_-]+|"[^"\\\x00-\x1f\x7f]+")(\.([A-Za-z0-9_-]+|"[^"\\\x00-\x1f\x7f]+"))*$`)

// HandlerFile writes a drop-in with one handler. The header is a comment of
// any number of lines. It checks only that each setting is a key and a value:
// what they mean is found out by Load.
func HandlerFile(header, name string, settings []Setting) ([]byte, error) {
	var b bytes.Buffer
	for line := range strings.Lines(header) {
		fmt.Fprintf(&b, "# %s\n", strings.TrimSpace(line))
	}
	fmt.Fprintf(&b, "[%s]\n", tomlfile.Under("runtimes", name))
	for _, s := range settings {
		if !dottedKey.MatchString(s.Key) {
			return nil, fmt.Errorf("%q is not a valid key; write it as runtime_path or options.BinaryName: %w", s.Key, errdefs.ErrInvalidArgument)
		}
		if err := checkValue(s.Value); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Key, err)
		}
		fmt.Fprintf(&b, "%s = %s\n", s.Key, s.Value)
	}
	if b.Len() > hostfiles.MaxFileSize {
		return nil, fmt.Errorf("the settings of handler %q exceed %d bytes, the limit for a configuration file: %w", name, hostfiles.MaxFileSize, errdefs.ErrInvalidArgument)
	}
	return b.Bytes(), nil
}

// ReadHandlerFile reads what HandlerFile wrote: the keys of one handler's table,
// sorted. A file that has anything else is of the class ErrFailedPrecondition.
func ReadHandlerFile(data []byte, name string) ([]Setting, error) {
	var values map[string]any
	if err := toml.Unmarshal(data, &values); err != nil {
		return nil, fmt.Errorf("not valid TOML: %s: %w", strings.TrimPrefix(err.Error(), "toml: "), errdefs.ErrFailedPrecondition)
	}
	tables, _ := values["runtimes"].(map[string]any)
	table, _ := tables[name].(map[string]any)
	if len(values) != 1 || len(tables) != 1 || table == nil {
		return nil, fmt.Errorf("contains something other than [%s]: %w", tomlfile.Under("runtimes", name), errdefs.ErrFailedPrecondition)
	}
	return relative(flatten("", table, nil)), nil
}

func relative(settings []Setting) []Setting {
	slices.SortFunc(settings, func(a, b Setting) int { return strings.Compare(a.Key, b.Key) })
	return settings
}

// ParseSettings reads lines of key = value, as an operator has edited them.
func ParseSettings(text []byte) ([]Setting, error) {
	var values map[string]any
	if err := toml.Unmarshal(text, &values); err != nil {
		return nil, fmt.Errorf("%s: %w", strings.TrimPrefix(err.Error(), "toml: "), errdefs.ErrInvalidArgument)
	}
	return relative(flatten("", values, nil)), nil
}
