package config

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

const crioCrun = "[crio.runtime.runtimes.crun]\nruntime_path = \"$BIN/crun\"\n"

// TestImportsAndOwnHandlers: berth's own handlers win over imported ones, and
// imported files do not change the default handler.
func TestImportsAndOwnHandlers(t *testing.T) {
	n := newNode(t, "runc", "crun", "youki")
	n.write("config.toml", "[import]\ncrio = [\""+n.path("crio")+"\"]\ncontainerd = [\""+n.path("cd")+"\", \""+n.path("config.other")+"\"]\n")
	n.write("crio/10", crioCrun+"[crio.runtime.runtimes.shared]\nruntime_path = \"$BIN/crun\"\n[crio.runtime]\ndefault_runtime = \"shared\"\n")
	n.write("cd/20.toml", containerdHandler("shared", "youki")+containerdHandler("third", "youki")+containerdHandler("mine", "youki"))
	n.write("cd/30.conf", "not read")
	n.write("conf.d/50.toml", "[runtimes.mine]\nruntime_path = \"$BIN/runc\"\n")
	cfg := n.load()
	if got := names(cfg); got != "crun mine runc shared third youki" || cfg.DefaultRuntime != "runc" || !cfg.Discovered {
		t.Errorf("served are %s, default %s", got, cfg.DefaultRuntime)
	}
	want := map[string]string{"crun": "$DIR/crio/10:1", "mine": "$DIR/conf.d/50.toml:1", "shared": "$DIR/crio/10:3", "third": "$DIR/cd/20.toml:3"}
	for _, d := range cfg.Runtimes {
		if w := want[d.Name]; w != "" && n.relative(d.Origin) != w {
			t.Errorf("%s is from %s, want %s", d.Name, d.Origin, w)
		}
	}
	test.Equal(t, "third's runtime_path is from", n.relative(cfg.Origin("runtimes.third.runtime_path").String()), "$DIR/cd/20.toml:4")
	var notes []string
	for _, note := range cfg.ImportNotes {
		notes = append(notes, n.relative(note.String()))
	}
	text := strings.Join(notes, "\n")
	for _, want := range []string{
		`handler "mine" is already configured at $DIR/conf.d/50.toml:1`,
		`handler "shared" is already configured at $DIR/crio/10:3`,
		`$DIR/crio/10:6:1: crio.runtime.default_runtime: `,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no note has %q:\n%s", want, text)
		}
	}
	for _, path := range []string{"config.toml", "conf.d", "vendor", "crio", "cd", "config.other"} {
		if !slices.Contains(cfg.Watched(), n.path(path)) {
			t.Errorf("%s is not watched: %v", path, cfg.Watched())
		}
	}
	if !slices.Contains(cfg.Sources, n.path("crio/10")) || slices.Contains(cfg.Sources, n.path("cd/30.conf")) {
		t.Errorf("sources are %v", cfg.Sources)
	}
}

func containerdHandler(name, binary string) string {
	table := "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes." + name + "]\n"
	if name != "shared" {
		return table + "options = { BinaryName = \"$BIN/" + binary + "\" }\n"
	}
	return table + "runtime_engine = \"$BIN/" + binary + "\"\n"
}

func TestBadImportsCostTheirOwnHandlers(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", goodMain+"[import]\ncrio = [\""+n.path("crio")+"\", \""+n.path("not-yet")+"\"]\n")
	n.write("crio/10-good", "[crio.runtime.runtimes.good]\nruntime_path = \"$BIN/crun\"\n")
	n.write("crio/20-syntax", "[crio.runtime.runtimes.half]\nruntime_path =\n[crio.runtime.runtimes.runc]\n")
	n.write("crio/30-gone", "[crio.runtime.runtimes.gone]\nruntime_path = \"$BIN/gone\"\n")
	n.write("crio/40-type", "[crio.runtime.runtimes.typed]\nruntime_path = 7\n")
	n.raw("crio/50-junk", "\x7fELF\x00\x00\xff\xfe", 0o644)
	test.Must(t, os.Symlink(n.path("nowhere"), n.path("crio/60-link")))
	cfg := n.load()
	test.Equal(t, "served", names(cfg), "crun gone good runc")
	test.Equal(t, "broken", brokenNames(cfg), "half typed")
	for _, want := range []string{"20-syntax:2:15: ", "40-type:2:1: runtimes.typed.runtime_path: must be a string", "50-junk:1:"} {
		if !strings.Contains(cfg.Problems.Error(), want) {
			t.Errorf("no problem has %q:\n%v", want, cfg.Problems)
		}
	}
	if lacks := n.lacks(cfg); len(lacks) != 1 || !strings.HasPrefix(lacks[0], "$DIR/crio/30-gone:2:1: runtimes.gone.runtime_path: ") {
		t.Errorf("the machine lacks %q", lacks)
	}
}

// TestBrokenImportKeepsItsName: a pod must not get a discovered runtime instead
// of the one that was configured.
func TestBrokenImportKeepsItsName(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", "[import]\ncrio = [\""+n.path("crio.conf")+"\"]\n")
	n.write("crio.conf", "[crio.runtime.runtimes.crun]\nruntime_path = 1\n")
	cfg := n.load()
	if names(cfg) != "runc" || brokenNames(cfg) != "crun" || cfg.DefaultRuntime != "runc" {
		t.Errorf("served %s, broken %s, default %s", names(cfg), brokenNames(cfg), cfg.DefaultRuntime)
	}
	n.write("config.toml", "default_runtime = \"crun\"\n[import]\ncrio = [\""+n.path("crio.conf")+"\"]\n")
	if cfg = n.load(); cfg.DefaultRuntime != "crun" {
		t.Errorf("the default moved to %s", cfg.DefaultRuntime)
	}
}

func TestImportOnly(t *testing.T) {
	n := newNode(t)
	n.binary("opt/crun", 0o755)
	n.write("config.toml", "[import]\ncrio = [\""+n.path("crio.conf")+"\"]\n")
	n.write("crio.conf", "[crio.runtime.runtimes.only]\nruntime_path = \""+n.path("opt/crun")+"\"\n")
	if cfg := n.load(); names(cfg) != "only" || cfg.DefaultRuntime != "only" {
		t.Errorf("served %s, default %s", names(cfg), cfg.DefaultRuntime)
	}
	n.raw("policy.json", `{"default": [{"type": "reject"}]}`, 0o644)
	if got := test.Value(Translate([]string{n.path("policy.json")}, n.options()))(t); len(got.Problems) > 0 || len(got.Notes) != 1 {
		t.Errorf("policy.json has problems %v, notes %v", got.Problems, got.Notes)
	}
}
