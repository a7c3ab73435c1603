package binaries

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
)

// says returns a script that acts as a runtime of a version.
func says(version string) string {
	return fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = features ]; then exit 1; fi\necho runc version %s\n", version)
}

// runtimeBed returns a daemon with one handler; its runtime is a script.
func runtimeBed(t *testing.T) (*toolBed, *handler.Definition) {
	t.Helper()
	dir := t.TempDir()
	k := daemon(t, dir, "this")
	d := &handler.Definition{Name: "test", Type: handler.OCI, Path: filepath.Join(dir, "runtime")}
	install(t, d.Path, says("1"))
	k.collector.configured = func() []*handler.Definition { return []*handler.Definition{d} }
	return k, d
}

// install writes a script, or replaces one.
func install(t *testing.T, path, content string) {
	t.Helper()
	// A child that is forked during the write inherits the open file until its exec;
	// until then the kernel refuses to run the script.
	syscall.ForkLock.RLock()
	err := os.WriteFile(path+".next", []byte(content), 0o700) //nolint:gosec // it is a program
	syscall.ForkLock.RUnlock()
	if err == nil {
		err = os.Rename(path+".next", path)
	}
	test.Must(t, err)
}

func forPod(t *testing.T, k *toolBed, d *handler.Definition) (keep.Binary, func()) {
	t.Helper()
	rt, all, release, err := k.binaries.ForPod(t.Context(), d)
	test.Must(t, err)
	if len(all) != 1 || all[0].Version != rt.Version || all[0].Path != d.Path {
		t.Fatalf("version %s runs on %+v", rt.Version, all)
	}
	return all[0], release
}

func isKept(k *toolBed, one keep.Binary) bool {
	_, err := os.Stat(k.binaries.store.Abs(one))
	return err == nil
}

func TestBinariesAreKeptAsLongAsTheyAreNeeded(t *testing.T) {
	k, d := runtimeBed(t)
	first, releaseFirst := forPod(t, k, d)
	install(t, d.Path, says("2"))
	second, releaseSecond := forPod(t, k, d)
	if first.Kept == second.Kept || first.Version != "1" || second.Version != "2" {
		t.Fatalf("before %+v, after %+v", first, second)
	}
	expect := func(what string, keptFirst, keptSecond bool) {
		t.Helper()
		k.collector.Collect()
		if isKept(k, first) != keptFirst || isKept(k, second) != keptSecond {
			t.Errorf("%s: kept are %q", what, k.kept(t))
		}
	}
	expect("a pod is being created", true, true)
	test.Must(t, test.Err(k.pods.Create("pod", pod.SandboxSpec{Definition: d, Pinned: pod.Pinned{Binaries: []keep.Binary{first}}}, pod.SandboxStatus{}, store.Relaxed)))
	releaseFirst()
	releaseSecond()
	expect("a record names the first binary", true, true)
	test.Must(t, k.pods.Delete("pod"))
	expect("the pod is deleted", false, true)
	k.collector.configured = func() []*handler.Definition { return nil }
	expect("the handler is removed", false, false)

	k.binaries.warmedUp.Store(false)
	third, release := forPod(t, k, d)
	release()
	k.collector.Collect()
	if !isKept(k, third) {
		t.Error("the binary was removed before the warm-up of all handlers")
	}
}

// A runtime that needs another file of its directory runs from there, not from a kept copy.
func TestBinariesOfARuntimeWithNeighbours(t *testing.T) {
	k, d := runtimeBed(t)
	install(t, filepath.Join(filepath.Dir(d.Path), "neighbour"), says("3"))
	install(t, d.Path, "#!/bin/sh\nexec \"$(dirname \"$0\")\"/neighbour \"$@\"\n")
	one, release := forPod(t, k, d)
	defer release()
	if one.Kept != "" || one.SHA256 == "" || one.Version != "3" {
		t.Errorf("the pod runs on %+v", one)
	}
	s := &pod.SandboxSpec{Definition: d, Pinned: pod.Pinned{Binaries: []keep.Binary{one}}}
	if on := k.runtimes.Of(s); on.Path != d.Path {
		t.Errorf("a pod runs %s", on.Path)
	}
}

func TestBinariesWhereNoCopyRuns(t *testing.T) {
	k, d := runtimeBed(t)
	k.binaries.noExec = true
	one, release := forPod(t, k, d)
	release()
	if one.Kept != "" || one.SHA256 == "" || slices.ContainsFunc(k.kept(t), func(name string) bool { return strings.HasPrefix(name, keep.Prefix) }) {
		t.Errorf("the pod runs on %+v, kept are %q", one, k.kept(t))
	}
}

func TestOnBinaries(t *testing.T) {
	s := keep.New("/tools")
	d := &handler.Definition{Path: "/bin/containerd-shim-runc-v2", ShimOptions: map[string]any{"IoUid": int64(7)}}
	both := []keep.Binary{{Kept: "runtime-1/containerd-shim-runc-v2"}, {Kept: "runtime-2/crun"}}
	on := onBinaries(d, both, s)
	if on.Path != "/tools/runtime-1/containerd-shim-runc-v2" || on.ShimOptions["BinaryName"] != "/tools/runtime-2/crun" || on.ShimOptions["IoUid"] != int64(7) {
		t.Errorf("the result is %+v", on)
	}
	if len(d.ShimOptions) != 1 {
		t.Errorf("the Definition was changed: %v", d.ShimOptions)
	}
	if same := onBinaries(d, nil, s); same != d {
		t.Error("without kept binaries, the Definition is changed")
	}
}

// TestBinariesUnderWay starts pods while the runtime is replaced and copies are
// collected. A pod's copy stays until the pod's release is called.
func TestBinariesUnderWay(t *testing.T) {
	k, d := runtimeBed(t)
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	var working sync.WaitGroup
	for range 8 {
		working.Go(func() {
			for ctx.Err() == nil {
				_, all, release, err := k.binaries.ForPod(t.Context(), d)
				if err != nil {
					t.Error(err)
					return
				}
				k.collector.Collect()
				if !isKept(k, all[0]) {
					t.Errorf("the copy %s was removed before its release", all[0].Kept)
				}
				release()
			}
		})
	}
	for version := 2; ctx.Err() == nil; version++ {
		install(t, d.Path, says(fmt.Sprint(version)))
		one, release := forPod(t, k, d)
		if want := fmt.Sprint(version); one.Version != want {
			t.Errorf("a new pod has version %s, installed is %s", one.Version, want)
		}
		release()
	}
	working.Wait()
	k.collector.Collect()
	if kept := slices.DeleteFunc(k.kept(t), func(name string) bool { return !strings.HasPrefix(name, keep.Prefix) }); len(kept) != 1 {
		t.Errorf("kept are %q, want only the installed runtime", kept)
	}
	if len(k.binaries.held) != 0 {
		t.Errorf("held are %v although no pod is being created", k.binaries.held)
	}
}
