package faults

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

// placesOfPods are the failpoints that a pod passes, in order.
var placesOfPods = []string{
	failpoint.SandboxReserved, failpoint.SandboxNamespaces, failpoint.SandboxAddressed, failpoint.SandboxLinked, failpoint.SandboxNetworked,
	failpoint.SandboxShimStarted, failpoint.SandboxReady,
	failpoint.ContainerPlanned, failpoint.ContainerMounted, failpoint.ContainerCreated, failpoint.ContainerRunning,
	failpoint.ContainerStopped, failpoint.ContainerErased, failpoint.SandboxStopped, failpoint.SandboxUnlinked, failpoint.SandboxErased,
}

// survivors are the states that must be listed after a crash at each failpoint:
// completely created objects are listed, partially created ones are not.
var survivors = map[string]string{
	failpoint.SandboxReserved:    "",
	failpoint.SandboxNamespaces:  "",
	failpoint.SandboxAddressed:   "",
	failpoint.SandboxLinked:      "",
	failpoint.SandboxNetworked:   "",
	failpoint.SandboxShimStarted: "",
	failpoint.SandboxReady:       "SANDBOX_READY",
	failpoint.ContainerPlanned:   "SANDBOX_READY",
	failpoint.ContainerMounted:   "SANDBOX_READY",
	failpoint.ContainerVolumes:   "SANDBOX_READY",
	failpoint.ContainerCreated:   "SANDBOX_READY CONTAINER_CREATED",
	failpoint.ContainerRunning:   "SANDBOX_READY CONTAINER_RUNNING",
	failpoint.ContainerStopped:   "SANDBOX_READY CONTAINER_EXITED",
	failpoint.ContainerErased:    "SANDBOX_READY CONTAINER_EXITED",
	failpoint.SandboxStopped:     "SANDBOX_NOTREADY",
	failpoint.SandboxUnlinked:    "SANDBOX_NOTREADY",
	failpoint.SandboxErased:      "SANDBOX_NOTREADY",
}

// TestKilledAtEveryFailpoint kills the daemon at each failpoint that a pod passes,
// starts the daemon again, and removes all listed pods. Then nothing may be left, and
// the same pod must run without an error.
func TestKilledAtEveryFailpoint(t *testing.T) {
	t.Parallel()
	runc := "default_runtime = \"runc\"\n[runtimes.runc]\nruntime_path = \"" + testbed.Part(t, testbed.Runc) + "\"\n"
	for _, handler := range []struct {
		name   string
		config string
		shim   bool
		pod    func(*runtimeapi.PodSandboxConfig)
		places string // prefix of the failpoints to test
	}{
		{name: "namespaces", config: runc},
		{name: "process", config: runc + "sandbox_process = \"always\"\n", places: "sandbox."},
		{name: "user namespace", config: runc, pod: withUserNS, places: "sandbox."},
		{name: "shim", config: shimConfig(t, testbed.Part(t, testbed.RuncShim)), shim: true},
	} {
		t.Run(handler.name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testbed.Options{
				Tags:   []string{"berth_failpoints"},
				Config: handler.config,
				CNI:    testbed.NewCNI(t), // its iptables rules must not be left either
			})
			atRest := b.Rest(t)
			for _, place := range placesOfPods {
				if place == failpoint.SandboxShimStarted && !handler.shim || !strings.HasPrefix(place, handler.places) {
					continue // pods of this handler do not pass the failpoint, or another handler covers it
				}
				t.Run(place, func(t *testing.T) { b.killedAt(t, place, atRest, handler.pod) })
			}
		})
	}
}

// TestKilledOverMappedVolume kills the daemon while a host volume is bind-mounted into
// a bundle, as is needed for a runtime that cannot map the volume's IDs. The removal of
// the bundle must not delete the volume's files.
func TestKilledOverMappedVolume(t *testing.T) {
	b := newBed(t, testbed.Options{
		Tags:           []string{"berth_failpoints"},
		Runtimes:       map[string]string{"crun": testbed.Part(t, testbed.Crun)},
		DefaultRuntime: "crun",
	})
	dir := t.TempDir()
	place(t, dir, "kept")
	mapped := func(c *runtimeapi.ContainerConfig) {
		ids := userNS()
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: "/data", HostPath: dir, UidMappings: ids.GetUids(), GidMappings: ids.GetGids()})
		c.Command = []string{"sh", "-c", "trap 'exit 143' TERM; [ -O /data/kept ] && touch /trapped; while :; do sleep 0.1; done"}
	}
	shared := func(c *runtimeapi.PodSandboxConfig) {
		withUserNS(c)
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	}
	atRest := b.Rest(t)
	for _, place := range []string{failpoint.ContainerMounted, failpoint.ContainerCreated, failpoint.ContainerRunning} {
		t.Run(place, func(t *testing.T) { b.killedAt(t, place, atRest, shared, mapped) })
		if _, err := os.Stat(filepath.Join(dir, "kept")); err != nil {
			t.Fatalf("the volume's file is gone: %v", err)
		}
	}
}

