package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// deadMount covers a directory with a file system that answers nobody, as a
// network file system whose server is gone: whoever looks into it waits. end
// lets them go and uncovers the directory.
func deadMount(t *testing.T, dir string) (end func()) {
	t.Helper()
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	testbed.Mustf(t, err, "a file system that does not answer")
	testbed.Mustf(t, unix.Mount("dead", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd())), "mount a file system that does not answer")
	end = sync.OnceFunc(func() {
		fuse.Close() // everybody who waits gets an error
		testbed.Checkf(t, unix.Unmount(dir, unix.MNT_DETACH), "uncover %s", dir)
	})
	t.Cleanup(end)
	return end
}

// TestRuntimeOnADeadMount: the kubelet gives a node up that does not tell its
// status for half a minute. A runtime that cannot be looked at costs nobody else
// anything, and its features are those that were known last: a busy node must not
// seem to lose them.
func TestRuntimeOnADeadMount(t *testing.T) {
	runc, far := testbed.Part(t, testbed.Runc), t.TempDir()
	body, err := os.ReadFile(runc)
	testbed.Must(t, err)
	path := filepath.Join(far, "runc")
	testbed.Must(t, os.WriteFile(path, body, 0o755))
	b := newBed(t, testbed.Options{Runtimes: map[string]string{"near": runc, "far": path}, DefaultRuntime: "near"})
	want := b.features(t)
	if !want["near"] || !want["far"] {
		t.Fatalf("features at first: %v", want)
	}
	end := deadMount(t, far)
	const rounds = 5
	slow := 0
	for range rounds {
		begin := time.Now()
		got := b.features(t)
		if took := time.Since(begin); took > time.Second {
			slow++
			t.Logf("Status took %s", took)
		}
		if !got["near"] || !got["far"] {
			t.Errorf("features while the mount is dead: %v", got)
		}
	}
	// A machine that is busy with other things may be late now and then.
	if slow > rounds/2 {
		t.Errorf("%d of %d times Status took more than a second", slow, rounds)
	}
	b.Client.RunPod(t, testbed.PodSpec{Handler: "near", Image: b.Image, Command: []string{"sleep", "60"}})
	end()
	testbed.Eventually(t, time.Minute, func() error {
		if got := b.features(t); !got["far"] {
			return fmt.Errorf("features after the mount is back: %v", got)
		}
		return nil
	})
}

// features tells which handlers are said to have recursive read-only mounts.
func (b *bed) features(t *testing.T) map[string]bool {
	t.Helper()
	r, err := b.Client.Status(testbed.Within(t, time.Minute), &runtimeapi.StatusRequest{})
	testbed.Mustf(t, err, "status")
	features := map[string]bool{}
	for _, h := range r.GetRuntimeHandlers() {
		features[h.GetName()] = h.GetFeatures().GetRecursiveReadOnlyMounts()
	}
	return features
}
