package config

import (
	"os"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

// again loads the files as a daemon that runs with the given configuration.
func (n *node) again(running *Config) (*Config, error) {
	o := n.options()
	o.Running = running
	return Load(o)
}

// start loads the files as a daemon that starts.
func (n *node) start() (*Config, error) {
	return Load(n.options())
}

// TestTheDefaultOfARunningDaemonStays: a runtime that is installed or removed does not change the
// default handler of a running daemon; the main file does.
func TestTheDefaultOfARunningDaemonStays(t *testing.T) {
	for _, c := range []struct {
		what, before, after string // the installed runtimes
		main, next          string // the main file
		served, fallback    string
	}{
		{"nothing changes", "runc crun", "runc crun", "", "", "crun runc", "runc"},
		{"the default is removed", "runc crun", "crun", "", "", "crun runc", "runc"},
		{"all are removed", "runc", "", "", "", "runc", "runc"},
		{"a preferred one is installed", "crun", "runc crun", "", "", "crun runc", "crun"},
		{"another is removed", "runc crun", "runc", "", "", "runc", "runc"},
		{"the file names another default", "runc crun", "crun", "", "default_runtime = \"crun\"\n", "crun", "crun"},
		{"the file no longer names a default", "runc crun", "runc crun", "default_runtime = \"crun\"\n", "", "crun runc", "runc"},
		{"the default that the file names is removed", "runc crun", "runc", "default_runtime = \"crun\"\n", "default_runtime = \"crun\"\n", "crun runc", "crun"},
		{"the file configures all handlers", "crun", "crun", "", "[runtimes.mine]\nruntime_path = \"$BIN/crun\"\n", "mine", "mine"},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := newNode(t, strings.Fields(c.before)...)
			n.write("config.toml", c.main)
			running := test.Value(n.start())(t)
			for _, r := range strings.Fields(c.before) {
				test.Must(t, os.Remove(n.path("bin/"+r)))
			}
			for _, r := range strings.Fields(c.after) {
				n.binary("bin/"+r, 0o755)
			}
			n.write("config.toml", c.next)
			// The result must be the same after each reload.
			for range 3 {
				cfg := test.Value(n.again(running))(t)
				if names(cfg) != c.served || cfg.DefaultRuntime != c.fallback {
					t.Fatalf("served are %q, default %s; want %q, %s", names(cfg), cfg.DefaultRuntime, c.served, c.fallback)
				}
				running = cfg
			}
			for _, d := range running.Runtimes {
				there := strings.Contains(c.after, d.Name) || d.Name == "mine"
				if lacks := hostfiles.Lacking(d); (lacks == nil) != there {
					t.Errorf("Lacking(%s) is %v", d.Name, lacks)
				}
			}
		})
	}
}

// TestADefaultThatOthersBringIsAwaited: the daemon also starts while the imported file that
// defines its default_runtime does not exist, and serves the handler once the file does.
func TestADefaultThatOthersBringIsAwaited(t *testing.T) {
	n := newNode(t, "runc", "crun")
	main := "default_runtime = \"kata\"\n[import]\ncrio = [\"" + n.path("crio") + "\"]\n[runtimes.mine]\nruntime_path = \"$BIN/runc\"\n[runtimes.old]\nalias_of = \"kata\"\n"
	n.write("config.toml", main)
	cfg, err := n.start()
	test.Must(t, err)
	if names(cfg) != "mine" || brokenNames(cfg) != "kata old" || cfg.DefaultRuntime != "kata" {
		t.Fatalf("served %q, broken %q, default %s", names(cfg), brokenNames(cfg), cfg.DefaultRuntime)
	}
	if want := "$DIR/config.toml:1:1: default_runtime: handler \"kata\" does not exist in the files of [import]"; !strings.HasPrefix(n.relative(cfg.Broken[0].Reason), want) {
		t.Errorf("the reason is %s", cfg.Broken[0].Reason)
	}
	// The imported file is created, removed and created again.
	for range 2 {
		if cfg, err = n.again(cfg); err != nil || brokenNames(cfg) != "kata old" {
			t.Fatalf("without the imported file: %v, broken %q", err, brokenNames(cfg))
		}
		n.write("crio/10", "[crio.runtime.runtimes.kata]\nruntime_path = \"$BIN/crun\"\n")
		if cfg, err = n.again(cfg); err != nil || names(cfg) != "kata mine old" || cfg.DefaultRuntime != "kata" {
			t.Fatalf("with the imported file: %v, served %q, default %s", err, names(cfg), cfg.DefaultRuntime)
		}
		test.Must(t, os.Remove(n.path("crio/10")))
	}
	// A default that no imported file ever defined is a mistake.
	n.write("config.toml", strings.Replace(main, "default_runtime = \"kata\"", "default_runtime = \"kato\"", 1))
	test.Says(t, test.Err(n.again(cfg)), `handler "kato" does not exist`)
	// "berth check" reports the missing handler, but not as a mistake of the main file.
	n.write("config.toml", main)
	cfg, err = Load(n.options())
	test.Must(t, err)
	if mistakes, lacks := cfg.Problems.Split(); len(mistakes) > 0 || len(lacks) != 1 || !strings.Contains(lacks.Error(), `default_runtime: handler "kata" does not exist`) {
		t.Errorf("check: mistakes %v, lacks %v", mistakes, lacks)
	}
}

func TestADefaultThatIsNotInstalledIsAwaited(t *testing.T) {
	n := newNode(t, "crun")
	n.write("config.toml", "default_runtime = \"runc\"\n")
	cfg, err := n.start()
	if err != nil || names(cfg) != "crun" || brokenNames(cfg) != "runc" || cfg.DefaultRuntime != "runc" {
		t.Fatalf("got %v, served %q, broken %q", err, names(cfg), brokenNames(cfg))
	}
	n.binary("bin/runc", 0o755)
	if cfg, err = n.again(cfg); err != nil || names(cfg) != "crun runc" || cfg.DefaultRuntime != "runc" {
		t.Errorf("got %v, served %q", err, names(cfg))
	}
	n.write("config.toml", "default_runtime = \"runk\"\n")
	test.Fails(t, test.Err(n.start()), "default_runtime names an unknown runtime, and Load accepted it")
}
