package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// callTimeout limits one call. It is far more than any call takes.
const callTimeout = 2 * time.Minute

// pod is a pod of one container that sleeps.
type pod struct {
	sandbox, container string
	config             *runtimeapi.PodSandboxConfig
	// seconds is how long it sleeps; this number identifies its process.
	seconds string

	peer    *peer
	removed bool
}

// phases are the times of the calls of a pod's life.
type phases struct{ run, create, start, stop, remove time.Duration }

func (p phases) ready() time.Duration { return p.run + p.create + p.start }

func (p phases) end() time.Duration { return p.stop + p.remove }

// sleeps makes the command line of each workload unique.
var sleeps atomic.Int64

// newPod starts a pod. A cleanup removes it.
func (tr *trial) newPod() (*pod, phases) {
	tr.Helper()
	p, times, err := tr.tryPod(tr.Context())
	if err != nil {
		tr.Fatalf("%v", err)
	}
	return p, times
}

// tryPod is newPod for other goroutines than the trial's.
func (tr *trial) tryPod(ctx context.Context) (*pod, phases, error) {
	return tr.tryPodOf(ctx, tr.image, false)
}

// tryPodOf is tryPod for an image. If pull is set, it pulls the image after RunPodSandbox, as a
// kubelet does.
func (tr *trial) tryPodOf(ctx context.Context, image string, pull bool) (*pod, phases, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client := tr.peer.Client
	p := &pod{config: client.SandboxConfig(""), seconds: sleepFor(sleeps.Add(1)), peer: tr.peer}
	// The kubelet does this too, before RunPodSandbox.
	if err := os.MkdirAll(p.config.GetLogDirectory(), 0o755); err != nil {
		return nil, phases{}, err
	}
	tr.Cleanup(func() {
		testbed.Checkf(tr, p.clear(), "remove a pod")
	})
	var times phases
	begin := time.Now()
	sandbox, err := client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: p.config, RuntimeHandler: tr.handler})
	if err != nil {
		return nil, phases{}, err
	}
	p.sandbox, times.run = sandbox.GetPodSandboxId(), time.Since(begin)

	if pull {
		spec := &runtimeapi.ImageSpec{Image: image, RuntimeHandler: tr.handler}
		if _, err := client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec, SandboxConfig: p.config}); err != nil {
			return nil, phases{}, err
		}
	}
	begin = time.Now()
	container, err := client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId:  p.sandbox,
		Config:        client.ContainerConfig("main", image, "sleep", p.seconds),
		SandboxConfig: p.config,
	})
	if err != nil {
		return nil, phases{}, err
	}
	p.container, times.create = container.GetContainerId(), time.Since(begin)

	begin = time.Now()
	_, err = client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: p.container})
	times.start = time.Since(begin)
	return p, times, err
}

// remove stops and removes the pod, and returns how long each took.
func (p *pod) remove(ctx context.Context) (times phases, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	begin := time.Now()
	_, err = p.peer.Client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox})
	if err != nil {
		return times, err
	}
	times.stop = time.Since(begin)
	begin = time.Now()
	_, err = p.peer.Client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
	if err != nil {
		return times, err
	}
	times.remove = time.Since(begin)
	p.removed = true
	return times, p.removeCgroups()
}

// clear removes the pod if it still exists.
func (p *pod) clear() error {
	if p.removed || p.sandbox == "" {
		return nil
	}
	_, err := p.remove(context.Background())
	return err
}

// removeCgroups removes the pod's own cgroups, as the kubelet does.
func (p *pod) removeCgroups() error {
	parent := p.config.GetLinux().GetCgroupParent()
	dirs, err := filepath.Glob("/sys/fs/cgroup/*" + parent)
	if err != nil {
		return err
	}
	for _, dir := range append(dirs, "/sys/fs/cgroup"+parent) {
		// The testbed removes cgroups that are still busy now.
		_ = os.Remove(dir)
	}
	return nil
}

// warm runs and removes a pod.
func (tr *trial) warm() { tr.life() }

// pod measures one pod's life, alone.
func (tr *trial) pod() {
	times := tr.life()
	for key, d := range map[string]time.Duration{
		"ready": times.ready(), "run": times.run, "create": times.create, "start": times.start,
		"end": times.end(), "stop": times.stop, "remove": times.remove,
	} {
		tr.record(key, milliseconds(d))
	}
}

// life starts a pod, waits a moment, and removes it.
func (tr *trial) life() phases {
	tr.Helper()
	p, times := tr.newPod()
	time.Sleep(20 * time.Millisecond) // background work of the start must not slow down the stop
	ends, err := p.remove(tr.Context())
	testbed.Mustf(tr, err, "stop and remove a pod")
	times.stop, times.remove = ends.stop, ends.remove
	return times
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// exec runs `true` in a container by CRI and by the runtime alone, alternately.
func (tr *trial) exec() {
	p, _ := tr.newPod()
	const times = 10
	var took, bare []float64
	for n := range times + 1 {
		byCRI, byRuntime := tr.execSync(p), tr.bareExec(p)
		if n == 0 {
			continue // the first exec in a container has extra costs
		}
		tr.record("exec", byCRI)
		tr.record("bare", byRuntime)
		took, bare = append(took, byCRI), append(bare, byRuntime)
	}
	tr.record("overBare", median(took)/median(bare))
}

func (tr *trial) execSync(p *pod) float64 {
	tr.Helper()
	begin := time.Now()
	response, err := tr.peer.Client.ExecSync(tr.Context(), &runtimeapi.ExecSyncRequest{
		ContainerId: p.container, Cmd: []string{"true"}, Timeout: int64(callTimeout.Seconds()),
	})
	took := time.Since(begin)
	if err != nil || response.GetExitCode() != 0 {
		tr.Fatalf("exec true: exit code %d, %v", response.GetExitCode(), err)
	}
	return milliseconds(took)
}

func (tr *trial) bareExec(p *pod) float64 {
	tr.Helper()
	command := exec.CommandContext(tr.Context(), tr.runtime, "--root", tr.peer.runtimeRoot(tr.handler), "exec", p.container, "true")
	begin := time.Now()
	output, err := command.CombinedOutput()
	took := time.Since(begin)
	if err != nil {
		tr.Fatalf("%s: %v: %s", command, err, output)
	}
	return milliseconds(took)
}
