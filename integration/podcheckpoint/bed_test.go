// Package podcheckpoint has pods sleep and wake: a real `berth serve` writes pods into
// directories, under gVisor as a whole and elsewhere by CRIU, and restores them.
package podcheckpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// The handlers that pods are checkpointed under.
const (
	gvisor = "runsc"
	runc   = "runc"
	// shim is containerd's for runc.
	shim = "shim"
	// crun has CRIU where BERTH_TEST_CRUN names one that has; Debian's has not.
	crun = "crun"
)

// everywhere runs a test under each of them. Those by CRIU need one that knows the kernel.
func everywhere(t *testing.T, test func(t *testing.T, handler string)) {
	t.Run(gvisor, func(t *testing.T) { test(t, gvisor) })
	byCRIU(t, test)
}

// byCRIU runs a test where CRIU writes each container.
func byCRIU(t *testing.T, test func(t *testing.T, handler string)) {
	for _, handler := range []string{runc, crun, shim} {
		t.Run(handler, func(t *testing.T) {
			testbed.FittingCRIU(t)
			if handler == crun && !testbed.CrunHasCRIU(t) {
				t.Skipf("%s was built without CRIU; BERTH_TEST_CRUN can name another", testbed.Part(t, testbed.Crun))
			}
			test(t, handler)
		})
	}
}

// bySupervisor runs a test where berth's supervisor has CRIU write each container.
func bySupervisor(t *testing.T, test func(t *testing.T, handler string)) {
	byCRIU(t, func(t *testing.T, handler string) {
		if handler == shim {
			t.Skip("containerd's shim is who calls the runtime")
		}
		test(t, handler)
	})
}

// patience is for what takes a moment on a slow machine.
const patience = time.Minute

type bed struct {
	*testbed.Bed
	handler string
	// path has the environment in which criu is found.
	path []string
}

// newBed starts berth with all the handlers, for pods of one of them.
func newBed(t *testing.T, handler string, options testbed.Options) *bed {
	t.Helper()
	options.DefaultRuntime = runc
	options.Config = fmt.Sprintf("[runtimes.runc]\nruntime_path = %q\n[runtimes.runsc]\nruntime_path = %q\n[runtimes.shim]\nruntime_type = \"shim\"\nruntime_path = %q\n[runtimes.shim.options]\nBinaryName = %q\n[runtimes.crun]\nruntime_path = %q\n",
		testbed.Part(t, testbed.Runc), testbed.Part(t, testbed.Runsc), testbed.Part(t, testbed.RuncShim), testbed.Part(t, testbed.Runc), testbed.Part(t, testbed.Crun)) + options.Config
	b := &bed{Bed: testbed.StartBed(t, "podcheckpoint/busybox:1", options), handler: handler}
	if handler == gvisor {
		return b
	}
	dir := t.TempDir()
	testbed.Must(t, os.Symlink(testbed.FittingCRIU(t), filepath.Join(dir, "criu")))
	b.path = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
	b.environment()
	b.Restart(t)
	return b
}

// environment sets the environment of the next daemon.
func (b *bed) environment(more ...string) { b.SetEnvironment(append(slices.Clone(b.path), more...)...) }

// member is a container of a pod, and what it was asked to be.
type member struct {
	*testbed.Container
	config *runtimeapi.ContainerConfig
}

// program is what a container of that name runs: it counts, and it writes what it has open.
func program(name string) []string {
	return []string{"sh", "-c", "mkfifo /tmp/pipe; sh -c 'while read n; do echo " + name + " $n; echo $n > /tmp/last; done' <>/tmp/pipe & exec 3<>/tmp/pipe; " +
		"exec 4>/tmp/open; i=0; while :; do i=$((i+1)); echo $i >&3; echo $i >&4; sleep 0.2; done"}
}

// pod is one that counts in each of its containers.
type pod struct {
	*testbed.Pod
	members []*member
}

