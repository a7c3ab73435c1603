package podcheckpoint

import (
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestPodThatIsNotStarted: a restored pod does not run until all its containers are started. Until
// then no other container can be started in it, and it can be removed like any pod.
func TestPodThatIsNotStarted(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	p := b.run(t, "one", "two")
	p.reaches(t, 3)
	dir := p.checkpointed(t)
	p.Remove(t)
	for _, started := range []int{0, 1} {
		made := b.created(t, p, b.request(p, dir))
		containers := made.containers()
		for _, c := range containers[:started] {
			c.Start(t)
			if got := c.Status(t).GetState(); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
				t.Errorf("a started container is %v", got)
			}
		}
		time.Sleep(time.Second) // in which no container may run
		for _, c := range containers {
			if text, err := os.ReadFile(c.LogPath); err == nil && len(text) > 0 {
				t.Errorf("with %d of 2 containers started, a container has logged %q", started, text)
			}
		}
		if started > 0 {
			testbed.Refused(t, made.TryCheckpoint(t, t.TempDir(), containers[:started]...), codes.FailedPrecondition, "start all of its containers first")
		}
		another := made.CreateContainer(t, "another", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
		testbed.Refused(t, b.tryStart(t, &member{Container: another}), codes.FailedPrecondition, "start all of the containers first")
		b.Kill9(t)
		b.Start(t)
		for _, c := range containers[started:] {
			if got := c.Status(t).GetState(); got != runtimeapi.ContainerState_CONTAINER_CREATED {
				t.Errorf("after a kill -9 of berth a container is %v, want CREATED", got)
			}
		}
		for _, c := range containers[started:] {
			c.Stop(t, 0)
		}
		// Without the stopped containers the started ones can never run, so they exit.
		for _, c := range containers[:started] {
			if got := c.WaitExit(t); got.GetExitCode() != 137 {
				t.Errorf("the started container exited with %d, %s, want 137", got.GetExitCode(), got.GetMessage())
			}
		}
		made.Remove(t)
	}
	b.NothingLeft(t, atRest)
}
