package config

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-cri/berth/configs"
	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
)

// uncommented returns the shipped file with all keys and tables uncommented.
func uncommented() string {
	return regexp.MustCompile(`(?m)^#([a-z\[])`).ReplaceAllString(string(configs.Berth), "$1")
}

func TestTemplateAsShippedSaysNothing(t *testing.T) {
	n := newNode(t, "crun")
	n.raw("config.toml", string(configs.Berth), 0o644)
	cfg := n.load()
	want := Default()
	want.DefaultRuntime, want.Runtimes, want.Discovered = "crun", cfg.Runtimes, true
	want.Sources, want.origins, want.watched = cfg.Sources, cfg.origins, cfg.watched
	want.documents, want.ReadAt, want.SearchPath = cfg.documents, cfg.ReadAt, cfg.SearchPath
	want.elsewhere, want.defaultChosen = map[string]bool{"crun": true}, true
	want.Engine.ShimPath, want.Engine.PausePath = cfg.Engine.ShimPath, cfg.Engine.PausePath
	if !reflect.DeepEqual(cfg, want) {
		t.Errorf("got  %+v\nwant %+v", cfg, want)
	}
	test.Equal(t, "handlers", names(cfg), "crun")
}

// TestTemplateSwitchedOn loads the uncommented file: each key in it must exist,
// and it must show every key of the sections with its default.
func TestTemplateSwitchedOn(t *testing.T) {
	doc := parse("berth.toml", []byte(uncommented()))
	doc.main = true
	cfg, problems := assemble([]*document{doc}, Options{})
	for _, p := range problems {
		// The runtimes in the file need not be on this machine.
		if p.Lacking == "" {
			t.Error(p)
		}
	}
	test.Equal(t, "handlers", names(cfg), "gvisor kata runc")
	for _, k := range configKeys() {
		key, field := k.String(), reflect.ValueOf(*Default()).FieldByIndex(k.field)
		if tomlfile.IsTables(field.Type()) {
			continue
		}
		if _, shown := doc.Origins[key]; !shown {
			t.Errorf("configs/berth.toml does not show %s", key)
			continue
		}
		d := newDecoder(doc, nil, nil)
		got := reflect.New(field.Type()).Elem()
		d.Assign(key, valueAt(doc.Values, key), got)
		if literal(got.Interface()) != literal(field.Interface()) || len(d.Problems) > 0 {
			t.Errorf("configs/berth.toml shows %s = %s; the default is %s", key, literal(got.Interface()), literal(field.Interface()))
		}
	}
}

func valueAt(values map[string]any, key string) any {
	section, rest, nested := strings.Cut(key, ".")
	if !nested {
		return values[key]
	}
	return values[section].(map[string]any)[rest]
}