// run runs a pod with containers of these names.
func (b *bed) run(t *testing.T, names ...string) *pod {
	t.Helper()
	b.Client.Pull(t, b.handler, b.Image)
	p := &pod{Pod: b.Client.RunSandbox(t, testbed.PodSpec{Handler: b.handler})}
	for _, name := range names {
		m := &member{}
		m.Container = p.RunContainer(t, name, testbed.PodSpec{Image: b.Image, Command: program(name), Container: func(c *runtimeapi.ContainerConfig) { m.config = c }})
		p.members = append(p.members, m)
	}
	return p
}

// count is how far the container has come by its log.
func (m *member) count(t *testing.T) int {
	t.Helper()
	lines := m.Log(t)
	for i := len(lines) - 1; i >= 0; i-- {
		if fields := strings.Fields(lines[i].Text); len(fields) == 2 {
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatalf("the log says %q", lines[i].Text)
			}
			return n
		}
	}
	return 0
}

// reaches waits until every container has counted to more than n.
func (p *pod) reaches(t *testing.T, n int) {
	t.Helper()
	for _, m := range p.members {
		testbed.Eventually(t, patience, func() error {
			if got := m.count(t); got <= n {
				return fmt.Errorf("container %s has counted to %d, not beyond %d", m.config.GetMetadata().GetName(), got, n)
			}
			return nil
		})
	}
}

func (p *pod) containers() (all []*testbed.Container) {
	for _, m := range p.members {
		all = append(all, m.Container)
	}
	return all
}

// writing begins to write the pod into a new directory.
func (p *pod) writing(t *testing.T) (dir string, done <-chan error) {
	t.Helper()
	dir = t.TempDir()
	testbed.Must(t, os.Chmod(dir, 0o700))
	written := make(chan error, 1)
	go func() { written <- p.TryCheckpoint(t, dir, p.containers()...) }()
	return dir, written
}

// checkpointed writes the pod into a new directory.
func (p *pod) checkpointed(t *testing.T) string {
	t.Helper()
	dir, done := p.writing(t)
	testbed.Mustf(t, <-done, "checkpoint")
	return dir
}

// nothingIn waits until nothing is left in the directory of a checkpoint.
func nothingIn(t *testing.T, dir string) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		if left := files(t, dir); len(left) > 0 {
			return fmt.Errorf("left are %q", left)
		}
		return nil
	})
}

// request asks for a pod like p of the checkpoint in dir.
func (b *bed) request(p *pod, dir string) *runtimeapi.RestorePodRequest {
	r := &runtimeapi.RestorePodRequest{CheckpointPath: dir, Config: b.Client.SandboxConfig(""), RuntimeHandler: b.handler}
	for _, m := range p.members {
		r.ContainerConfigs = append(r.ContainerConfigs, proto.CloneOf(m.config))
	}
	return r
}

// created makes a pod like p that r asks for. Its containers wait to be started.
func (b *bed) created(t *testing.T, p *pod, r *runtimeapi.RestorePodRequest) *pod {
	t.Helper()
	made, containers, err := b.Client.TryRestore(t, r)
	testbed.Mustf(t, err, "restore")
	again := &pod{Pod: made}
	for i, c := range containers {
		again.members = append(again.members, &member{c, p.members[i].config})
		if got := c.Status(t).GetState(); got != runtimeapi.ContainerState_CONTAINER_CREATED {
			t.Errorf("before it is started a container is %v", got)
		}
	}
	return again
}

// restored makes a pod like p of the checkpoint in dir, and starts it.
func (b *bed) restored(t *testing.T, p *pod, dir string) *pod {
	t.Helper()
	again := b.created(t, p, b.request(p, dir))
	for _, m := range again.members {
		m.Start(t)
	}
	return again
}

// tryStart starts a container, which may fail.
func (b *bed) tryStart(t *testing.T, c *member) error {
	t.Helper()
	_, err := b.Client.StartContainer(testbed.Within(t, patience), &runtimeapi.StartContainerRequest{ContainerId: c.ID})
	return err
}

// files are the names of what is below dir.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if path != dir {
			relative, _ := filepath.Rel(dir, path)
			all = append(all, relative)
		}
		return err
	})
	testbed.Must(t, err)
	return all
}

// value returns what a step gave, and fails the test at once if it failed.
func value[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		testbed.Must(t, err)
		return v
	}
}
