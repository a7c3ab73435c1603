// Package podcheckpoint tests checkpoints of pods: a real `berth serve` writes pods into
// directories and restores them.
package podcheckpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// The handlers of a bed: only pods of gvisor can be checkpointed. runc is the default.
const (
	gvisor = "runsc"
	runc   = "runc"
)

// patience is the timeout of steps that are slow on a slow machine.
const patience = time.Minute

type bed struct{ *testbed.Bed }

// newBed starts berth.
func newBed(t *testing.T, options testbed.Options) *bed {
	t.Helper()
	return newBedOf(t, testbed.Part(t, testbed.Runsc), options)
}

// newBedOf is newBed for a runsc at a path.
func newBedOf(t *testing.T, runsc string, options testbed.Options) *bed {
	t.Helper()
	options.DefaultRuntime = runc
	options.Config = fmt.Sprintf("[runtimes.runc]\nruntime_path = %q\n[runtimes.runsc]\nruntime_path = %q\n", testbed.Part(t, testbed.Runc), runsc) + options.Config
	return &bed{testbed.StartBed(t, "podcheckpoint/busybox:1", options)}
}

// member is a container of a pod, with the configuration in its request.
type member struct {
	*testbed.Container
	config *runtimeapi.ContainerConfig
}

// program is the command of a container of that name. It counts, and writes each number to its
// log through a pipe, and to a file that stays open.
func program(name string) []string {
	return []string{"sh", "-c", "mkfifo /tmp/pipe; sh -c 'while read n; do echo " + name + " $n; echo $n > /tmp/last; done' <>/tmp/pipe & exec 3<>/tmp/pipe; " +
		"exec 4>/tmp/open; i=0; while :; do i=$((i+1)); echo $i >&3; echo $i >&4; sleep 0.2; done"}
}

// pod is a pod with its containers, which run program unless a test chose another command.
type pod struct {
	*testbed.Pod
	members []*member
}

// run runs a pod with containers of these names.
func (b *bed) run(t *testing.T, names ...string) *pod {
	t.Helper()
	b.Client.Pull(t, gvisor, b.Image)
	p := &pod{Pod: b.Client.RunSandbox(t, testbed.PodSpec{Handler: gvisor})}
	for _, name := range names {
		b.add(t, p, name, nil, program(name)...)
	}
	return p
}

// add runs one more container in a pod.
func (b *bed) add(t *testing.T, p *pod, name string, change func(*runtimeapi.ContainerConfig), command ...string) *member {
	t.Helper()
	m := &member{}
	m.Container = p.RunContainer(t, name, testbed.PodSpec{Image: b.Image, Command: command, Container: func(c *runtimeapi.ContainerConfig) {
		if change != nil {
			change(c)
		}
		m.config = c
	}})
	p.members = append(p.members, m)
	return m
}

// count is the last number in the container's log.
func (m *member) count(t *testing.T) int {
	t.Helper()
	lines := m.Log(t)
	for i := len(lines) - 1; i >= 0; i-- {
		if fields := strings.Fields(lines[i].Text); len(fields) == 2 {
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatalf("line of the log: %q, want a name and a number", lines[i].Text)
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

// writing begins a checkpoint of the pod into a new directory; done receives its result.
func (p *pod) writing(t *testing.T) (dir string, done <-chan error) {
	t.Helper()
	dir = t.TempDir()
	testbed.Must(t, os.Chmod(dir, 0o700))
	written := make(chan error, 1)
	go func() { written <- p.TryCheckpoint(t, dir, p.containers()...) }()
	return dir, written
}

// checkpointed writes a checkpoint of the pod into a new directory.
func (p *pod) checkpointed(t *testing.T) string {
	t.Helper()
	dir, done := p.writing(t)
	testbed.Mustf(t, <-done, "checkpoint")
	return dir
}

// nothingIn waits until the directory of a checkpoint is empty.
func nothingIn(t *testing.T, dir string) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		if left := files(t, dir); len(left) > 0 {
			return fmt.Errorf("files are left: %q", left)
		}
		return nil
	})
}

// request is a request to restore a pod like p from the checkpoint in dir.
func (b *bed) request(p *pod, dir string) *runtimeapi.RestorePodRequest {
	r := &runtimeapi.RestorePodRequest{CheckpointPath: dir, Config: b.Client.SandboxConfig(""), RuntimeHandler: gvisor}
	for _, m := range p.members {
		r.ContainerConfigs = append(r.ContainerConfigs, proto.CloneOf(m.config))
	}
	return r
}

// created restores the pod that r requests, which is like p. Its containers are not yet started.
func (b *bed) created(t *testing.T, p *pod, r *runtimeapi.RestorePodRequest) *pod {
	t.Helper()
	made, containers, err := b.Client.TryRestore(t, r)
	testbed.Mustf(t, err, "restore")
	again := &pod{Pod: made}
	for i, c := range containers {
		again.members = append(again.members, &member{c, p.members[i].config})
		if got := c.Status(t).GetState(); got != runtimeapi.ContainerState_CONTAINER_CREATED {
			t.Errorf("a container that was not started yet is %v", got)
		}
	}
	return again
}

// restored restores a pod like p from the checkpoint in dir, and starts its containers.
func (b *bed) restored(t *testing.T, p *pod, dir string) *pod {
	t.Helper()
	again := b.created(t, p, b.request(p, dir))
	for _, m := range again.members {
		m.Start(t)
	}
	return again
}

// tryStart starts a container and returns the error.
func (b *bed) tryStart(t *testing.T, c *member) error {
	t.Helper()
	_, err := b.Client.StartContainer(testbed.Within(t, patience), &runtimeapi.StartContainerRequest{ContainerId: c.ID})
	return err
}

// files returns the paths of all files and directories below dir, relative to dir.
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

// value returns the result of a step, and ends the test if the step failed.
func value[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		testbed.Must(t, err)
		return v
	}
}
