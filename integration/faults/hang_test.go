package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// hangingPlugin is a CNI plugin that hangs in STATUS, ADD and DEL while the file hang
// exists. ADD then fails.
const hangingPlugin = `#!/bin/sh
dir="DIR"
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}'; exit ;;
GC) exit ;;
esac
touch "$dir/$CNI_COMMAND"
while [ -e "$dir/hang" ]; do sleep 0.05; done
[ "$CNI_COMMAND" != ADD ]
`

// TestStatusWhileOthersHang: the calls that a kubelet repeats to check the node and
// its pods must return quickly while a shim, the ADD of a CNI plugin and the STATUS of
// a CNI plugin hang.
func TestStatusWhileOthersHang(t *testing.T) {
	dir := t.TempDir()
	sign := filepath.Join(dir, "hang")
	b := newBed(t, testbed.Options{Config: shimConfig(t, testbed.Part(t, testbed.RuncShim)) + plugin(t, dir, "hanging", hangingPlugin)})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})

	place(t, dir, "hang")
	wake := func() { _ = os.Remove(sign) }
	defer wake()
	text := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "plugins": [{"type": "hanging"}]}`, b.CNI.Name)
	testbed.Must(t, os.WriteFile(b.CNI.Path(), []byte(text), 0o600))
	b.Restart(t) // otherwise the last STATUS is reused for half a minute
	shim := shimsOf(t, pod.ID)
	if len(shim) != 1 {
		t.Fatalf("the sandbox has shims %v", shim)
	}
	killAs(t, shim[0], syscall.SIGSTOP)
	resume := func() { signal(t, shim[0], syscall.SIGCONT) }
	defer resume()
	made := make(chan error, 1)
	ctx, giveUp := context.WithTimeout(t.Context(), time.Minute)
	defer giveUp()
	testbed.Eventually(t, time.Minute, func() error { return b.asks(t, filepath.Join(dir, "STATUS")) })
	go func() {
		_, err := b.Client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("")})
		made <- err
	}()
	testbed.Eventually(t, time.Minute, func() error { return b.asks(t, filepath.Join(dir, "ADD")) })

	const rounds = 9
	slow := 0
	for range rounds {
		began := time.Now()
		b.answers(t, pod)
		if took := time.Since(began); took > 2*time.Second {
			slow++
			t.Logf("the calls took %v", took)
		}
	}
	// Some rounds may be slow on a busy machine.
	if slow > rounds/2 {
		t.Errorf("%d of %d times the status and the lists took more than two seconds", slow, rounds)
	}
	giveUp()
	wake()
	testbed.Fails(t, <-made, "a sandbox was created while its CNI plugin hung")
	resume()
	testbed.Must(t, b.CNI.Write())
	b.NothingLeft(t, atRest)
}

// asks calls Status, and returns an error if the plugin has not yet written the note.
func (b *bed) asks(t *testing.T, note string) error {
	t.Helper()
	if _, err := b.Client.Status(testbed.Within(t, time.Minute), &runtimeapi.StatusRequest{}); err != nil {
		t.Fatalf("status: %v", err)
	}
	_, err := os.Stat(note)
	return err
}

// answers makes the calls that a kubelet repeats about every second.
func (b *bed) answers(t *testing.T, pod *testbed.Pod) {
	t.Helper()
	ctx := testbed.Within(t, time.Minute)
	st, err := b.Client.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil || len(st.GetStatus().GetConditions()) < 2 {
		t.Fatalf("status: %v, %v", st, err)
	}
	pods, err := b.Client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(pods.GetItems()) != 1 {
		t.Fatalf("list sandboxes: %v, %v", pods, err)
	}
	containers, err := b.Client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil || len(containers.GetContainers()) != 1 {
		t.Fatalf("list containers: %v, %v", containers, err)
	}
	testbed.Same(t, pod.Status(t).GetState(), runtimeapi.PodSandboxState_SANDBOX_READY, "the sandbox is")
	testbed.Same(t, pod.Container.Status(t).GetState(), runtimeapi.ContainerState_CONTAINER_RUNNING, "the container is")
	if _, err := b.Client.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{}); err != nil {
		t.Fatalf("image file system: %v", err)
	}
}

// deadMount covers a directory with a file system that does not answer, like a
// network file system whose server is gone: all accesses wait. end fails these
// accesses and uncovers the directory.
func deadMount(t *testing.T, dir string) (end func()) {
	t.Helper()
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	testbed.Mustf(t, err, "open FUSE")
	testbed.Mustf(t, unix.Mount("dead", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd())), "mount a file system that does not answer")
	end = sync.OnceFunc(func() {
		fuse.Close() // accesses that wait get an error
		testbed.Checkf(t, unix.Unmount(dir, unix.MNT_DETACH), "uncover %s", dir)
	})
	t.Cleanup(end)
	return end
}

// TestRuntimeOnADeadMount: a runtime on a file system that does not answer delays
// neither Status, without which the kubelet reports the node as not ready, nor pods of
// other handlers. Status has the last known features of the runtime.
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
	// Some rounds may be slow on a busy machine.
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

// features returns for each handler whether Status reports recursive read-only mounts.
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
