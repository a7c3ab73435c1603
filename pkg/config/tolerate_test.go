package config

import (
	"strings"
	"testing"
)

const goodMain = "default_runtime = \"runc\"\n[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n[runtimes.crun]\nruntime_path = \"$BIN/crun\"\n"

// TestBadDropInIsLeftOut holds a daemon to its word: whatever is wrong with a
// drop-in, the main file's handlers are served, and those of the drop-in are
// known and not served.
func TestBadDropInIsLeftOut(t *testing.T) {
	for _, c := range []struct {
		what, dropIn, broken, reason string
	}{
		{"syntax error", "[runtimes.kata]\nruntime_path = \n[runtimes.gvisor]\n", "gvisor kata", "2:16: unexpected"},
		{"unknown key", "[log]\nlevl = \"debug\"\nlevel = \"debug\"\n[runtimes.kata]\nruntime_path = \"$BIN/runc\"\n", "kata", "2:1: log.levl: unknown key"},
		{"later version", "version = 9\n[runtimes.kata]\nruntime_path = \"$BIN/runc\"\n", "kata", "1:1: version: is 9"},
		{"handler without path", "[runtimes.kata]\n[runtimes.ok]\nruntime_path = \"$BIN/runc\"", "kata ok", "1:2: runtimes.kata: runtime_path is missing"},
		{"handler of the main file", "[runtimes.runc]\nruntime_path = \"$BIN/crun\"\n[runtimes.kata]\nruntime_path = \"$BIN/runc\"\n", "kata", "1:2: runtimes.runc: handler \"runc\" is already configured"},
		{"default that is not there", "default_runtime = \"kata\"\n", "", ""},
		{"bad value", "[streaming]\nport = -1\n", "", ""},
		{"bad handler name", "[runtimes.a_b]\nruntime_path = \"$BIN/runc\"\n", "", ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := newNode(t, "runc", "crun")
			n.write("config.toml", goodMain)
			n.write("conf.d/10-bad.toml", c.dropIn)
			n.write("conf.d/20-good.toml", "[runtimes.extra]\nruntime_path = \"$BIN/crun\"\n[log]\nformat = \"json\"\n")
			if _, err := Load(n.options()); err == nil {
				t.Fatal("the strict reading accepts it")
			}
			cfg := n.tolerate()
			if names(cfg) != "crun extra runc" || cfg.DefaultRuntime != "runc" || cfg.Discovered {
				t.Errorf("served are %s, default %s", names(cfg), cfg.DefaultRuntime)
			}
			if cfg.Runtimes[2].Path != n.path("bin/runc") {
				t.Errorf("runc runs %s", cfg.Runtimes[2].Path)
			}
			if cfg.Log.Level != "info" || cfg.Log.Format != "json" || cfg.Streaming.Port != 0 {
				t.Errorf("sections are %+v, %+v", cfg.Log, cfg.Streaming)
			}
			if got := brokenNames(cfg); got != c.broken {
				t.Errorf("broken are %q, want %q", got, c.broken)
			}
			if len(cfg.Broken) > 0 {
				b := cfg.Broken[0]
				if !strings.Contains(b.Reason, "10-bad.toml:"+c.reason) || !strings.HasPrefix(n.relative(b.Origin), "$DIR/conf.d/10-bad.toml") {
					t.Errorf("broken is %+v", b)
				}
			}
			if len(cfg.Problems) == 0 || cfg.Problems[0].File != n.path("conf.d/10-bad.toml") {
				t.Errorf("problems are %v", cfg.Problems)
			}
			if len(cfg.Sources) != 2 {
				t.Errorf("sources are %v", cfg.Sources)
			}
		})
	}
}

func TestDropInThatNeedsABadOne(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", goodMain)
	n.write("conf.d/10-kata.toml", "[runtimes.kata]\nruntime_path = 1\n")
	n.write("conf.d/20-default.toml", "default_runtime = \"kata\"\n")
	cfg := n.tolerate()
	// Pods that name no handler must not fall back to runc in silence.
	if cfg.DefaultRuntime != "kata" || names(cfg) != "crun runc" || brokenNames(cfg) != "kata" {
		t.Errorf("default %s, served %s, broken %s", cfg.DefaultRuntime, names(cfg), brokenNames(cfg))
	}
}