func (b *bed) killedAt(t *testing.T, place string, atRest testbed.Snapshot, pod func(*runtimeapi.PodSandboxConfig), container ...func(*runtimeapi.ContainerConfig)) {
	want, known := survivors[place]
	if !known {
		t.Fatalf("survivors has no entry for %s", place)
	}
	sandbox := b.Client.SandboxConfig("failing")
	if pod != nil {
		pod(sandbox)
	}
	if b.Running() { // a failed test of the previous failpoint may have left no daemon
		b.Stop(t)
	}
	b.SetEnvironment("BERTH_FAILPOINT=" + place)
	b.Start(t)
	err := b.live(t, sandbox, container...)
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the calls returned %v, want Unavailable because the daemon was killed", err)
	}
	b.Wait(t, time.Minute)
	b.SetEnvironment()
	b.Start(t)

	if place == failpoint.ContainerStopped {
		// The container was signalled, but may take time to exit.
		testbed.Eventually(t, time.Minute, func() error {
			if listed := b.listed(t); listed != want {
				return fmt.Errorf("the states are %q, want %q", listed, want)
			}
			return nil
		})
	} else if listed := b.listed(t); listed != want {
		t.Errorf("the states are %q, want %q", listed, want)
	}
	b.running(t)
	b.NothingLeft(t, atRest)
	testbed.Checkf(t, b.live(t, sandbox, container...), "run the same pod again")
	b.NothingLeft(t, atRest)
}

// live creates, starts, stops and removes a pod with a container, up to the first error.
func (b *bed) live(t *testing.T, sandbox *runtimeapi.PodSandboxConfig, container ...func(*runtimeapi.ContainerConfig)) error {
	t.Helper()
	ctx := testbed.Within(t, time.Minute)
	run, err := b.Client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		return err
	}
	config := b.Client.ContainerConfig("main", b.Image, "sh", "-c",
		// The kernel drops a signal to PID 1 that has no handler yet.
		"trap 'exit 143' TERM; touch /trapped; while :; do sleep 0.1; done")
	config.Linux.SecurityContext.NamespaceOptions = sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions()
	config.Mounts = []*runtimeapi.Mount{{
		ContainerPath: "/volume", Readonly: true, Image: &runtimeapi.ImageSpec{Image: b.Image},
	}}
	for _, change := range container {
		change(config)
	}
	create, err := b.Client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: run.GetPodSandboxId(), Config: config, SandboxConfig: sandbox,
	})
	if err != nil {
		return err
	}
	return inOrder(ctx, create.GetContainerId(), run.GetPodSandboxId(), b.Client)
}

// inOrder starts, stops and removes the container, and stops and removes the sandbox.
func inOrder(ctx context.Context, container, sandbox string, c *testbed.Client) error {
	for _, step := range []func() error{
		func() error {
			_, err := c.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: container})
			return err
		},
		func() error {
			_, err := c.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
				ContainerId: container, Cmd: []string{"sh", "-c", "until [ -e /trapped ]; do sleep 0.01; done"},
			})
			return err
		},
		func() error {
			_, err := c.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: container, Timeout: 10})
			return err
		},
		func() error {
			_, err := c.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: container})
			return err
		},
		func() error {
			_, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox})
			return err
		},
		func() error {
			_, err := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox})
			return err
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// running fails the test if a container in the state RUNNING has no process.
func (b *bed) running(t *testing.T) {
	t.Helper()
	list, err := b.Client.ListContainers(testbed.Within(t, time.Minute), &runtimeapi.ListContainersRequest{})
	testbed.Must(t, err)
	for _, c := range list.GetContainers() {
		if c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			life(t, b.info(t, c.GetId()).PID)
		}
	}
}

// listed returns the states of all sandboxes and then of all containers.
func (b *bed) listed(t *testing.T) string {
	t.Helper()
	ctx := testbed.Within(t, time.Minute)
	sandboxes, err := b.Client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	testbed.Must(t, err)
	containers, err := b.Client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	testbed.Must(t, err)
	var states []string
	for _, s := range sandboxes.GetItems() {
		states = append(states, s.GetState().String())
	}
	for _, c := range containers.GetContainers() {
		states = append(states, c.GetState().String())
	}
	return strings.Join(states, " ")
}

// TestKilledWhileVolumesAreMade kills the daemon after it created one of the volumes
// that an image defines, and at later failpoints. Nothing of the volumes may be left.
func TestKilledWhileVolumesAreMade(t *testing.T) {
	t.Parallel()
	runc := "default_runtime = \"runc\"\n[runtimes.runc]\nruntime_path = \"" + testbed.Part(t, testbed.Runc) + "\"\n"
	for _, handler := range []struct {
		name, config string
		pod          func(*runtimeapi.PodSandboxConfig)
	}{
		{name: "user namespace", config: runc, pod: withUserNS},
		{name: "copied root", config: runc + "snapshotter = \"native\"\n"},
	} {
		t.Run(handler.name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testbed.Options{Tags: []string{"berth_failpoints"}, Config: handler.config})
			b.Image = b.Registry.Push(t, "faults/volumes:1", testbed.Busybox(t,
				testbed.WithConfig(func(c *v1.Config) { c.Volumes = map[string]struct{}{"/data": {}, "/fresh": {}} }),
				testbed.WithLayer(testbed.File{Path: "data", Mode: fs.ModeDir | 0o700}, testbed.File{Path: "data/file", Mode: 0o600, Body: []byte("x")})))
			atRest := b.Rest(t)
			for _, place := range []string{failpoint.ContainerVolumes, failpoint.ContainerMounted, failpoint.ContainerRunning, failpoint.ContainerErased} {
				t.Run(place, func(t *testing.T) {
					b.killedAt(t, place, atRest, handler.pod)
					testbed.Eventually(t, time.Minute, func() error { return b.nothingWritten() })
				})
			}
		})
	}
}

// nothingWritten returns an error if files that containers wrote are left.
func (b *bed) nothingWritten() error {
	for _, pattern := range []string{"images/rootfs/*/*", "images/trash/*"} {
		left, err := filepath.Glob(filepath.Join(b.Root, pattern))
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("files of containers are left: %v", left)
		}
	}
	return nil
}
