package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

const (
	// rounds divide a run. The first is the warm-up. After each of the others, the node is compared
	// with its state after the warm-up.
	rounds = 10
	// calm is the last round in which the daemon is not killed, so that one process serves most of
	// the pods.
	calm = 6
	// workers is how many lives run in parallel.
	workers = 6
	// images is how many images are pulled and removed.
	images = 8
)

// soak is a berth under test.
type soak struct {
	*testbed.Bed
	residents []*testbed.Pod // run from the beginning to the end
	churn     chan string    // images that no life uses now

	disturb sync.Mutex   // held during a kill or a reload
	kills   atomic.Int64 // incremented before and after each kill
	extra   bool         // whether the last reload has added a handler

	interrupted, failed atomic.Int64
}

func run(t testbed.T, lives int) {
	handlers := map[string]string{}
	for _, part := range []string{testbed.Runc, testbed.Crun, testbed.Runsc} {
		handlers[part] = testbed.Part(t, part)
	}
	s := &soak{
		Bed: testbed.StartBed(t, "soak/busybox:1", testbed.Options{
			Runtimes: handlers,
			CNI:      testbed.NewCNI(t),
			Config:   "[log]\nlevel = \"info\"\n\n[metrics]\naddress = \"" + metricsAddress + "\"\n",
		}),
		churn: make(chan string, images),
	}
	for i := range images {
		layer := testbed.WithLayer(testbed.File{Path: "number", Mode: 0o644, Body: fmt.Append(nil, i)})
		s.churn <- s.Registry.Push(t, fmt.Sprintf("soak/churn-%d:1", i), testbed.Busybox(t, layer))
	}
	for handler := range handlers {
		s.residents = append(s.residents, s.Client.RunPod(t, s.sleeper(handler, "resident-"+handler)))
	}
	start := time.Now()
	var base reading
	for round := range rounds {
		s.round(t, round, lives/rounds)
		var now reading
		if round == 0 {
			base = s.settled(t, nil)
			now = base
		} else {
			now = s.settled(t, &base)
		}
		t.Logf("%5d lives in %v, %d interrupted by kills: %s",
			(round+1)*(lives/rounds), time.Since(start).Round(time.Second), s.interrupted.Load(), now)
		if t.Failed() || t.Context().Err() != nil {
			return
		}
	}
}

func (s *soak) sleeper(handler, name string) testbed.PodSpec {
	return testbed.PodSpec{Handler: handler, Image: s.Image, Name: name, Command: []string{"sleep", "3600"}}
}

// round runs size lives, and disturbs berth during them.
func (s *soak) round(t testbed.T, round, size int) {
	t.Helper()
	var next atomic.Int64
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for t.Context().Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= size {
					return
				}
				due := func(times int) bool { return i%max(1, size/times) == 0 }
				if due(4) {
					s.reload(t)
				}
				if kills := round > calm || round == 0 && i < size/2; kills && due(10) {
					s.kill(t)
				}
				s.live(t, round*size+i)
			}
		})
	}
	running.Wait()
	if s.extra {
		s.reload(t)
	}
	// An interrupted life may have left its image.
	for range images {
		image := <-s.churn
		s.removeImage(t, image)
		s.churn <- image
	}
	for _, pod := range s.residents {
		testbed.Same(t, pod.Container.Status(t).GetState(), runtimeapi.ContainerState_CONTAINER_RUNNING, "a pod from the beginning is")
		testbed.Same(t, pod.Container.Exec(t, "echo", "alive"), "alive\n", "exec in a pod from the beginning printed")
	}
}

// live runs life n. A life that was interrupted by a kill is removed and repeated.
func (s *soak) live(t testbed.T, n int) {
	for attempt := range 20 {
		name := fmt.Sprintf("life-%d-%d", n, attempt)
		before := s.kills.Load()
		err := testbed.Run(t.Context(), name, io.Discard, func(t testbed.T) { s.life(t, n, name) })
		if err == nil || t.Context().Err() != nil {
			return
		}
		s.forget(t, name)
		killed := before%2 == 1 || s.kills.Load() != before
		if text := err.Error(); !killed || !strings.Contains(text, "code = Unavailable") && !strings.Contains(text, session) {
			// The comparison names what failed lives have left; a few are enough.
			if s.failed.Add(1) <= 10 {
				t.Errorf("life %d: %v", n, err)
			}
			return
		}
		s.interrupted.Add(1)
	}
	t.Errorf("life %d was interrupted 20 times", n)
}

// session is in the errors of streaming sessions, which have no code.
const session = "exec session"

