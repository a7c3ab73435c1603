// Package nri runs a real NRI plugin against a real berth: a process that uses the library's
// stub. The tests look inside the containers for what the plugin changes.
package nri

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// bed is a berth that plugins can connect to.
type bed struct {
	*testbed.Bed
	socket string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "bt-nri-") // the path of a socket must be short
	testbed.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &bed{socket: filepath.Join(dir, "nri.sock")}
	b.Bed = testbed.StartBed(t, "nri/busybox:1", testbed.Options{
		DefaultRuntime: "runc", Runtimes: map[string]string{"runc": testbed.Part(t, testbed.Runc)},
		Config: fmt.Sprintf("[runtimes.shim]\nruntime_path = %q\noptions = { BinaryName = %q }\n[nri]\nplugin_request_timeout = \"3s\"\nsocket_path = %q\n",
			testbed.Part(t, testbed.RuncShim), testbed.Part(t, testbed.Runc), b.socket),
	})
	return b
}

// sleeper is a pod whose container runs until it is stopped.
func (b *bed) sleeper(name string, annotations map[string]string) testbed.PodSpec {
	return testbed.PodSpec{
		Name: name, Image: b.Image, Command: []string{"sleep", "3600"},
		Container: func(c *runtimeapi.ContainerConfig) { c.Annotations = annotations },
	}
}

func (b *bed) update(t *testing.T, c *testbed.Container, bytes int64) {
	t.Helper()
	_, err := b.Client.UpdateContainerResources(testbed.Within(t, time.Minute), &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: c.ID, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: bytes},
	})
	testbed.Must(t, err)
}

