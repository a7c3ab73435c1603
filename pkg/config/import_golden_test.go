package config

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
)

var update = flag.Bool("update", false, "rewrite the golden files; review the difference before you commit it")

// installed are the programs and files that installers bring.
var installed = []string{
	"/usr/bin/runc", "/usr/bin/crun", "/usr/bin/sysbox-runc", "/usr/libexec/crio/crun", "/usr/local/bin/containerd-shim-runc-v2",
	"/usr/local/bin/containerd-shim-runsc-v1", "/usr/local/bin/containerd-shim-spin-v2", "/usr/local/etc/runsc.toml",
	"/usr/local/nvidia/toolkit/nvidia-container-runtime", "/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi",
	"/usr/local/nvidia/toolkit/nvidia-container-runtime.legacy", "/opt/kata/bin/containerd-shim-kata-v2",
	"/opt/kata/share/defaults/kata-containers/configuration-clh.toml",
	"/opt/kata/share/defaults/kata-containers/configuration-qemu.toml",
	"/opt/kata/share/defaults/kata-containers/configuration-qemu-snp.toml",
	"/opt/kata/share/defaults/kata-containers/configuration-qemu-tdx.toml",
}

// installation returns a node with the files of testdata/import/name. Paths in
// these files are moved below the node's directory.
func installation(t *testing.T, name string) (n *node, paths []string) {
	t.Helper()
	n = newNode(t, "runc")
	for _, file := range installed {
		n.binary(strings.TrimPrefix(file, "/"), 0o755)
	}
	from := filepath.Join("testdata", "import", name)
	test.Must(t, filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "want" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text := string(data)
		for _, root := range []string{"/usr/", "/opt/"} {
			text = strings.ReplaceAll(text, `"`+root, `"`+n.dir+root)
		}
		below, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		n.raw(filepath.Join("import", below), text, 0o644)
		return nil
	}))
	paths = []string{n.path("import")}
	if _, err := os.Stat(n.path("import/conf.d")); err == nil {
		paths = append(paths, n.path("import/conf.d"))
	}
	return n, paths
}

func (n *node) programs() []string {
	return []string{n.path("usr/local/bin"), n.path("usr/bin"), n.path("opt/kata/bin")}
}

// TestInstallersFiles compares translations of installers' files with golden
// files: the drop-in, notes on what it omits, and handlers that cannot be served.
func TestInstallersFiles(t *testing.T) {
	cases, err := os.ReadDir("testdata/import")
	if err != nil || len(cases) < 10 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	for _, c := range cases {
		t.Run(c.Name(), func(t *testing.T) {
			n, paths := installation(t, c.Name())
			got := test.Value(Translate(paths, Options{SearchPath: n.programs()}))(t)
			text := string(got.DropIn) + "\n"
			for _, note := range got.Notes {
				text += fmt.Sprintln("# note:", note)
			}
			for _, p := range got.Problems {
				if strings.Contains(p.Message, "/dev/kvm does not exist") {
					continue // the handler is valid; the machine of this test lacks /dev/kvm
				}
				text += fmt.Sprintln("# problem:", p.Error())
			}
			text = n.relative(text)
			golden := filepath.Join("testdata", "import", c.Name(), "want")
			if *update {
				test.Must(t, os.WriteFile(golden, []byte(text), 0o600))
			}
			want, err := os.ReadFile(golden)
			if err != nil || text != string(want) {
				t.Errorf("%v; got\n%s\nwant\n%s", err, text, want)
			}
		})
	}
}

// TestImportIsItsTranslation loads the same files first as imports, then as the
// drop-in that they are translated to. The handlers must be equal.
func TestImportIsItsTranslation(t *testing.T) {
	for _, c := range []struct{ name, key string }{
		{"nvidia-crio", "crio"}, {"kata-crio", "crio"}, {"odd-crio", "crio"},
		{"nvidia-containerd-v1", "containerd"}, {"nvidia-containerd-v2", "containerd"}, {"nvidia-containerd-v3", "containerd"},
		{"kata-containerd", "containerd"}, {"kata-containerd-v2", "containerd"}, {"others", "containerd"}, {"odd-containerd", "containerd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, paths := installation(t, c.name)
			own := "default_runtime = \"main\"\n[runtimes.main]\nruntime_path = \"" + n.path("bin/runc") + "\"\n"
			n.write("config.toml", own+fmt.Sprintf("[import]\n%s = %s\n", c.key, literal(paths)))
			o := n.options()
			o.SearchPath = n.programs()
			imported := test.Value(Load(o))(t)
			translated := test.Value(Translate(paths, o))(t)
			n.write("config.toml", own)
			n.raw("conf.d/50-import.toml", string(translated.DropIn), 0o644)
			var direct []*handler.Definition
			if len(translated.Problems) == 0 {
				cfg := test.Value(Load(o))(t)
				direct = cfg.Runtimes
			} else {
				direct = n.eachAlone(o, string(translated.DropIn))
			}
			if got, want := digestsOf(imported.Runtimes), digestsOf(direct); !slices.Equal(got, want) {
				t.Errorf("imported are %v, the drop-in has %v", got, want)
			}
			if len(imported.Runtimes) < 2 {
				t.Error("nothing was imported")
			}
		})
	}
}

// eachAlone loads each handler of a drop-in by itself, and returns those that
// can be served.
func (n *node) eachAlone(o Options, dropIn string) []*handler.Definition {
	n.t.Helper()
	byName := map[string]*handler.Definition{}
	for _, part := range strings.Split(dropIn, "# from ") {
		if part != "" {
			part = "# from " + part
		}
		n.raw("conf.d/50-import.toml", part, 0o644)
		cfg, err := Load(o)
		if err != nil {
			continue
		}
		for _, d := range cfg.Runtimes {
			byName[d.Name] = d
		}
	}
	return sortedByName(byName)
}

func digestsOf(defs []*handler.Definition) []string {
	var s []string
	for _, d := range defs {
		s = append(s, d.Name+" "+d.Digest()[:12])
	}
	return s
}
