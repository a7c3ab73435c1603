package config

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// documented reads docs/configuration.md: default, and when a change takes
// effect, by section and key. The tables of handlers have no column for the latter,
// because all their keys are for new pods. The two
// tables of options are told apart by the case of their keys.
func documented(t *testing.T) (docs, effects map[string]string) {
	t.Helper()
	data := test.Value(os.ReadFile("../../docs/configuration.md"))(t)
	heading := regexp.MustCompile(`^### \[(.*)\]$`)
	row := regexp.MustCompile("^\\| `([A-Za-z_]+)` \\| [a-zA-Z ]+ \\| `(.*?)` \\| (?:(start|reload|new pods|start, new pods|each pull) \\| )?.+ \\|$")
	docs, effects = map[string]string{}, map[string]string{}
	section, inKeys := "", false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if m := heading.FindStringSubmatch(line); m != nil {
			section = strings.NewReplacer("&lt;", "<", "&gt;", ">").Replace(m[1])
		}
		if strings.HasPrefix(line, "## ") {
			inKeys = line == "## Keys"
		}
		m := row.FindStringSubmatch(line)
		switch {
		case m != nil:
			key := strings.TrimPrefix(section+"."+m[1], ".")
			if _, dup := docs[key]; dup {
				t.Errorf("%s is documented twice", key)
			}
			if (m[3] == "") != strings.HasPrefix(section, "runtimes.") {
				t.Errorf("%s: this row has a column too few or too many", key)
			}
			docs[key], effects[key] = m[2], m[3]
		case inKeys && strings.HasPrefix(line, "| `"):
			t.Errorf("this row has an unknown form: %s", line)
		}
	}
	return docs, effects
}

// actual is what there is, in the same form.
func actual() map[string]string {
	keys := map[string]string{}
	add := func(section string, v reflect.Value) {
		for tag, i := range tomlfile.FieldsOf(v.Type()).Index {
			field := v.FieldByIndex(i)
			if field.Kind() == reflect.Struct || field.Kind() == reflect.Pointer || tomlfile.IsTables(field.Type()) {
				continue
			}
			value := literal(field.Interface())
			keys[strings.TrimPrefix(section+"."+tag, ".")] = value
		}
	}
	cfg := reflect.ValueOf(*Default())
	add("", cfg)
	for i := range cfg.NumField() {
		if tag := cfg.Type().Field(i).Tag.Get("toml"); tag != "-" && cfg.Field(i).Kind() == reflect.Struct {
			add(tag, cfg.Field(i))
		}
	}
	add("snapshotters.<name>", reflect.ValueOf(Snapshotter{}))
	add("runtimes.<handler>", reflect.ValueOf(defaultTable()))
	add("runtimes.<handler>.candidate", reflect.ValueOf(handler.Candidate{}))
	add("runtimes.<handler>.options", reflect.ValueOf(handler.OCIOptions{}))
	add("runtimes.<handler>.options", reflect.ValueOf(runcOptions{}))
	return keys
}

func TestEveryKeyIsDocumented(t *testing.T) {
	docs, _ := documented(t)
	keys := actual()
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if _, ok := docs[key]; !ok {
			t.Errorf("%s is not in docs/configuration.md", key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(docs)) {
		want, ok := keys[key]
		if !ok {
			t.Errorf("docs/configuration.md has %s, which does not exist", key)
		} else if docs[key] != want {
			t.Errorf("docs/configuration.md says that %s is %s by default; it is %s", key, docs[key], want)
		}
	}
}

// TestReloadBehaviourIsDocumented holds the word under "takes effect" against
// what a reload does with the key.
func TestReloadBehaviourIsDocumented(t *testing.T) {
	_, effects := documented(t)
	for _, key := range slices.Sorted(maps.Keys(effects)) {
		byReload := effects[key] == "reload" || effects[key] == "new pods"
		if strings.HasPrefix(key, "runtimes.") {
			continue
		}
		if byReload != reloadable[key] {
			t.Errorf("docs/configuration.md says %q of %s; that a reload takes it over is %v", effects[key], key, reloadable[key])
		}
	}
	for key := range reloadable {
		if _, there := effects[key]; !there {
			t.Errorf("%s is said to be reloadable, and is no key", key)
		}
	}
}

// TestDocumentedLimits keeps numbers in prose true.
func TestDocumentedLimits(t *testing.T) {
	data := test.Value(os.ReadFile("../../docs/configuration.md"))(t)
	for _, want := range []string{DefaultFile, DefaultVendorDir, hostfiles.SearchPathEnv, "at most 107 bytes",
		fmt.Sprintf("at most %d MiB, a directory at most %d files and %d MiB in all, and keys are at most %d levels deep",
			hostfiles.MaxFileSize>>20, hostfiles.MaxFiles, hostfiles.MaxTotalSize>>20, tomlfile.MaxDepth)} {
		if !strings.Contains(string(data), want) {
			t.Errorf("docs/configuration.md does not mention %s", want)
		}
	}
	for _, name := range ociRuntimes {
		if !strings.Contains(string(data), "`"+name+"`") {
			t.Errorf("docs/configuration.md does not say that %s is discovered", name)
		}
	}
}