// life runs, uses and removes a pod.
func (s *soak) life(t testbed.T, n int, name string) {
	handler := []string{testbed.Runc, testbed.Crun}[n%2]
	if n%10 == 9 {
		handler = testbed.Runsc
	}
	spec := s.sleeper(handler, name)
	if n%16 == 0 {
		spec.Sandbox = func(config *runtimeapi.PodSandboxConfig) {
			config.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: int32(20_000 + n%10_000)}}
		}
	}
	if n%20 == 1 {
		spec.Image = <-s.churn
		t.Cleanup(func() { s.churn <- spec.Image })
	}
	pod := s.Client.RunPod(t, spec)
	defer os.RemoveAll(pod.Config.GetLogDirectory())
	defer testbed.RemoveCgroup(pod.Config.GetLinux().GetCgroupParent())
	testbed.Same(t, pod.Container.Exec(t, "echo", name), name+"\n", "exec printed")
	if n%4 == 2 {
		pod.Container.Stop(t, 0)
		testbed.Same(t, pod.Container.WaitExit(t).GetExitCode(), 137, "the stopped container's exit code is")
		spec.Command = []string{"sh", "-c", "echo bye; exit 7"}
		second := pod.RunContainer(t, "second", spec)
		testbed.Same(t, second.WaitExit(t).GetExitCode(), 7, "the second container's exit code is")
		second.WaitLog(t, "bye")
	}
	if n%8 == 3 {
		s.lists(t)
	}
	if n%8 == 5 {
		s.session(t, pod.Container.ID, name)
	}
	pod.Remove(t)
	if spec.Image != s.Image {
		s.removeImage(t, spec.Image)
	}
}

// session has a container print a text through the streaming server.
func (s *soak) session(t testbed.T, container, text string) {
	t.Helper()
	ctx := testbed.Within(t, time.Minute)
	response, err := s.Client.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: container, Cmd: []string{"echo", text}, Stdout: true, Stderr: true})
	testbed.Mustf(t, err, "exec")
	at, err := url.Parse(response.GetUrl())
	testbed.Mustf(t, err, "parse the URL of an exec")
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, at)
	testbed.Mustf(t, err, session)
	var out strings.Builder
	testbed.Mustf(t, executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: io.Discard}), session)
	testbed.Same(t, out.String(), text+"\n", session+" printed")
}

// lists makes the calls that a kubelet repeats.
func (s *soak) lists(t testbed.T) {
	ctx := testbed.Within(t, time.Minute)
	_, err := s.Client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	testbed.Mustf(t, err, "list sandboxes")
	_, err = s.Client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	testbed.Mustf(t, err, "list containers")
	_, err = s.Client.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	testbed.Mustf(t, err, "list statistics")
	_, err = s.Client.RuntimeServiceClient.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	testbed.Mustf(t, err, "status")
}

func (s *soak) removeImage(t testbed.T, image string) {
	_, err := s.Client.RemoveImage(testbed.Within(t, time.Minute), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	testbed.Mustf(t, err, "remove image %s", image)
}

// forget removes what an unfinished life has left.
func (s *soak) forget(t testbed.T, name string) {
	testbed.Eventually(t, time.Minute, func() error {
		ctx := testbed.Within(t, time.Minute)
		list, err := s.Client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		for _, sandbox := range list.GetItems() {
			if err == nil && sandbox.GetMetadata().GetName() == name {
				// It also stops the sandbox.
				_, err = s.Client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox.GetId()})
			}
		}
		return err
	})
	testbed.RemoveCgroup(filepath.Join(s.Cgroup, name))
	logs, err := filepath.Glob(filepath.Join(s.Client.LogRoot, "*_"+name+"_*"))
	testbed.Must(t, err)
	for _, dir := range logs {
		testbed.Check(t, os.RemoveAll(dir))
	}
}

// reload adds a handler, or removes it.
func (s *soak) reload(t testbed.T) {
	s.disturb.Lock()
	defer s.disturb.Unlock()
	s.extra = !s.extra
	text := ""
	if s.extra {
		text = fmt.Sprintf("[runtimes.extra]\nruntime_path = %q\n", testbed.Part(t, testbed.Crun))
	}
	s.DropIn(t, "60-extra", text)
	command := exec.CommandContext(t.Context(), filepath.Join(s.Bin, "berth"), "reload", "--wait", "--admin-socket", filepath.Join(s.Dir, "admin.sock"))
	out, err := command.CombinedOutput()
	testbed.Checkf(t, err, "reload: %s", out)
}

// kill kills at a random moment, in turns, the daemon, a supervisor, or the daemon and all supervisors.
func (s *soak) kill(t testbed.T) {
	s.disturb.Lock()
	defer s.disturb.Unlock()
	time.Sleep(rand.N(500 * time.Millisecond))
	turn := s.kills.Add(1) / 2 % 3
	defer s.kills.Add(1)
	supervisors := s.supervisors(t)
	if turn != 1 {
		s.Kill9(t)
	} else if len(supervisors) > 0 {
		one := rand.IntN(len(supervisors))
		supervisors = supervisors[one : one+1]
	}
	if turn != 0 {
		for _, pid := range supervisors {
			_ = unix.Kill(pid, unix.SIGKILL) // an idle one may have exited
		}
	}
	if turn == 1 {
		return
	}
	s.Start(t)
	// Clients reconnect after a pause.
	testbed.Eventually(t, time.Minute, func() error {
		_, err := s.Client.Version(t.Context(), &runtimeapi.VersionRequest{})
		return err
	})
}

// supervisors returns the pids of this berth's supervisors.
func (s *soak) supervisors(t testbed.T) []int {
	var pids []int
	for _, process := range s.Snapshot(t)[testbed.Processes] {
		var pid int
		if _, err := fmt.Sscanf(process, "%d", &pid); err == nil && strings.Contains(process, " serve --dir "+s.State+"/") {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}