// memoryOf returns the memory limit in the status, and that in the container's cgroup.
func memoryOf(t *testing.T, c *testbed.Container) (inStatus, inCgroup int64) {
	t.Helper()
	text := c.Exec(t, "sh", "-c", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null || true")
	inCgroup, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	testbed.Mustf(t, err, "the limit in the container's cgroup is %q", text)
	return c.Status(t).GetResources().GetLinux().GetMemoryLimitInBytes(), inCgroup
}

func wantMemory(t *testing.T, c *testbed.Container, want int64) {
	t.Helper()
	if inStatus, inCgroup := memoryOf(t, c); inStatus != want || inCgroup != want {
		t.Errorf("the limit is %d in the status and %d in the cgroup, want %d", inStatus, inCgroup, want)
	}
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("the plugin received\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// TestLife checks the adjustments of a container, and that the plugin receives all events of its
// pod in order, under an OCI runtime and under containerd's shim.
func TestLife(t *testing.T) {
	b := newBed(t)
	p := startPlugin(t, b.socket)
	gift := t.TempDir()
	if err := os.WriteFile(filepath.Join(gift, "hello"), []byte("from the host"), 0o644); err != nil { //nolint:gosec // the container reads it
		t.Fatal(err)
	}
	for _, handler := range []string{"runc", "shim"} {
		t.Run(handler, func(t *testing.T) {
			p.forget(t)
			spec := b.sleeper("life-"+handler, map[string]string{wantAdjust: gift})
			spec.Handler = handler
			pod := b.Client.RunPod(t, spec)
			c := pod.Container
			for command, want := range map[string]string{
				"echo $NRI_ENV":  "by plugin",
				"cat /nri/hello": "from the host",
				"stat -c %F:%t:%T /dev/nri-null; echo x > /dev/nri-null": "character special file:1:3",
				"ulimit -n; ulimit -Hn":                                  "555\n777",
			} {
				testbed.Same(t, strings.TrimSpace(c.Exec(t, "sh", "-c", command)), want, "%s prints", command)
			}
			if c.TryExec(t, "sh", "-c", "echo x > /nri/hello").ExitCode == 0 {
				t.Error("the plugin's read-only mount can be written")
			}
			r, err := b.Client.ContainerStatus(testbed.Within(t, time.Minute), &runtimeapi.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
			testbed.Must(t, err)
			if !strings.Contains(r.GetInfo()["info"], `"nri.test/note":"by plugin"`) {
				t.Errorf("the plugin's annotation is not in the spec: %s", r.GetInfo()["info"])
			}
			wantMemory(t, c, 48<<20)

			// The plugin changes a new limit to half of it.
			b.update(t, c, 200<<20)
			wantMemory(t, c, 100<<20)
			if _, err := b.Client.UpdatePodSandboxResources(testbed.Within(t, time.Minute), &runtimeapi.UpdatePodSandboxResourcesRequest{
				PodSandboxId: pod.ID, Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 5 << 20},
			}); err != nil {
				t.Fatal(err)
			}
			c.Stop(t, 0)
			pod.Stop(t)
			pod.Stop(t)
			ip := pod.IP(t)
			pod.Remove(t)
			same(t, p.told(t),
				"run life-"+handler+" "+ip+" 3", "create main", "postcreate main CONTAINER_CREATED", "start main", "poststart main CONTAINER_RUNNING",
				"update main "+strconv.Itoa(200<<20), "postupdate main "+strconv.Itoa(100<<20),
				"updatepod life-"+handler+" "+strconv.Itoa(5<<20), "postupdatepod life-"+handler,
				"stop main CONTAINER_STOPPED 137", "stoppod life-"+handler+" 3", "remove main", "removepod life-"+handler)
		})
	}
}

// TestEnds checks that plugins receive the stop of a container, whatever caused it.
func TestEnds(t *testing.T) {
	b := newBed(t)
	p := startPlugin(t, b.socket)
	pod := b.Client.RunPod(t, testbed.PodSpec{Name: "ends", Image: b.Image, Command: []string{"sh", "-c", "exit 3"}})
	p.await(t, 1, "stop main CONTAINER_STOPPED 3") // the program exited by itself
	p.forget(t)
	pod.Container.Remove(t)
	same(t, p.told(t), "remove main")

	p.forget(t)
	bad := pod.CreateContainer(t, "bad", testbed.PodSpec{Image: b.Image, Command: []string{"/no/such/program"}})
	if _, err := b.Client.StartContainer(testbed.Within(t, time.Minute), &runtimeapi.StartContainerRequest{ContainerId: bad.ID}); err == nil {
		t.Fatal("a missing program was started")
	}
	bad.Remove(t)
	same(t, p.told(t), "create bad", "postcreate bad CONTAINER_CREATED", "start bad", "stop bad CONTAINER_STOPPED 128", "remove bad")

	p.forget(t)
	pod.CreateContainer(t, "idle", b.sleeper("", nil)).Remove(t)
	pod.RunContainer(t, "busy", b.sleeper("", nil))
	pod.Remove(t)
	same(t, p.told(t), "create idle", "postcreate idle CONTAINER_CREATED", "stop idle CONTAINER_STOPPED 137", "remove idle",
		"create busy", "postcreate busy CONTAINER_CREATED", "start busy", "poststart busy CONTAINER_RUNNING",
		"stop busy CONTAINER_STOPPED 137", "stoppod ends 3", "remove busy", "removepod ends")
}

// TestRefusal checks that nothing is left of a pod or container that a plugin refuses, and that it
// can be created again under the same name.
func TestRefusal(t *testing.T) {
	b := newBed(t)
	atRest := b.Rest(t)
	p := startPlugin(t, b.socket)
	config := b.Client.SandboxConfig("unwelcome")
	config.Annotations = map[string]string{wantRefuse: "yes"}
	_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: config})
	testbed.Refused(t, err, codes.FailedPrecondition, "this pod is not welcome")
	b.NoLeaks(t, b.idle(t, atRest))
	config.Annotations = nil
	r, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: config})
	testbed.Must(t, err)
	same(t, withoutAddresses(p.told(t))[2:], "run unwelcome", "stoppod unwelcome", "removepod unwelcome", "run unwelcome")

	withPod := b.Snapshot(t)
	for annotation, words := range map[string]string{wantRefuse: "this container is not welcome", wantMove: "/elsewhere"} {
		p.forget(t)
		c := b.Client.ContainerConfig("main", b.Image, "sleep", "3600")
		c.Annotations = map[string]string{annotation: "yes"}
		_, err = b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{PodSandboxId: r.GetPodSandboxId(), Config: c, SandboxConfig: config})
		testbed.Refused(t, err, codes.FailedPrecondition, words)
		b.NoLeaks(t, withPod)
		same(t, p.told(t), "create main", "stop main CONTAINER_CREATED 0", "remove main")
		c.Annotations = nil
		again, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{PodSandboxId: r.GetPodSandboxId(), Config: c, SandboxConfig: config})
		testbed.Must(t, err)
		if _, err := b.Client.RemoveContainer(testbed.Within(t, time.Minute), &runtimeapi.RemoveContainerRequest{ContainerId: again.GetContainerId()}); err != nil {
			t.Fatal(err)
		}
	}
	b.NothingLeft(t, atRest)
}