func TestSecondOfTwoDropInsLoses(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", goodMain)
	n.write("conf.d/10-a.toml", "[runtimes.kata]\nruntime_path = \"$BIN/runc\"\n")
	n.write("conf.d/20-b.toml", "[runtimes.kata]\nruntime_path = \"$BIN/crun\"\n[runtimes.other]\nruntime_path = \"$BIN/crun\"\n")
	cfg := n.tolerate()
	if names(cfg) != "crun kata runc" || brokenNames(cfg) != "other" || cfg.Runtimes[1].Path != n.path("bin/runc") {
		t.Errorf("served %s, broken %s", names(cfg), brokenNames(cfg))
	}
}

func TestWhatTheMachineLacksBreaksOneHandler(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", goodMain+"[runtimes.gone]\nruntime_path = \"$BIN/gone\"\n")
	n.write("conf.d/10.toml", "[runtimes.spec]\nruntime_path = \"$BIN/runc\"\nbase_runtime_spec = \"/nowhere\"\n[runtimes.ok]\nruntime_path = \"$BIN/runc\"\n")
	cfg := n.tolerate()
	if names(cfg) != "crun ok runc" || brokenNames(cfg) != "gone spec" {
		t.Errorf("served %s, broken %s", names(cfg), brokenNames(cfg))
	}
	gone := cfg.Broken[0]
	if n.relative(gone.Origin) != "$DIR/config.toml:6" || !strings.Contains(gone.Reason, "does not exist") {
		t.Errorf("broken is %+v", gone)
	}
	if len(cfg.Problems) != 2 || len(cfg.Sources) != 2 {
		t.Errorf("problems %v, sources %v", cfg.Problems, cfg.Sources)
	}
}

func TestBrokenDefaultStaysTheDefault(t *testing.T) {
	n := newNode(t, "crun")
	n.write("config.toml", goodMain)
	cfg := n.tolerate()
	if cfg.DefaultRuntime != "runc" || brokenNames(cfg) != "runc" || names(cfg) != "crun" {
		t.Errorf("default %s, served %s, broken %s", cfg.DefaultRuntime, names(cfg), brokenNames(cfg))
	}
}

func TestBadMainFileIsFatal(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", goodMain+"[log]\nlevl = \"x\"\n")
	n.write("conf.d/10-bad.toml", "x = 1\n")
	o := n.options()
	o.TolerateDropIns = true
	got := n.refuse(o)
	if len(got) != 2 || !strings.Contains(got[0], "10-bad.toml") || !strings.Contains(got[1], "config.toml:7") {
		t.Errorf("got %v", got)
	}
}

func TestDiscoveryWithDropIns(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", "")
	n.write("conf.d/10-runc.toml", "[runtimes.runc]\nruntime_path = \"$BIN/runc\"\nsnapshotter = \"native\"\n")
	cfg := n.load()
	if names(cfg) != "crun runc" || cfg.Runtimes[1].Snapshotter != "native" || cfg.DefaultRuntime != "runc" {
		t.Errorf("served %s, runc %+v, default %s", names(cfg), cfg.Runtimes[1], cfg.DefaultRuntime)
	}
	n.write("conf.d/10-runc.toml", "[runtimes.runc]\nruntime_path = \"$BIN/runc\"\nsnapshotter = \"zfs\"\n")
	cfg = n.tolerate()
	if names(cfg) != "crun" || brokenNames(cfg) != "runc" || cfg.DefaultRuntime != "runc" {
		t.Errorf("a bad drop-in fell back: served %s, broken %s, default %s", names(cfg), brokenNames(cfg), cfg.DefaultRuntime)
	}
}

func TestReasonIsShort(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", goodMain)
	n.write("conf.d/10.toml", "[runtimes.kata]\n"+strings.Repeat("k", 5000)+" = 1\n")
	if got := n.tolerate().Broken[0].Reason; len(got) > maxReason+3 {
		t.Errorf("the reason has %d bytes", len(got))
	}
}
