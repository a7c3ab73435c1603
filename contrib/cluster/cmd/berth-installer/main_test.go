package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/internal/test/commandtest"
)

func TestExamples(t *testing.T) { commandtest.Examples(t, newRoot) }

// TestWrongCommandLines checks errors and exit status of wrong command lines.
func TestWrongCommandLines(t *testing.T) {
	empty, payload := t.TempDir(), t.TempDir()
	test.Must(t, os.MkdirAll(filepath.Join(payload, "bin/berth"), 0o755))
	t.Setenv("NODE_NAME", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	const inCluster = "run --node n "
	wrong, good, other, config := filepath.Join(payload, "wrong.json"), filepath.Join(payload, "good.json"), filepath.Join(payload, "other.json"), filepath.Join(payload, "kubeconfig")
	for path, text := range map[string]string{
		wrong: `{"state": "instaled"}`, good: `{"state": "removed"}`, other: `{"state": "installed", "endpoint": "x"}`,
		config: `{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}`,
	} {
		test.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for line, c := range map[string]struct {
		status int
		says   string
	}{
		"instal":                     {2, `unknown command "instal" for "berth-installer" (did you mean "install"?); see "berth-installer --help"`},
		"install extra":              {2, `"berth-installer install" takes no arguments, got "extra"`},
		"install --vlaues x":         {2, "unknown flag: --vlaues"},
		"install --values " + other:  {2, `endpoint "x" is not a unix socket; write unix:///`},
		"install --values " + good:   {2, `state is "removed"; use "berth-installer uninstall"`},
		"install --payload " + empty: {2, "--payload " + empty + ": stat " + empty + "/bin/berth: no such file or directory"},
		"install --root " + empty + " --payload " + payload: {2, "--root " + empty + " is not the root directory of a node: it has no directory /var/lib"},
		"uninstall --root " + empty + "/x":                  {2, "/x is not the root directory of a node"},
		"run":                                               {2, "set --node or NODE_NAME"},
		inCluster + "--values " + empty + "/v":              {2, "--values: open " + empty + "/v: no such file or directory"},
		inCluster + "--values " + wrong:                     {2, "--values " + wrong + `: state "instaled" is not installed or removed`},
		inCluster + "--values " + good + " --kubeconfig " + empty + "/k":                {2, "--kubeconfig " + empty + "/k: stat " + empty + "/k: no such file or directory"},
		inCluster + "--values " + good:                                                  {2, "without a cluster \"berth-installer install\""},
		inCluster + "--values " + good + " --kubeconfig " + config + " --root " + empty: {2, "is not the root directory of a node"},
		"ready --ready-file " + empty + "/r": {1,
			`the node is not up to date: "berth-installer run" has not written ` + empty + "/r; see its log"},
	} {
		t.Run(line, func(t *testing.T) {
			root := newRoot()
			root.SetArgs(strings.Fields(line))
			root.SetOut(io.Discard)
			err := root.ExecuteContext(t.Context())
			if err == nil || commandline.Status(err) != c.status || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, exit status %d, want %q, %d", err, commandline.Status(err), c.says, c.status)
			}
		})
	}
	if left, err := os.ReadDir(empty); err != nil || len(left) > 0 {
		t.Errorf("files were created in the wrong root: %v, %v", left, err)
	}
	ready := filepath.Join(empty, "ready")
	test.Must(t, os.WriteFile(ready, nil, 0o600))
	c := newRoot()
	c.SetArgs([]string{"ready", "--ready-file", ready})
	test.Check(t, c.Execute())
}

// TestRootWithLinks runs on a node whose /var is a link with an absolute path of the node.
func TestRootWithLinks(t *testing.T) {
	root := t.TempDir()
	test.Must(t, os.MkdirAll(filepath.Join(root, "data/of-this-node/lib"), 0o755))
	test.Must(t, os.Symlink("/data/of-this-node", filepath.Join(root, "var")))
	c, out := newRoot(), &strings.Builder{}
	c.SetArgs([]string{"uninstall", "--root", root})
	c.SetOut(out)
	if err := c.Execute(); err != nil || out.String() != "this node's prior state is restored\n" {
		t.Errorf("uninstall: %v: %s", err, out)
	}
	test.Fails(t, (alone{root}).Serves(t.Context(), true), "Serves succeeds on a node without a kubelet")
}
