package binaries

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

func TestUnusedTools(t *testing.T) {
	all := []string{"berth-shim-a", "berth-shim-b", "berth-pause-a", "berth-pause-b", "pause-a", "pause-b", ".new-1", ".old-pause-c", "README"}
	for name, tc := range map[string]struct {
		use  toolUse
		want string
	}{
		"one of each": {
			toolUse{shims: map[string]bool{"berth-shim-a": true}, pauseRoots: map[string]bool{"pause-b": true}},
			"berth-shim-b berth-pause-a pause-a .new-1 .old-pause-c",
		},
		"unknown supervisors": {
			toolUse{allShims: true, pauseRoots: map[string]bool{"pause-a": true}},
			"berth-pause-b pause-b .new-1 .old-pause-c",
		},
	} {
		test.Equal(t, fmt.Sprintf("%s: unused", name), strings.Join(tc.use.unused(all), " "), tc.want)
	}
}

// toolBed is the part of a daemon that installs and collects its tools.
type toolBed struct {
	root      string
	log       *log.Entry
	tools     tools
	binaries  *copies
	runtimes  *Runtimes
	pods      *pod.SandboxRecords
	shims     *shim.Manager
	collector *collector
}

// daemon starts a toolBed in dir. The contents of its supervisor and pause programs
// depend on build.
func daemon(t *testing.T, dir, build string) *toolBed {
	t.Helper()
	c := struct{ Root, State, Supervisor, Pause string }{
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"),
		Supervisor: put(t, filepath.Join(dir, "berth-shim"), "shim "+build),
		Pause:      put(t, filepath.Join(dir, "berth-pause"), "pause "+build),
	}
	k := &toolBed{root: c.Root, log: log.L}
	var err error
	if k.tools, err = newTools(c.Root, c.Supervisor, c.Pause, log.L); err != nil {
		t.Fatal(err)
	}
	k.binaries = newCopies(k.tools.dir, probe.New(nil), false, k.log, func() {})
	k.runtimes = NewRuntimes(k.binaries, k.log)
	k.binaries.warmedUp.Store(true)
	registry, _, err := pod.Open(t.Context(), c.Root, c.State)
	test.Must(t, err)
	k.pods = registry.Sandboxes
	if k.shims, err = shim.New(shim.Config{State: c.State, Supervisor: k.tools.Supervisor}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.shims.Close)
	k.collector = &collector{
		pods: registry, log: k.log, tools: k.tools, binaries: k.binaries, configured: func() []*handler.Definition { return nil },
	}
	return k
}

func (k *toolBed) kept(t *testing.T) []string {
	t.Helper()
	entries := test.Value(os.ReadDir(filepath.Join(k.root, "tools")))(t)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestToolsAreCollectedWhenNobodyNeedsThem(t *testing.T) {
	dir := t.TempDir()
	old := daemon(t, dir, "old")
	olds := old.kept(t)
	pauseRoot := filepath.Base(old.tools.PauseRoot)
	test.Must(t, test.Err(old.pods.Create("pod", pod.SandboxSpec{
		Definition: &handler.Definition{}, Plan: pod.Plan{Process: true}, Pinned: pod.Pinned{PauseRoot: pauseRoot},
	}, pod.SandboxStatus{}, store.Relaxed)))
	supervised := old.shims.SupervisorDir("old")
	test.Must(t, os.Mkdir(supervised, 0o700))
	test.Must(t, os.Symlink(old.tools.Supervisor, filepath.Join(supervised, "program")))

	now := daemon(t, dir, "now")
	// A killed daemon leaves incomplete tools.
	tools := filepath.Join(now.root, "tools")
	put(t, filepath.Join(tools, ".new-123"), "half")
	test.Must(t, os.MkdirAll(filepath.Join(tools, ".old-pause-gone", "dev"), 0o755))
	both := slices.DeleteFunc(now.kept(t), func(name string) bool { return name[0] == '.' })
	if len(both) != 2*len(olds) {
		t.Fatalf("kept are %q, of the old build %q", both, olds)
	}
	expect := func(what string, want []string) {
		t.Helper()
		now.collector.Collect()
		test.EqualLists(t, fmt.Sprintf("%s: kept", what), now.kept(t), want)
	}
	expect("a pod and a supervisor use the old tools", both)

	test.Must(t, now.pods.Delete("pod"))
	test.Must(t, os.RemoveAll(supervised))
	expect("nothing uses the old tools", slices.DeleteFunc(both, func(name string) bool { return slices.Contains(olds, name) }))
	if again := daemon(t, dir, "old"); !slices.Contains(again.kept(t), pauseRoot) {
		t.Error("the old build did not install its tools again")
	}
}

func put(t *testing.T, path, content string) string {
	t.Helper()
	test.Must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
