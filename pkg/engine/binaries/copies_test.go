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

// says is a runtime that is a script.
func says(version string) string {
	return fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = features ]; then exit 1; fi\necho runc version %s\n", version)
}

// runtimeBed is a daemon's life with one handler, on a script.
func runtimeBed(t *testing.T) (*toolBed, *handler.Definition) {
	t.Helper()
	dir := t.TempDir()
	k := daemon(t, dir, "this")
	d := &handler.Definition{Name: "test", Type: handler.OCI, Path: filepath.Join(dir, "runtime")}
	install(t, d.Path, says("1"))
	k.collector.configured = func() []*handler.Definition { return []*handler.Definition{d} }
	return k, d
}

// install puts a script in place of another.
func install(t *testing.T, path, content string) {
	t.Helper()
	// A child that is forked meanwhile has it open for writing, until it executes:
	// nobody can run the script then.
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
		t.Fatalf("%s runs on %+v", rt.Version, all)
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
	expect("a pod is in the making", true, true)
	test.Must(t, test.Err(k.pods.Create("pod", pod.SandboxSpec{Definition: d, Pinned: pod.Pinned{Binaries: []keep.Binary{first}}}, pod.SandboxStatus{}, store.Relaxed)))
	releaseFirst()
	releaseSecond()
	expect("a record names it", true, true)
	test.Must(t, k.pods.Delete("pod"))
	expect("its pod is gone", false, true)
	k.collector.configured = func() []*handler.Definition { return nil }
	expect("its handler is gone", false, false)

	k.binaries.warmedUp.Store(false)
	third, release := forPod(t, k, d)
	release()
	k.collector.Collect()
	if !isKept(k, third) {
		t.Error("a daemon that has not looked at all handlers removes what they take")
	}
}

// TestBinariesOfARuntimeWithNeighbours has a script that runs what is beside it.
func TestBinariesOfARuntimeWithNeighbours(t *testing.T) {
	k, d := runtimeBed(t)
	install(t, filepath.Join(filepath.Dir(d.Path), "neighbour"), says("3"))
	install(t, d.Path, "#!/bin/sh\nexec \"$(dirname \"$0\")\"/neighbour \"$@\"\n")
	one, release := forPod(t, k, d)
	defer release()
	if one.Kept != "" || one.SHA256 == "" || one.Version != "3" {
		t.Errorf("it runs on %+v", one)
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
		t.Errorf("it runs on %+v, kept are %q", one, k.kept(t))
	}
}

func TestOnBinaries(t *testing.T) {
	s := keep.New("/tools")
	d := &handler.Definition{Path: "/bin/containerd-shim-runc-v2", ShimOptions: map[string]any{"IoUid": int64(7)}}
	both := []keep.Binary{{Kept: "runtime-1/containerd-shim-runc-v2"}, {Kept: "runtime-2/crun"}}
	on := onBinaries(d, both, s)
	if on.Path != "/tools/runtime-1/containerd-shim-runc-v2" || on.ShimOptions["BinaryName"] != "/tools/runtime-2/crun" || on.ShimOptions["IoUid"] != int64(7) {
		t.Errorf("it is %+v", on)
	}
	if len(d.ShimOptions) != 1 {
		t.Errorf("the Definition was changed: %v", d.ShimOptions)
	}
	if same := onBinaries(d, nil, s); same != d {
		t.Error("a pod without copies does not run by path")
	}
}

// TestBinariesUnderWay starts pods all the time, while the runtime is replaced and
// copies are removed. What a pod got is there until its record would say so.
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
					t.Errorf("the copy %s is gone", all[0].Kept)
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
		t.Errorf("kept are %q, and one runtime is installed", kept)
	}
	if len(k.binaries.held) != 0 {
		t.Errorf("held are %v, and no pod is in the making", k.binaries.held)
	}
}
