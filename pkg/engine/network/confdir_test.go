package network

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

func TestConfigurations(t *testing.T) {
	list := func(name string) string {
		return `{"cniVersion": "1.0.0", "name": "` + name + `", "plugins": [{"type": "plugin"}]}`
	}
	single := func(name string) string { return `{"cniVersion": "1.0.0", "name": "` + name + `", "type": "plugin"}` }
	tests := map[string]struct {
		files map[string]string
		max   int
		want  string   // names of the networks
		says  []string // or texts of the error
	}{
		"empty":           {says: []string{"cni plugin not initialized", "no network configuration in", "install"}},
		"one":             {files: map[string]string{"a.conflist": list("a")}, want: "a"},
		"first by name":   {files: map[string]string{"20-b.conflist": list("b"), "10-a.conf": single("a")}, want: "a"},
		"json":            {files: map[string]string{"a.json": single("a")}, want: "a"},
		"other files":     {files: map[string]string{"README": "x", "a.conflist~": "x", "a.conflist.bak": "x", "b.conflist": list("b")}, want: "b"},
		"two":             {files: map[string]string{"a.conflist": list("a"), "b.conflist": list("b"), "c.conflist": list("c")}, max: 2, want: "a b"},
		"all":             {files: map[string]string{"a.conflist": list("a"), "b.conflist": list("b"), "c.conflist": list("c")}, max: -1, want: "a b c"},
		"broken first":    {files: map[string]string{"a.conflist": "{", "b.conflist": list("b")}, says: []string{"a.conflist", "correct the file"}},
		"broken unused":   {files: map[string]string{"a.conflist": list("a"), "b.conflist": "{"}, want: "a"},
		"no plugins":      {files: map[string]string{"a.conflist": `{"cniVersion": "1.0.0", "name": "a", "plugins": []}`}, says: []string{"a.conflist", "no plugins"}},
		"list in a .conf": {files: map[string]string{"a.conf": list("a")}, says: []string{"a.conf", "type"}},
		"unnamed":         {files: map[string]string{"a.conflist": `{"plugins": [{"type": "plugin"}]}`}, says: []string{"no name"}},
		"missing plugin":  {files: map[string]string{"a.conflist": strings.ReplaceAll(list("a"), `"plugin"}`, `"calico"}`)}, says: []string{"calico", "install it there", "bin"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.script("plugin", "exit 1")
			n.config.MaxConfNum = tc.max
			for file, text := range tc.files {
				n.configure(file, text)
			}
			p := New(n.config)
			lists, err := p.networks(t.Context(), "")
			if len(tc.says) > 0 {
				checkError(t, err, errdefs.IsUnavailable, tc.says...)
				if status := p.Status(); status == nil || status.Error() != err.Error() {
					t.Errorf("Status says %v", status)
				}
				return
			}
			var names []string
			for _, list := range lists {
				names = append(names, list.Name)
			}
			if got := strings.Join(names, " "); err != nil || got != tc.want {
				t.Errorf("networks %q, %v, want %q", got, err, tc.want)
			}
			test.Check(t, p.Status())
		})
	}
}

// Every change of the configuration takes effect for the next pod.
func TestChangesCountAtOnce(t *testing.T) {
	n := newNode(t)
	n.script("plugin", "exit 1")
	p := New(n.config)
	expect := func(want string) {
		t.Helper()
		lists, err := p.networks(t.Context(), "")
		got := ""
		if err == nil {
			got = lists[0].Name
		}
		if got != want {
			t.Errorf("network %q, %v, want %q", got, err, want)
		}
	}
	text := func(name string) string {
		return `{"cniVersion": "1.0.0", "name": "` + name + `", "plugins": [{"type": "plugin"}]}`
	}
	expect("")
	n.configure("a.conflist", text("one"))
	expect("one")
	n.configure("a.conflist", text("two"))
	expect("two")
	n.configure("0.conflist", text("new"))
	expect("new")
	n.unconfigure("0.conflist")
	expect("two")

	// Kubernetes updates a mounted ConfigMap by replacing a symbolic link.
	for _, name := range []string{"v1", "v2"} {
		test.Must(t, os.Mkdir(filepath.Join(n.config.ConfDir, name), 0o755))
		n.configure(filepath.Join(name, "x"), text(name))
	}
	link := filepath.Join(n.config.ConfDir, "current")
	test.Must(t, os.Symlink("v1", link))
	test.Must(t, os.Symlink("current/x", filepath.Join(n.config.ConfDir, "0.conflist")))
	expect("v1")
	test.Must(t, os.Symlink("v2", link+".new"))
	test.Must(t, os.Rename(link+".new", link))
	expect("v2")
	test.Must(t, os.Remove(filepath.Join(n.config.BinDirs[0], "plugin")))
	expect("")
}
