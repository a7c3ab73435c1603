package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

const goodMain = "default_runtime = \"runc\"\n[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n[runtimes.crun]\nruntime_path = \"$BIN/crun\"\n"

// accept starts with the files and stores them as the last accepted configuration.
func (n *node) accept(o Options) *Config {
	n.t.Helper()
	cfg, err := Start(o)
	if err != nil || len(cfg.Rejected) > 0 {
		n.t.Fatalf("Start: %v, %v", cfg, err)
	}
	test.Mustf(n.t, cfg.KeepAccepted(o), "KeepAccepted")
	return cfg
}

// placed returns options with engine.root below the node's directory.
func (n *node) placed() Options {
	o := n.options()
	o.Flags = map[string]string{"engine.root": n.path("root")}
	return o
}

// TestStartWithTheLastAcceptedConfiguration: if a reload would refuse the files, a start uses
// the whole configuration that was accepted before.
func TestStartWithTheLastAcceptedConfiguration(t *testing.T) {
	for _, c := range []struct{ what, file, text, problem string }{
		{"main file: syntax", "config.toml", "[runtimes.runc]\nruntime_path = \n", "config.toml:2:16: unexpected"},
		{"main file: unknown key", "config.toml", goodMain + "[log]\nlevl = \"x\"\n", "config.toml:7:1: log.levl: unknown key"},
		{"main file: wrong type of engine.root", "config.toml", goodMain + "[engine]\nroot = 1\n", "config.toml:7:1: engine.root: must be a string"},
		{"main file: later version", "config.toml", "version = 9\n", "config.toml:1:1: version: is 9"},
		{"main file: default that does not exist", "config.toml", "default_runtime = \"kata\"\n[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n", "config.toml:1:1: default_runtime: handler"},
		{"main file: removed", "config.toml", "", "config.toml: the file does not exist"},
		{"drop-in: syntax", "conf.d/10-bad.toml", "[runtimes.kata]\nruntime_path = \n", "10-bad.toml:2:16: unexpected"},
		{"drop-in: unknown key", "conf.d/10-bad.toml", "[log]\nlevl = \"debug\"\nlevel = \"debug\"\n[runtimes.kata]\nruntime_path = \"$BIN/runc\"\n", "10-bad.toml:2:1: log.levl: unknown key"},
		{"drop-in: handler without path", "conf.d/10-bad.toml", "[runtimes.kata]\n", "10-bad.toml:1:2: runtimes.kata: runtime_path is missing"},
		{"drop-in: handler of the main file", "conf.d/10-bad.toml", "[runtimes.runc]\nruntime_path = \"$BIN/crun\"\n", "10-bad.toml:1:2: runtimes.runc: handler \"runc\" is already configured"},
		{"drop-in that was accepted before", "conf.d/20-good.toml", "[runtimes.extra]\nruntime_pat = \"$BIN/crun\"\n", "20-good.toml:2:1: runtimes.extra.runtime_pat: unknown key"},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := newNode(t, "runc", "crun")
			n.write("config.toml", goodMain)
			n.write("conf.d/20-good.toml", "[runtimes.extra]\nruntime_path = \"$BIN/crun\"\n[log]\nformat = \"json\"\n")
			o := n.placed()
			before := n.accept(o)
			n.write(c.file, c.text)
			if c.text == "" {
				n.must(os.Remove(n.path(c.file)))
			}
			_, refused := Load(o)
			for range 2 { // the second start uses what the first one stored
				cfg := test.Value(Start(o))(t)
				if names(cfg) != "crun extra runc" || cfg.DefaultRuntime != "runc" || cfg.Log.Format != "json" || cfg.Log.Level != "info" || len(cfg.Broken) > 0 {
					t.Errorf("the handlers in force are %s, default %s, log %+v, broken %q", names(cfg), cfg.DefaultRuntime, cfg.Log, brokenNames(cfg))
				}
				if got := n.relative(cfg.Origin("log.format").String()); got != "$DIR/conf.d/20-good.toml:4" || !cfg.ReadAt.Equal(before.ReadAt) {
					t.Errorf("log.format is from %s, read at %s", got, cfg.ReadAt)
				}
				if cfg.Rejected.Error() != refused.Error() || !strings.Contains(cfg.Rejected.Error(), c.problem) {
					t.Errorf("Rejected is\n%v\nbut a reload fails with\n%v", cfg.Rejected, refused)
				}
				n.must(cfg.KeepAccepted(o))
			}
			n.must(os.RemoveAll(n.path("conf.d/10-bad.toml")))
			n.write("conf.d/20-good.toml", "")
			n.write("config.toml", goodMain)
			if cfg, err := Start(o); err != nil || len(cfg.Rejected) > 0 || names(cfg) != "crun runc" {
				t.Errorf("after the repair of the files: handlers %s, error %v", names(cfg), err)
			}
		})
	}
}

