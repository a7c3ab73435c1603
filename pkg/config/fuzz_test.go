package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/berth-cri/berth/configs"
	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
)

// FuzzParse searches for files that crash the daemon, and for problems with a
// place outside of the file.
func FuzzParse(f *testing.F) {
	f.Add(configs.Berth)
	for _, seed := range []string{
		"", "\n", "a", "[", "[[", "[a", "=", "a=", "\xff", "\xef\xbb\xbfa=1", "a.b.c = 1\na.b = 2",
		"[runtimes.runc]\nruntime_path = \"/bin/runc\"\n[runtimes.runc]\nx = [1,\n2]\n",
		"[a]\nb=1\n[a]\nb=\n", "[a.b]\n[a]\n[a]\nc={d={e=1}}\n", "[[x]]\ny=1\ny=2\n[[x]]\ny=1\n[x.z]\n[x.z]\n",
		"runtimes = 1", "[[runtimes]]\nx=1", "runtimes.\"a b\" = {runtime_path=1}", "version = 2", "version = \"\"",
		"[runtimes.a]\noptions = {x = nan, y = 1979-05-27T07:32:00Z}\nruntime_path=\"/bin/containerd-shim-x-v2\"",
		"[[x]]\na=1\n[[x]]\na=1\n[x.\"x[0]\"]\n[x.\"#0\"]\n", "[log]\r\nlevel = 'info' # c\r\nlevel = \"\"\"\nwarn\"\"\"\r\n", strings.Repeat("a.", 100) + "a = 1",
		"x = " + strings.Repeat("[", 100) + strings.Repeat("]", 100), "x = " + strings.Repeat("{a=", 50) + "1" + strings.Repeat("}", 50),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const file = "/etc/berth/config.toml"
		doc := parse(file, data)
		doc.main = true
		cfg, problems := assemble([]*document{doc}, Options{SearchPath: []string{"/nonexistent"}})
		lines := strings.Split(string(data), "\n")
		for _, p := range problems.Sorted() {
			if p.Message == "" || p.Error() == "" {
				t.Errorf("a problem has no message: %+v", p)
			}
			if p.Line < 0 || p.Line > len(lines) || p.Line > 0 && (p.Column < 1 || p.Column > len(lines[p.Line-1])+1) {
				t.Errorf("a problem is outside of the file: %+v", p)
			}
		}
		var v map[string]any
		err := toml.Unmarshal(data, &v)
		wrong := slices.ContainsFunc(doc.Problems, func(p Problem) bool { return p.Key != "version" })
		deep := slices.ContainsFunc(doc.Problems, func(p Problem) bool { return strings.HasPrefix(p.Message, "is nested") })
		if (err != nil) != wrong && !deep {
			t.Errorf("the error of go-toml is %v, but the problems are %v", err, doc.Problems)
		}
		for _, d := range cfg.Runtimes {
			d.Digest()
		}
	})
}

func (c *Config) serves(name string) bool {
	for _, d := range c.Runtimes {
		if d.Name == name && d.Path == "/bin/sh" {
			return true
		}
	}
	return false
}

// FuzzImport searches for imported files that crash berth, for invalid handlers
// that are served from them, and for drop-ins translated from them that berth
// cannot read.
func FuzzImport(f *testing.F) {
	files, err := filepath.Glob("testdata/import/*/*")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.IsDir() || filepath.Base(file) == "want" {
			continue
		}
		data, err := os.ReadFile(file)
		test.Must(f, err)
		f.Add(data)
	}
	for _, seed := range []string{
		"crio = 1", "[crio]\nruntime = []", "[[crio.runtime.runtimes]]\na = 1", "[crio.runtime]\nruntimes = 1\ndefault_runtime = 1", "plugins = []", "[plugins]\ncri = 1",
		"[plugins.cri]\ncontainerd = 1", "[plugins.cri.containerd]\nruntimes = [1]", "[plugins.cri.containerd.runtimes.a]\noptions = 1\nruntime_type = []",
		"[plugins.cri.containerd.runtimes.a]\noptions = { BinaryName = {}, Root = [], IoUid = 1979-05-27 }\n", "[crio.runtime.runtimes.a]\ninherit_default_runtime = 1\nallowed_annotations = [1, []]\n",
		"[crio.runtime]\ndefault_runtime = \"a\"\n[crio.runtime.runtimes.a]\ninherit_default_runtime = true\nruntime_path = \"/bin/sh\"\n",
		"[plugins.\"io.containerd.cri.v1.images\".runtime_platforms.a]\nsnapshotter = 1\nplatform = 1\n", "[plugins.cri.containerd.runtimes.\"\"]\n[plugins.cri.containerd.runtimes.\"a b\"]\n",
		"version = \"x\"\n[plugins.cri.containerd.runtimes.a]\nruntime_type = \"...\"\nruntime_path = \"/\"\n", "[plugins.cri.containerd.runtimes.a]\nruntime_type = \"a.b\"\noptions = { ConfigPath = 1, TypeUrl = 1, x = nan }\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		file, main := filepath.Join(dir, "foreign.toml"), filepath.Join(dir, "config.toml")
		for name, content := range map[string][]byte{
			file: data,
			main: []byte("[runtimes.runc]\nruntime_path=\"/bin/sh\"\n[import]\ncrio = [\"" + file + "\"]\ncontainerd = [\"" + file + "\"]\n"),
		} {
			test.Must(t, os.WriteFile(name, content, 0o600))
		}
		o := Options{File: main, DropInDir: filepath.Join(dir, "conf.d"), VendorDir: filepath.Join(dir, "vendor"), SearchPath: []string{"/bin"}}
		cfg, err := Load(o)
		test.Mustf(t, err, "load with an imported file")
		if !cfg.serves("runc") || cfg.DefaultRuntime != "runc" {
			t.Errorf("an imported file replaced the main file's handler: %+v", cfg)
		}
		for _, d := range cfg.Runtimes {
			if handler.ValidName(d.Name) != nil || !filepath.IsAbs(d.Path) || d.Type != handler.OCI && d.Type != handler.Shim {
				t.Errorf("an invalid handler is served: %+v", d)
			}
		}
		for _, n := range cfg.ImportNotes {
			if n.Why == "" || n.Origin.File == "" {
				t.Errorf("a note has no reason or no file: %+v", n)
			}
		}
		translated, err := Translate([]string{file}, o)
		test.Mustf(t, err, "translate the file")
		if doc := parse("drop-in", translated.DropIn); len(doc.Problems) > 0 {
			t.Errorf("the drop-in cannot be read: %v\n%s", doc.Problems, translated.DropIn)
		}
	})
}
