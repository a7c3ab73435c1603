// Package dropin writes and reads a drop-in of one handler as settings: dotted keys with values as
// TOML. Package config checks their meaning.
package dropin

import (
	"bytes"
	"fmt"
	"reflect"
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
	// Value is its value in TOML, on one line.
	Value string
	// Origin is the origin of the value; empty in settings to be written.
	Origin string
}

// Flatten returns a value under its dotted key, or the values in a table, sorted.
func Flatten(key string, v any) []Setting {
	table := reflect.ValueOf(v)
	if table.Kind() != reflect.Map || table.Len() == 0 && key != "" {
		return []Setting{{Key: key, Value: tomlfile.Inline(v)}}
	}
	var all []Setting
	for name, value := range table.Seq2() {
		all = append(all, Flatten(tomlfile.Under(key, name.String()), value.Interface())...)
	}
	slices.SortFunc(all, func(a, b Setting) int { return strings.Compare(a.Key, b.Key) })
	return all
}

// Value converts an argument into a TOML value: valid TOML is kept, other text becomes a string.
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

// dottedKey matches keys without line breaks, which could add other settings.
var dottedKey = regexp.MustCompile(`^([A-Za-z0-9_-]+|"[^"\\\x00-\x1f\x7f]+")(\.([A-Za-z0-9_-]+|"[^"\\\x00-\x1f\x7f]+"))*$`)

// Write writes a drop-in with one handler. The header is a comment of any number of lines. Write
// checks only the syntax of settings; config.Load checks their meaning.
func Write(header, name string, settings []Setting) ([]byte, error) {
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

// Read reads a file written by Write, and returns the keys of one handler's table, sorted. For
// other content the error is of the class ErrFailedPrecondition.
func Read(data []byte, name string) ([]Setting, error) {
	var values map[string]any
	if err := toml.Unmarshal(data, &values); err != nil {
		return nil, fmt.Errorf("not valid TOML: %s: %w", strings.TrimPrefix(err.Error(), "toml: "), errdefs.ErrFailedPrecondition)
	}
	tables, _ := values["runtimes"].(map[string]any)
	table, _ := tables[name].(map[string]any)
	if len(values) != 1 || len(tables) != 1 || table == nil {
		return nil, fmt.Errorf("contains something other than [%s]: %w", tomlfile.Under("runtimes", name), errdefs.ErrFailedPrecondition)
	}
	return Flatten("", table), nil
}

// Parse reads lines of key = value, as edited by an operator.
func Parse(text []byte) ([]Setting, error) {
	var values map[string]any
	if err := toml.Unmarshal(text, &values); err != nil {
		return nil, fmt.Errorf("%s: %w", strings.TrimPrefix(err.Error(), "toml: "), errdefs.ErrInvalidArgument)
	}
	return Flatten("", values), nil
}
