package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// withUserNS gives a pod a user namespace.
func withUserNS(c *runtimeapi.PodSandboxConfig) {
	c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userNS()
}

func userNS() *runtimeapi.UserNamespace {
	ids := []*runtimeapi.IDMapping{{HostId: 300_000, Length: 65_536}}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
}

func (b *bed) tryCreate(t *testing.T, sandbox string, config *runtimeapi.PodSandboxConfig, mounts ...*runtimeapi.Mount) (string, error) {
	t.Helper()
	c := b.Client.ContainerConfig("main", b.Image, "sleep", "3600")
	c.Linux.SecurityContext.NamespaceOptions = config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	c.Mounts = mounts
	r, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: c, SandboxConfig: config})
	return r.GetContainerId(), err
}

// TestUserNamespaceRollBack has different steps of a pod with a user namespace fail, and
// checks that nothing is left of the earlier steps.
func TestUserNamespaceRollBack(t *testing.T) {
	b := newBed(t, testbed.Options{CNI: testbed.NewCNI(t)})
	atRest := b.Rest(t)

	t.Run("network fails", func(t *testing.T) {
		good, err := os.ReadFile(b.CNI.Path())
		testbed.Must(t, err)
		var list map[string]any
		testbed.Must(t, json.Unmarshal(good, &list))
		// The plugin fails after an address was allocated.
		list["plugins"] = append(list["plugins"].([]any), map[string]any{"type": "tuning", "sysctl": map[string]string{"net.ipv4.no.such.thing": "1"}})
		bad, err := json.Marshal(list)
		testbed.Must(t, err)
		restore := func() {
			testbed.Check(t, b.CNI.Write())
		}
		defer restore()
		testbed.Must(t, os.WriteFile(b.CNI.Path(), bad, 0o600))
		testbed.Eventually(t, time.Minute, func() error {
			sandbox := b.Client.SandboxConfig("")
			withUserNS(sandbox)
			r, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: sandbox})
			if err == nil {
				return fmt.Errorf("sandbox %s runs: the changed network was not read yet", r.GetPodSandboxId())
			}
			return nil
		})
		restore()
		b.NothingLeft(t, atRest)
	})

	t.Run("user namespace unmounted", func(t *testing.T) {
		sandbox := b.Client.SandboxConfig("")
		withUserNS(sandbox)
		r, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: sandbox})
		testbed.Must(t, err)
		user := filepath.Join(b.State, "sandboxes", r.GetPodSandboxId(), "ns", "user")
		testbed.Must(t, unix.Unmount(user, unix.MNT_DETACH))
		before := b.Snapshot(t)
		if _, err := b.tryCreate(t, r.GetPodSandboxId(), sandbox); err == nil {
			t.Error("a container was created without the pod's user namespace")
		}
		b.NoLeaks(t, before)
		b.Kill9(t)
		b.Start(t)
		testbed.Same(t, b.listed(t), "SANDBOX_NOTREADY", "after a restart the states are")
		b.NothingLeft(t, atRest)
	})

	t.Run("volume cannot be mapped", func(t *testing.T) {
		sandbox := b.Client.SandboxConfig("")
		withUserNS(sandbox)
		r, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: sandbox})
		testbed.Must(t, err)
		o := sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
		id, err := b.tryCreate(t, r.GetPodSandboxId(), sandbox,
			&runtimeapi.Mount{ContainerPath: "/data", HostPath: "/proc/sys", UidMappings: o.GetUids(), GidMappings: o.GetGids()})
		testbed.Must(t, err)
		if _, err := b.Client.StartContainer(testbed.Within(t, time.Minute), &runtimeapi.StartContainerRequest{ContainerId: id}); err == nil {
			t.Error("the volume was mounted without a mapping")
		}
		testbed.Same(t, b.listed(t), "SANDBOX_READY CONTAINER_EXITED", "the states are")
		b.NothingLeft(t, atRest)
	})

	// A daemon that is killed while it maps layers leaves a mount on the directory scratch.
	t.Run("killed while layers are mapped", func(t *testing.T) {
		sandbox := b.Client.SandboxConfig("")
		withUserNS(sandbox)
		r, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: sandbox})
		testbed.Must(t, err)
		id, err := b.tryCreate(t, r.GetPodSandboxId(), sandbox)
		testbed.Must(t, err)
		b.Kill9(t)
		for _, dir := range []string{id, strings.Repeat("ab", 32)} { // of a recorded container, and of an unknown one
			scratch := filepath.Join(b.State, "containers", dir, "scratch")
			testbed.Must(t, os.MkdirAll(scratch, 0o700))
			testbed.Must(t, unix.Mount(filepath.Join(b.Root, "images", "snapshots"), scratch, "", unix.MS_BIND, ""))
		}
		b.Start(t)
		b.NothingLeft(t, atRest)
	})
}

// TestUserNamespaceRefused requests user namespaces of handlers that do not support them.
func TestUserNamespaceRefused(t *testing.T) {
	b := newBed(t, testbed.Options{Config: fmt.Sprintf("default_runtime = \"runc\"\n[runtimes.runc]\nruntime_path = %q\n"+
		"[runtimes.copies]\nruntime_path = %[1]q\nsnapshotter = \"native\"\n[runtimes.runsc]\nruntime_path = %[2]q\n",
		testbed.Part(t, testbed.Runc), testbed.Part(t, testbed.Runsc))})
	atRest := b.Rest(t)
	for handler, says := range map[string][]string{
		"copies": {"snapshotter native", "runc)"}, "runsc": {"separate kernel", "no ready handler of this node with a kernel for each pod"},
	} {
		sandbox := b.Client.SandboxConfig("")
		withUserNS(sandbox)
		_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: sandbox, RuntimeHandler: handler})
		testbed.Refused(t, err, codes.FailedPrecondition, append(says, "hostUsers")...)
	}
	b.NothingLeft(t, atRest)
}