// TestStartWithoutAnAcceptedConfiguration: the error contains the mistakes of the files and, if
// a configuration is stored, the reason why it cannot be used.
func TestStartWithoutAnAcceptedConfiguration(t *testing.T) {
	const refused = "$DIR/config.toml:1:1: x: unknown key"
	for _, c := range []struct{ what, kept, want string }{
		{"not stored", "", ""},
		{"not JSON", "{", "unexpected end of JSON input"},
		{"later format", `{"format": 2}`, "it has format 2, and this berth reads format 1"},
		{"a key that this berth refuses", `{"format": 1, "documents": [{"file": "/then.toml", "main": true, "text": "y = 1"}]}`, "/then.toml:1:1: y: unknown key"},
		{"too large", `"` + strings.Repeat("x", maxAccepted) + `"`, "has more than 16777216 bytes"},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := newNode(t, "runc")
			n.write("config.toml", "x = 1\n")
			o := n.placed()
			if c.kept != "" {
				n.must(os.MkdirAll(filepath.Dir(o.AcceptedFile()), 0o755))
				n.must(os.WriteFile(o.AcceptedFile(), []byte(c.kept), 0o600))
			}
			cfg, err := Start(o)
			if cfg != nil || err == nil {
				t.Fatalf("Start succeeded with %+v", cfg)
			}
			first, rest, _ := strings.Cut(n.relative(err.Error()), "\n")
			if !strings.HasPrefix(first, refused) || (rest == "") != (c.want == "") || !strings.Contains(rest, c.want) {
				t.Errorf("got\n%v", err)
			}
			if c.want != "" && !strings.Contains(rest, "cannot be used instead: "+n.relative(o.AcceptedFile())) {
				t.Errorf("the error does not name the stored file: %s", rest)
			}
		})
	}
}

// TestAcceptedConfigurationOfOthers: a start uses neither a stored configuration that other users
// can change, nor the one of another main file.
func TestAcceptedConfigurationOfOthers(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", goodMain)
	o := n.placed()
	n.accept(o)
	if info, err := os.Stat(o.AcceptedFile()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the stored file may contain credentials, but has the mode %v (error %v)", info.Mode(), err)
	}
	other := o
	other.File = n.path("other.toml")
	n.write("other.toml", "x = 1\n")
	if cfg, err := Start(other); err == nil {
		t.Errorf("Start with another main file used the handlers %s", names(cfg))
	}
	n.write("other.toml", "[runtimes.other]\nruntime_path = \"$BIN/crun\"\n")
	n.accept(other)
	n.write("config.toml", "x = 1\n")
	if cfg, err := Start(o); err != nil || names(cfg) != "crun runc" {
		t.Fatalf("got %s, %v", names(cfg), err)
	}
	n.must(os.Chmod(o.AcceptedFile(), 0o606))
	if cfg, err := Start(o); err == nil || !strings.Contains(err.Error(), "run chmod o-w") {
		t.Errorf("got %v, %v", cfg, err)
	}
}

// TestAcceptedConfigurationWithoutFiles: a node whose accepted file was empty still discovers
// its runtimes.
func TestAcceptedConfigurationWithoutFiles(t *testing.T) {
	n := newNode(t, "crun")
	o := n.placed()
	n.write("config.toml", "")
	n.accept(o)
	n.write("config.toml", "x = 1\n")
	if cfg, err := Start(o); err != nil || !cfg.Discovered || names(cfg) != "crun" {
		t.Errorf("got %v, %v", cfg, err)
	}
}

func TestTooLargeToBeKept(t *testing.T) {
	n := newNode(t, "crun")
	n.write("config.toml", "")
	for i := range 6 {
		n.raw(fmt.Sprintf("conf.d/%d.toml", i), "#"+strings.Repeat("\"", hostfiles.MaxFileSize-2)+"\n", 0o644)
	}
	o := n.placed()
	cfg := n.accept(o)
	cfg.documents = append(cfg.documents, cfg.documents...)
	test.Says(t, cfg.KeepAccepted(o), "the limit is 16777216")
	test.Fails(t, test.Err(os.Stat(o.AcceptedFile())), "a file is stored, so a start with a mistake would use an older configuration")
}

