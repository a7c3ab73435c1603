package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// polite is a script that exits with 7 on SIGTERM.
const polite = "trap 'exit 7' TERM; while :; do sleep 0.05; done"

func (b *bed) stopContainer(ctx context.Context, id string, seconds int64) error {
	_, err := b.Client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
	return err
}

// TestStopWhileStarting stops a container that is being started. The container must get
// its stop signal. A stop must not wait for a hanging start longer than the stop's timeout.
func TestStopWhileStarting(t *testing.T) {
	t.Parallel()
	hang := hanging()
	runtime := newScripted(t)
	begun := filepath.Join(t.TempDir(), "begun")
	b := newBed(t, testbed.Options{Config: fmt.Sprintf("default_runtime = \"slow\"\n[runtimes.slow]\nruntime_path = %q\n", runtime.Path)})
	atRest := b.Rest(t)
	starting := func(t *testing.T, lines string) (*testbed.Pod, *testbed.Container, chan error) {
		t.Helper()
		_ = os.Remove(begun)
		runtime.on(t, "run", "touch "+begun+"; "+lines)
		pod := b.Client.RunSandbox(t, testbed.PodSpec{})
		c := pod.CreateContainer(t, "main", testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", polite}})
		started := make(chan error, 1)
		go func() {
			_, err := b.Client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.ID})
			started <- err
		}()
		testbed.Eventually(t, time.Minute, func() error { _, err := os.Stat(begun); return err })
		return pod, c, started
	}
	// The second sleep lets the container set its trap.
	slow := fmt.Sprintf("sleep 0.5; %s \"$@\" || exit; sleep 3; exit 0", testbed.Part(t, testbed.Runc))

	t.Run("signal", func(t *testing.T) {
		pod, c, started := starting(t, slow)
		testbed.Check(t, b.stopContainer(testbed.Within(t, time.Minute), c.ID, 20))
		exitedWith(t, c.Status(t), 7)
		testbed.Checkf(t, <-started, "StartContainer")
		pod.Remove(t)
	})
	t.Run("caller leaves", func(t *testing.T) {
		pod, c, started := starting(t, slow)
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := b.stopContainer(short, c.ID, 20); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("StopContainer with an expired context returned %v, want DeadlineExceeded", err)
		}
		testbed.Same(t, c.WaitExit(t).GetExitCode(), 7, "the container exited with")
		testbed.Checkf(t, <-started, "StartContainer")
		pod.Remove(t)
	})
	for name, stop := range map[string]func(*testbed.Pod, *testbed.Container) error{
		"kill": func(_ *testbed.Pod, c *testbed.Container) error {
			return b.stopContainer(testbed.Within(t, time.Minute), c.ID, 0)
		},
		"grace": func(_ *testbed.Pod, c *testbed.Container) error {
			return b.stopContainer(testbed.Within(t, time.Minute), c.ID, 2)
		},
		"sandbox": func(p *testbed.Pod, _ *testbed.Container) error {
			return p.TryStop(t, time.Minute)
		},
	} {
		t.Run("hanging start, "+name, func(t *testing.T) {
			pod, c, started := starting(t, "exec "+hang)
			begin := time.Now()
			testbed.Check(t, stop(pod, c))
			tookAtMost(t, 30*time.Second, begin, "the stop")
			testbed.Same(t, c.Status(t).GetState(), runtimeapi.ContainerState_CONTAINER_EXITED, "the container is")
			testbed.Fails(t, <-started, "the hanging StartContainer succeeded")
			testbed.Same(t, pidOf(t, hang), 0, "the pid of the hanging command is")
			pod.Remove(t)
		})
	}
	runtime.on(t, "run", "")
	b.NothingLeft(t, atRest)
}

// TestCreateWhileStopping stops and removes sandboxes while containers are created in
// them. A container that was created before the stop must be EXITED after it, and be
// removed with the sandbox. Later creations must fail.
func TestCreateWhileStopping(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	for round := range 12 {
		pod := b.Client.RunSandbox(t, testbed.PodSpec{})
		var g errgroup.Group
		for i := range 4 {
			g.Go(func() error {
				for n := 0; ; n++ {
					_, err := b.Client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
						PodSandboxId: pod.ID, Config: b.Client.ContainerConfig(fmt.Sprintf("c%d-%d", i, n), b.Image, "true"), SandboxConfig: pod.Config,
					})
					switch status.Code(err) {
					case codes.OK:
					case codes.FailedPrecondition, codes.NotFound:
						return nil
					default:
						return err
					}
				}
			})
		}
		time.Sleep(time.Duration(round) * 3 * time.Millisecond) // stop at different moments
		pod.Stop(t)
		list, err := b.Client.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
		testbed.Must(t, err)
		for _, c := range list.GetContainers() {
			testbed.Same(t, c.GetState(), runtimeapi.ContainerState_CONTAINER_EXITED, "in the stopped sandbox, container %s is", c.GetMetadata().GetName())
		}
		pod.Remove(t)
		testbed.Check(t, g.Wait())
		testbed.MustBe(t, b.listed(t), "", "after the removal the states are")
	}
	b.NothingLeft(t, atRest)
}

// TestStopWhileShimCreates stops a sandbox whose shim hangs in the creation of a
// container: the creation fails, and nothing of the container is left.
func TestStopWhileShimCreates(t *testing.T) {
	t.Parallel()
	hang := hanging()
	runtime := newScripted(t)
	begun := filepath.Join(t.TempDir(), "begun")
	config := strings.Replace(shimConfig(t, testbed.Part(t, testbed.RuncShim)), testbed.Part(t, testbed.Runc), runtime.Path, 1)
	config = strings.Replace(config, "container_create_timeout = \"10s\"\n", "", 1)
	b := newBed(t, testbed.Options{Config: config})
	atRest := b.Rest(t)
	for name, lines := range map[string]string{
		"create hangs":          "exec " + hang,
		"create takes a second": fmt.Sprintf("sleep 1; exec %s \"$@\"", testbed.Part(t, testbed.Runc)),
	} {
		t.Run(name, func(t *testing.T) {
			_ = os.Remove(begun)
			pod := b.Client.RunSandbox(t, testbed.PodSpec{})
			runtime.on(t, "create", "touch "+begun+"; "+lines)
			created := make(chan error, 1)
			go func() {
				_, err := b.Client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
					PodSandboxId: pod.ID, Config: b.Client.ContainerConfig("main", b.Image, "sleep", "3600"), SandboxConfig: pod.Config,
				})
				created <- err
			}()
			testbed.Eventually(t, time.Minute, func() error { _, err := os.Stat(begun); return err })
			begin := time.Now()
			pod.Stop(t)
			tookAtMost(t, 30*time.Second, begin, "the stop")
			testbed.Refused(t, <-created, codes.FailedPrecondition, "run a new sandbox")
			runtime.on(t, "create", "")
			pod.Remove(t)
			testbed.Same(t, b.listed(t), "", "after the removal the states are")
			b.NothingLeft(t, atRest)
			testbed.Same(t, pidOf(t, hang), 0, "the pid of the hanging command is")
		})
	}
}
