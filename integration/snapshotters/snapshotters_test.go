package snapshotters

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// large is the size of a file that a container does not need to start.
const large = 32 << 20

func largeFile() testbed.File {
	body := make([]byte, large)
	rand.NewChaCha8([32]byte{}).Read(body) //nolint:errcheck // returns no errors
	return testbed.File{Path: "large", Mode: 0o644, Body: body}
}

func (b *bed) pod(t *testing.T, handler, image string) *testbed.Pod {
	t.Helper()
	return b.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: image, Command: []string{"sleep", "1000"}})
}

// One image can be on all snapshotters of a node at once. Under stargz its container starts before
// the layers were downloaded.
func TestOneImageOnAllSnapshotters(t *testing.T) {
	b := newBed(t)
	file := largeFile()
	sum := sha256.Sum256(file.Body)
	want := hex.EncodeToString(sum[:])
	image := b.registry.Push(t, "snapshotters/large:1", testbed.EStargz(t, testbed.Busybox(t, testbed.WithLayer(file))))

	before := b.sent.Load()
	lazy := b.pod(t, "stargz", image)
	lazy.Container.Exec(t, "ls", "-l", "/large")
	if got := b.sent.Load() - before; got > large/2 {
		t.Errorf("%d bytes were sent before the container started, want at most half of the large file", got)
	}
	pods := map[string]*testbed.Pod{"stargz": lazy}
	for _, kind := range kinds {
		if pods[kind] == nil {
			pods[kind] = b.pod(t, kind, image)
		}
	}
	for kind, pod := range pods {
		if got := strings.Fields(pod.Container.Exec(t, "sha256sum", "/large")); got[0] != want {
			t.Errorf("%s: the checksum of the large file is %s", kind, got)
		}
		pod.Container.Exec(t, "sh", "-c", "echo mine > /bin/new && cat /bin/new")
	}
	b.Kill9(t)
	b.Start(t)
	for kind, pod := range pods {
		pod.Container.Exec(t, "cat", "/bin/new")
		late := pod.RunContainer(t, "late", testbed.PodSpec{Image: image, Command: []string{"sleep", "1000"}})
		late.Exec(t, "true")
		if t.Failed() {
			t.Fatal(kind)
		}
		pod.Remove(t)
	}
	if _, err := b.Client.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil {
		t.Fatal(err)
	}
}

// reasonOf returns why a handler is not ready, or an empty string if it is ready.
func (b *bed) reasonOf(t *testing.T, handler string) string {
	t.Helper()
	r, err := b.Client.RuntimeServiceClient.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	testbed.Must(t, err)
	var all struct {
		Handlers []struct{ Name, State, Reason string }
	}
	testbed.Must(t, json.Unmarshal([]byte(r.GetInfo()["handlers"]), &all))
	for _, h := range all.Handlers {
		if h.Name == handler && h.State != "ready" {
			return h.Reason
		}
	}
	return ""
}

// snapshots returns the number of snapshots that stargz has on disk.
func (b *bed) snapshots(t *testing.T) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(b.stargz.Root, "snapshotter", "snapshots", "[0-9]*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("find snapshots below %s: %v, %v", b.stargz.Root, found, err)
	}
	return len(found)
}

