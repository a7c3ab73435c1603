package config

import (
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestAliases(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", `default_runtime = "usual"
[runtimes.usual]
alias_of = "runc"
[runtimes.runc]
runtime_path = "$BIN/runc"
max_pods = 7
`)
	n.write("conf.d/10-late.toml", "[runtimes.late]\nalias_of = \"crun\"\n")
	n.write("conf.d/20-crun.toml", "[runtimes.crun]\nruntime_path = \"$BIN/crun\"\n")
	cfg := n.load()
	if names(cfg) != "crun late runc usual" || cfg.DefaultRuntime != "usual" {
		t.Fatalf("handlers are %s, default %s", names(cfg), cfg.DefaultRuntime)
	}
	byName := map[string]int{}
	for i, d := range cfg.Runtimes {
		byName[d.Name] = i
	}
	for alias, of := range map[string]string{"usual": "runc", "late": "crun"} {
		a, d := *cfg.Runtimes[byName[alias]], *cfg.Runtimes[byName[of]]
		if a.AliasOf != of || a.Origin == d.Origin || a.Digest() == d.Digest() {
			t.Errorf("%s is %+v", alias, a)
		}
		a.Name, a.AliasOf, a.Origin = d.Name, "", d.Origin
		if a.Digest() != d.Digest() {
			t.Errorf("%s is %+v, and %s is %+v", alias, a, of, d)
		}
	}
	if got := cfg.Runtimes[byName["usual"]].Limits.MaxPods; got != 7 {
		t.Errorf("MaxPods of the alias is %d, want 7", got)
	}
}

// An alias of a broken handler is broken too.
func TestAliasOfWhatIsLeftOut(t *testing.T) {
	n := newNode(t, "runc")
	n.write("config.toml", "default_runtime = \"runc\"\n[import]\ncrio = [\""+n.path("crio.conf")+"\"]\n[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n[runtimes.another]\nalias_of = \"bad\"\n")
	n.write("crio.conf", "[crio.runtime.runtimes.bad]\nruntime_path = 7\n")
	cfg := n.load()
	test.Equal(t, "handlers", names(cfg), "runc")
	for _, b := range cfg.Broken {
		if !strings.Contains(b.Reason, "must be a string") {
			t.Errorf("%+v", b)
		}
	}
	if len(cfg.Broken) != 2 || !strings.Contains(cfg.Broken[0].Reason, `it is an alias of "bad"`) {
		t.Errorf("the broken handlers are %+v", cfg.Broken)
	}
}

func TestAliasesOfEachOther(t *testing.T) {
	n := newNode(t, "runc")
	n.write("config.toml", "[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n[runtimes.a]\nalias_of = \"b\"\n[runtimes.b]\nalias_of = \"a\"\n")
	_, err := Load(n.options())
	for _, want := range []string{`config.toml:4:1: runtimes.a.alias_of: "b" is itself an alias`, `config.toml:6:1: runtimes.b.alias_of: "a" is itself an alias`} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "did you mean") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