// idle is atRest with the supervisor that now waits for the next pod.
func (b *bed) idle(t *testing.T, atRest testbed.Snapshot) testbed.Snapshot {
	t.Helper()
	now := b.Snapshot(t)
	idle := testbed.Snapshot{}
	for kind, things := range atRest {
		idle[kind] = things
	}
	idle[testbed.Processes] = now[testbed.Processes]
	for _, s := range now[testbed.States] {
		if strings.Contains(s, "/supervisors/") || strings.Contains(s, "/s/") {
			idle[testbed.States] = append(slices.Clone(idle[testbed.States]), s)
		}
	}
	return idle
}

// withoutAddresses keeps the event and its object, which are the same in every run.
func withoutAddresses(lines []string) []string {
	var short []string
	for _, l := range lines {
		short = append(short, strings.Join(strings.Fields(l)[:min(2, len(strings.Fields(l)))], " "))
	}
	return short
}

// TestLatePluginAndRestart registers a plugin after pods exist. The plugin registers again after
// the daemon was killed, and receives all pods both times.
func TestLatePluginAndRestart(t *testing.T) {
	b := newBed(t)
	pod := b.Client.RunPod(t, b.sleeper("old", nil))
	pod.CreateContainer(t, "created", b.sleeper("", nil))
	pod.RunContainer(t, "ended", testbed.PodSpec{Image: b.Image, Command: []string{"true"}}).WaitExit(t)
	stopped := b.Client.RunSandbox(t, testbed.PodSpec{Name: "over"})
	stopped.Stop(t)
	p := startPlugin(t, b.socket)
	const node = "sync [created=CREATED main=RUNNING old over]"
	p.await(t, 1, node)

	b.Kill9(t)
	p.await(t, 1, "cut off")
	b.Start(t)
	p.await(t, 2, node)
	p.forget(t)
	fresh := b.Client.RunPod(t, b.sleeper("fresh", nil))
	fresh.Remove(t)
	pod.Container.Stop(t, 0)
	pod.Remove(t)
	stopped.Remove(t)
	same(t, withoutAddresses(p.told(t)), "run fresh", "create main", "postcreate main", "start main", "poststart main", "stop main", "stoppod fresh", "remove main", "removepod fresh",
		"stop main", "stop created", "stoppod old", "remove main", "remove created", "removepod old", "removepod over")
}

// TestUpdates has the plugin change existing containers: when another one is created, and at any
// time. A change outlives a restart of berth.
func TestUpdates(t *testing.T) {
	b := newBed(t)
	p := startPlugin(t, b.socket)
	pod := b.Client.RunPod(t, b.sleeper("pair", nil))
	pod.RunContainer(t, "second", b.sleeper("", map[string]string{wantOther: pod.Container.ID + "=" + strconv.Itoa(96<<20)}))
	wantMemory(t, pod.Container, 96<<20)
	// An update of a container that does not exist does not make the creation fail.
	pod.CreateContainer(t, "third", b.sleeper("", map[string]string{wantOther: strings.Repeat("0", 64) + "=" + strconv.Itoa(96<<20)}))

	ask := func(id string, bytes int) {
		t.Helper()
		if _, err := fmt.Fprintf(p.stdin, "%s %d\n", id, bytes); err != nil {
			t.Fatal(err)
		}
	}
	ask(pod.Container.ID, 80<<20)
	p.await(t, 1, "updated 0 true")
	wantMemory(t, pod.Container, 80<<20)
	ask(pod.Container.ID, 1) // the kernel refuses this limit
	p.await(t, 1, "updated 0 false")
	wantMemory(t, pod.Container, 80<<20)
	b.Restart(t)
	wantMemory(t, pod.Container, 80<<20)
}