// While a snapshotter does not run or hangs, only its own handlers refuse new pods. They accept pods
// again once it works.
func TestSnapshotterThatFails(t *testing.T) {
	b := newBed(t)
	image := b.registry.Push(t, "snapshotters/busybox:1", testbed.EStargz(t, testbed.Busybox(t)))
	other := b.registry.Push(t, "snapshotters/other:1", testbed.Busybox(t, testbed.WithLayer(testbed.File{Path: "other", Mode: 0o644})))
	for name, c := range map[string]struct {
		fail, mend func()
		says       string
	}{
		"killed": {func() { b.stargz.Kill(t) }, func() { b.stargz.Start(t) }, "cannot be reached"},
		"hangs":  {func() { b.stargz.Signal(t, unix.SIGSTOP) }, func() { b.stargz.Signal(t, unix.SIGCONT) }, "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			testbed.Eventually(t, patience, func() error {
				if reason := b.reasonOf(t, "stargz"); reason != "" {
					return fmt.Errorf("stargz is not ready: %s", reason)
				}
				return nil
			})
			beside := b.pod(t, "overlayfs", image)
			gone := b.pod(t, "stargz", image)
			c.fail()
			testbed.Eventually(t, patience, func() error {
				if reason := b.reasonOf(t, "stargz"); !strings.Contains(reason, c.says) || !strings.Contains(reason, "snapshotters.stargz.address") {
					return fmt.Errorf("the reason of stargz is %q", reason)
				}
				return nil
			})
			for _, kind := range kinds[:2] {
				if reason := b.reasonOf(t, kind); reason != "" {
					t.Errorf("%s is not ready: %s", kind, reason)
				}
				b.pod(t, kind, other).Remove(t)
			}
			_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("refused"), RuntimeHandler: "stargz"})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("run a pod under stargz: %v, want a refusal", err)
			}
			if _, err := b.Client.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: other}}); err != nil {
				t.Error(err)
			}
			beside.Container.Exec(t, "true")
			b.Restart(t) // berth also starts without the snapshotter
			gone.Remove(t)
			beside.Remove(t)
			c.mend()
			testbed.Eventually(t, patience, func() error {
				if reason := b.reasonOf(t, "stargz"); reason != "" {
					return fmt.Errorf("stargz is not ready: %s", reason)
				}
				return nil
			})
			// Snapshots of containers that were removed meanwhile are deleted once stargz works again.
			testbed.Eventually(t, patience, func() error {
				if n := b.snapshots(t); n != 1 {
					return fmt.Errorf("stargz has %d snapshots, want only that of the image's one layer", n)
				}
				return nil
			})
			b.pod(t, "stargz", image).Remove(t)
		})
	}
}

// With a user namespace, files of an erofs root file system have the owners that the image has.
func TestErofsUnderUsersOfThePod(t *testing.T) {
	b := newBed(t)
	image := b.registry.Push(t, "snapshotters/busybox:1", testbed.Busybox(t))
	model := b.registry.Push(t, "snapshotters/model:1", testbed.Artifact(t, testbed.File{Path: "weights", Body: []byte("weights")}))
	id := b.Client.Pull(t, "erofs", model)
	ids := []*runtimeapi.IDMapping{{HostId: 231072, Length: 65536}}
	users := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
	pod := b.Client.RunPod(t, testbed.PodSpec{
		Handler: "erofs", Image: image, Command: []string{"sleep", "1000"},
		Sandbox: func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = users },
		Container: func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = users
			c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: "/model", Readonly: true, Image: &runtimeapi.ImageSpec{Image: id}})
		},
	})
	if got := pod.Container.Exec(t, "stat", "-c", "%u:%g", "/bin/busybox", "/home/app", "/model/weights"); got != "0:0\n1000:1000\n0:0\n" {
		t.Errorf("the owners of the files are %q", got)
	}
	pod.Container.Exec(t, "sh", "-c", "echo x >> /etc/passwd && touch /home/app/new")
	pod.Remove(t)
}

// Nothing is left if berth is killed while it waits for a snapshotter.
func TestKilledWhileASnapshotterPrepares(t *testing.T) {
	b := newBed(t)
	image := b.registry.Push(t, "snapshotters/busybox:1", testbed.EStargz(t, testbed.Busybox(t)))
	b.stargz.Signal(t, unix.SIGSTOP)
	answered := make(chan error, 1)
	go func() {
		_, err := b.Client.PullImage(t.Context(), &runtimeapi.PullImageRequest{
			Image: &runtimeapi.ImageSpec{Image: image, RuntimeHandler: "stargz"}, SandboxConfig: b.Client.SandboxConfig("any"),
		})
		answered <- err
	}()
	testbed.Eventually(t, patience, func() error {
		if b.sent.Load() == 0 {
			return errors.New("the pull has not begun")
		}
		return nil
	})
	b.Kill9(t)
	testbed.Fails(t, <-answered, "the pull succeeded")
	b.stargz.Signal(t, unix.SIGCONT)
	b.Start(t)
	b.pod(t, "stargz", image).Remove(t)
	if _, err := b.Client.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil {
		t.Fatal(err)
	}
	testbed.Eventually(t, patience, func() error {
		left, err := filepath.Glob(filepath.Join(b.stargz.Root, "snapshotter", "snapshots", "[0-9]*"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("the snapshotter still has %v", left)
		}
		return err
	})
}