// TestAcceptedConfigurationThatCannotBeWritten: a stored one that differs is removed.
func TestAcceptedConfigurationThatCannotBeWritten(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", goodMain)
	o := n.placed()
	same := n.accept(o)
	n.raw("root/accepted-config/."+filepath.Base(o.AcceptedFile())+".new/x", "", 0o600) // blocks the temporary file
	test.Checkf(t, same.KeepAccepted(o), "store the same configuration again")
	n.write("config.toml", "[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n")
	other, err := Load(o)
	n.must(err)
	test.Says(t, other.KeepAccepted(o), "not empty")
	n.write("config.toml", "x = 1\n")
	if cfg, err := Start(o); err == nil {
		t.Errorf("Start used the outdated handlers %s", names(cfg))
	}
}

// TestWhatIsGone: a missing directory of drop-ins is a mistake if the last accepted configuration
// was read from it. A start, a reload and a check report it alike.
func TestWhatIsGone(t *testing.T) {
	const (
		noDir    = "$DIR/conf.d: the directory does not exist, but the last accepted configuration was read from it; restore it, or create an empty directory to drop its settings"
		noVendor = "$DIR/vendor: the directory does not exist, but"
	)
	for _, c := range []struct {
		what, remove, create, want string
	}{
		{"drop-ins", "conf.d", "", noDir},
		{"drop-ins of packages", "vendor", "", noVendor},
		{"one drop-in", "conf.d/20-good.toml", "", ""},
		{"an empty directory instead", "conf.d", "conf.d", ""},
		{"nothing", "none", "", ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := newNode(t, "runc", "crun")
			n.write("config.toml", goodMain)
			n.write("conf.d/20-good.toml", "[log]\nformat = \"json\"\n")
			n.write("vendor/30-good.toml", "[log]\nlevel = \"debug\"\n")
			o := n.placed()
			running := n.accept(o)
			n.must(os.RemoveAll(n.path(c.remove)))
			if c.create != "" {
				n.must(os.Mkdir(n.path(c.create), 0o755))
			}
			cfg, err := Start(o)
			n.must(err)
			if got := n.relative(cfg.Rejected.Error()); (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
				t.Errorf("Rejected is %q", got)
			}
			_, checked := Load(o)
			o.Running = running
			_, reloaded := Load(o)
			for what, err := range map[string]error{"check": checked, "reload": reloaded} {
				if fmt.Sprint(err) != fmt.Sprint(errOrNil(cfg.Rejected)) {
					t.Errorf("a %s fails with %v", what, err)
				}
			}
		})
	}
}

func errOrNil(p Problems) error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// TestTheDefaultFileIsGone: a missing main file is a mistake only if the accepted configuration
// was read from it. Then no discovered runtime becomes the default. Like TestNoConfiguration, the
// test needs a machine without the file.
func TestTheDefaultFileIsGone(t *testing.T) {
	if _, err := os.Stat(DefaultFile); err == nil {
		t.Skipf("this machine has %s", DefaultFile)
	}
	const missing = DefaultFile + ": the file does not exist, but the last accepted configuration was read from it; restore it, or create an empty file to drop its settings"
	own := "[runtimes.own]\nruntime_path = \"$BIN/own\"\n"
	for what, c := range map[string]struct {
		file              string
		main              bool
		handlers, problem string
	}{
		"read from a main file":    {DefaultFile, true, "own", missing},
		"read from no file":        {"", false, "runc", ""},
		"read from a drop-in only": {"/etc/berth/conf.d/x.toml", false, "runc", ""},
	} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t, "runc", "own")
			o := n.placed()
			o.File, o.DropInDir = "", n.path("conf.d")
			before := &Config{}
			if c.file != "" {
				before.documents = []storedDocument{{c.file, c.main, strings.ReplaceAll(own, "$BIN", n.path("bin"))}}
			}
			test.Must(t, before.KeepAccepted(o))
			for range 2 { // the second start uses what the first one stored
				cfg := test.Value(Start(o))(t)
				if names(cfg) != c.handlers || cfg.DefaultRuntime != c.handlers || cfg.Rejected.Error() != c.problem {
					t.Errorf("the handlers in force are %s, default %s; Rejected is %q", names(cfg), cfg.DefaultRuntime, cfg.Rejected)
				}
				test.Must(t, cfg.KeepAccepted(o))
				reload := Options{DropInDir: o.DropInDir, VendorDir: o.VendorDir, SearchPath: o.SearchPath, Running: cfg}
				if err := test.Err(Load(reload)); fmt.Sprint(err) != fmt.Sprint(errOrNil(cfg.Rejected)) {
					t.Errorf("a reload fails with %v", err)
				}
			}
		})
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
}

func TestReasonIsShort(t *testing.T) {
	if got := clip(strings.Repeat("k", 5000)); len(got) != hostfiles.MaxReason+3 {
		t.Errorf("the reason has %d bytes", len(got))
	}
}
