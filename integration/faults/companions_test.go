package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestReleasesOfGVisor upgrades a gVisor file by file under a pod. A kept runtime was one
// file once: no pod of a release with companions could start, and its handler was ready.
func TestReleasesOfGVisor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	runsc := testbed.InstallRunsc(t, testbed.Runsc, dir)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(
		"default_runtime = \"gvisor\"\n[handlers]\nprobe_interval = \"1s\"\n[runtimes.gvisor]\nruntime_path = %q\noptions.global_flags = [\"--sidecar-usage-policy=STRICT\"]\n", runsc)})
	spec := testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}
	old := b.Client.RunPod(t, spec)
	works := func(when string) {
		t.Helper()
		more := old.RunContainer(t, "c-"+strings.ReplaceAll(when, " ", "-"), spec)
		for _, c := range []*testbed.Container{old.Container, more} {
			testbed.Same(t, c.Exec(t, "echo", "here"), "here\n", "%s: an exec in the old pod printed", when)
		}
	}
	handler := func() (state, reason string) {
		t.Helper()
		for _, h := range b.handlersInfo(t).Handlers {
			if h.Name == "gvisor" {
				return h.State, h.Reason
			}
		}
		return "absent", ""
	}
	notReady := func(when, reason string) {
		t.Helper()
		testbed.Eventually(t, time.Minute, func() error {
			if state, why := handler(); state != "not-ready" || !strings.Contains(why, reason) || !strings.Contains(why, runsc) {
				return fmt.Errorf("%s: gvisor is %s: %s", when, state, why)
			}
			return nil
		})
		_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("")})
		testbed.Refused(t, err, codes.Unavailable, reason)
		works(when)
	}
	ready := func(when string) {
		t.Helper()
		testbed.Eventually(t, time.Minute, func() error {
			if state, why := handler(); state != "ready" {
				return fmt.Errorf("%s: gvisor is %s: %s", when, state, why)
			}
			return nil
		})
		works(when)
	}
	works("at first")
	put(t, runsc, read(t, testbed.Part(t, testbed.RunscOther)))
	notReady("half replaced", "gvisor_sentry is of release")
	testbed.InstallRunsc(t, testbed.RunscOther, dir)
	ready("replaced")
	fresh := b.Client.RunPod(t, spec)
	testbed.Same(t, fresh.Container.Exec(t, "echo", "here"), "here\n", "an exec in a new pod printed")
	for _, name := range []string{"gvisor_sentry", "gvisor-sentry-prewarmer"} {
		testbed.Must(t, os.Remove(filepath.Join(dir, companions, name)))
		notReady("without "+name, name+" is missing")
		testbed.InstallRunsc(t, testbed.RunscOther, dir)
		ready("with " + name)
	}
	testbed.Must(t, os.RemoveAll(filepath.Join(dir, companions)))
	b.Restart(t)
	notReady("without all", companions)
	old.Remove(t)
	fresh.Remove(t)
}
