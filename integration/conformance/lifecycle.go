package conformance

import (
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var containerChecks = []check{
	{name: "create, start, stop, remove", run: containerLife},
	{name: "create does not run the program", run: createDoesNotRun},
	{name: "status is whole in every state", run: statusWhole},
	{name: "labels and annotations are kept byte by byte", daemon: true, run: containerEcho},
	{name: "attempts", daemon: true, run: containerAttempts},
	{name: "a refused create frees its name", daemon: true, run: refusedCreateFreesName},
	{name: "concurrent duplicates make one container", daemon: true, run: containerDuplicates},
	{name: "second start is an error", run: secondStart},
	{name: "start of a removed or missing container", daemon: true, run: startMissing},
	{name: "remove in each state", run: removeEachState},
	{name: "remove keeps the log", daemon: true, run: removeKeepsLog},
	{name: "stop and remove are idempotent", run: containerIdempotent},
	{name: "list filters", daemon: true, run: containerFilters},
	{name: "no container is listed without its sandbox", daemon: true, run: listsAgree},
	{name: "verbose status has info", daemon: true, run: containerVerbose},
	{name: "several containers in a pod", run: severalContainers},
	{name: "sandbox_config may be left out", daemon: true, berth: true, run: createWithoutSandboxConfig},
}

func containerLife(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.create(t, forever())
	if len(c.ID) != 64 {
		t.Errorf("container id %q does not have 64 characters", c.ID)
	}
	if st := c.status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED || st.GetStartedAt() != 0 {
		t.Errorf("after create: %v, started at %d", st.GetState(), st.GetStartedAt())
	}
	must(t, c.tryStart(t), "StartContainer")
	st := c.status(t) // the very next status, with no wait
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || st.GetStartedAt() < st.GetCreatedAt() {
		t.Errorf("after start: %v, created at %d, started at %d", st.GetState(), st.GetCreatedAt(), st.GetStartedAt())
	}
	c.stop(t, time.Second)
	st = c.status(t)
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetFinishedAt() < st.GetStartedAt() {
		t.Errorf("after stop: %v, started at %d, finished at %d", st.GetState(), st.GetStartedAt(), st.GetFinishedAt())
	}
	c.remove(t)
	_, err := n.Runtime.ContainerStatus(call(t), &runtimeapi.ContainerStatusRequest{ContainerId: c.ID})
	mustFail(t, err, "ContainerStatus after remove", codes.NotFound)
	testbed.Empty(t, n.listContainers(t, &runtimeapi.ContainerFilter{Id: c.ID}), "still listed")
}

func createDoesNotRun(t *testing.T, n *node) {
	p := n.pod(t)
	dir := t.TempDir()
	c := p.create(t, sh("touch /out/ran"), mount(&runtimeapi.Mount{ContainerPath: "/out", HostPath: dir}))
	time.Sleep(300 * time.Millisecond)
	if m, _ := filepath.Glob(dir + "/*"); len(m) != 0 {
		t.Fatalf("CreateContainer ran the program: %v", m)
	}
	must(t, c.tryStart(t), "StartContainer")
	c.waitExit(t)
	if m, _ := filepath.Glob(dir + "/*"); len(m) != 1 {
		t.Errorf("StartContainer did not run the program: %v", m)
	}
}

// statusWhole checks, in every state of a container, the fields that the kubelet needs.
func statusWhole(t *testing.T, n *node) {
	p, dir := n.pod(t), t.TempDir()
	c := p.create(t, forever(), mount(&runtimeapi.Mount{ContainerPath: "/data", HostPath: dir}), func(c *runtimeapi.ContainerConfig) {
		c.Annotations = map[string]string{"io.kubernetes.container.hash": "5eaf00d"}
		c.Metadata.Attempt = 4
	})
	look := func(when string) {
		st := c.status(t)
		if st.GetId() != c.ID || st.GetMetadata().GetName() == "" || st.GetCreatedAt() == 0 {
			t.Errorf("%s: id %q, metadata %v, created_at %d", when, st.GetId(), st.GetMetadata(), st.GetCreatedAt())
		}
		if st.GetImage().GetImage() == "" || st.GetImageRef() == "" {
			t.Errorf("%s: image %v, image_ref %q", when, st.GetImage(), st.GetImageRef())
		}
		testbed.Same(t, st.GetImageId(), n.imageID, "%s: image_id is", when)
		testbed.Same(t, st.GetLogPath(), c.logFile(), "%s: log_path is", when)
		if st.GetUser().GetLinux() == nil || st.GetResources().GetLinux() == nil {
			t.Errorf("%s: user %v, resources %v", when, st.GetUser(), st.GetResources())
		}
		if m := st.GetMounts(); len(m) != 1 || m[0].GetHostPath() != dir || m[0].GetContainerPath() != "/data" {
			t.Errorf("%s: mounts are %v", when, m)
		}
		if n.Berth && st.GetStopSignal() != runtimeapi.Signal_SIGNAL_SIGTERM {
			t.Errorf("%s: stop_signal is %v", when, st.GetStopSignal())
		}
		sameMap(t, when+": labels", st.GetLabels(), c.Config.GetLabels())
		sameMap(t, when+": annotations", st.GetAnnotations(), c.Config.GetAnnotations())
		items := n.listContainers(t, &runtimeapi.ContainerFilter{Id: c.ID})
		if len(items) != 1 {
			t.Fatalf("%s: listed %d times", when, len(items))
		}
		l := items[0]
		if l.GetState() != st.GetState() || l.GetImageId() != st.GetImageId() || l.GetImageRef() != st.GetImageRef() ||
			l.GetCreatedAt() != st.GetCreatedAt() || l.GetPodSandboxId() != p.ID || !proto.Equal(l.GetMetadata(), st.GetMetadata()) {
			t.Errorf("%s: the list says %v, status says %v", when, l, st)
		}
		sameMap(t, when+": listed labels", l.GetLabels(), c.Config.GetLabels())
		sameMap(t, when+": listed annotations", l.GetAnnotations(), c.Config.GetAnnotations())
	}
	look("CREATED")
	must(t, c.tryStart(t), "StartContainer")
	look("RUNNING")
	c.stop(t, time.Second)
	look("EXITED")
}

func containerEcho(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.create(t, forever(), func(c *runtimeapi.ContainerConfig) {
		c.Metadata.Attempt = 3
		c.Labels, c.Annotations = oddLabels(), oddLabels()
		c.Annotations["io.kubernetes.container.hash"] = "9a7f3c21"
	})
	st := c.status(t)
	sameMap(t, "labels", st.GetLabels(), c.Config.GetLabels())
	sameMap(t, "annotations", st.GetAnnotations(), c.Config.GetAnnotations())
	if !proto.Equal(st.GetMetadata(), c.Config.GetMetadata()) {
		t.Errorf("metadata is %v, sent %v", st.GetMetadata(), c.Config.GetMetadata())
	}
	if got := st.GetImage().GetImage(); n.Berth && got != n.Image.Busybox {
		t.Errorf("image.image is %q, the pod's author wrote %q", got, n.Image.Busybox)
	}
	// If the author's text is not a name of the image, status has a tag of the image.
	other := c.pod.create(t, forever(), func(c *runtimeapi.ContainerConfig) { c.Image.UserSpecifiedImage = "written/by-the:author" })
	if got := other.status(t).GetImage().GetImage(); got != n.Image.Busybox && got != n.Image.BusyboxAlias {
		t.Errorf("image.image is %q, which is not a tag of the image", got)
	}
	item := n.listContainers(t, &runtimeapi.ContainerFilter{Id: c.ID})[0]
	sameMap(t, "listed labels", item.GetLabels(), c.Config.GetLabels())
	sameMap(t, "listed annotations", item.GetAnnotations(), c.Config.GetAnnotations())
}

func containerAttempts(t *testing.T, n *node) {
	p := n.pod(t)
	first := p.start(t, sh("exit 1"))
	first.waitExit(t)
	same, err := p.tryCreate(t, first.Config)
	if err == nil && same.ID != first.ID {
		t.Fatal("a second container was made for a name and attempt that exist")
	}
	next := proto.Clone(first.Config).(*runtimeapi.ContainerConfig)
	next.Metadata.Attempt = 1
	next.LogPath = strings.Replace(next.LogPath, "0.log", "1.log", 1)
	second, err := p.tryCreate(t, next)
	must(t, err, "CreateContainer of the next attempt")
	testbed.Same(t, second.status(t).GetMetadata().GetAttempt(), 1, "attempt is")
	if a, b := first.status(t).GetCreatedAt(), second.status(t).GetCreatedAt(); b <= a {
		t.Errorf("the second attempt was created at %d, the first at %d", b, a)
	}
	first.remove(t)
	if _, err := p.tryCreate(t, first.Config); err != nil {
		t.Errorf("the name is not free after remove: %v", err)
	}
}

func refusedCreateFreesName(t *testing.T, n *node) {
	p := n.pod(t)
	bad := p.containerConfig(forever())
	bad.Image = &runtimeapi.ImageSpec{Image: "sha256:" + strings.Repeat("0", 64)}
	_, err := p.tryCreate(t, bad)
	mustFail(t, err, "CreateContainer with an absent image")
	bad.Image = &runtimeapi.ImageSpec{Image: n.imageID}
	_, err = p.tryCreate(t, bad)
	must(t, err, "CreateContainer of the same name and attempt with the image present")
}

func containerDuplicates(t *testing.T, n *node) {
	p := n.pod(t)
	cfg := p.containerConfig(forever())
	ids := map[string]bool{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if c, err := p.tryCreate(t, cfg); err == nil {
				mu.Lock()
				defer mu.Unlock()
				ids[c.ID] = true
			}
		})
	}
	wg.Wait()
	testbed.Same(t, len(ids), 1, "containers: concurrent creates of one name made")
	if got := n.listContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: p.ID}); len(got) != 1 {
		t.Errorf("%d containers listed", len(got))
	}
}

func secondStart(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, forever())
	mustFail(t, c.tryStart(t), "StartContainer of a RUNNING container")
	testbed.Same(t, c.status(t).GetState(), runtimeapi.ContainerState_CONTAINER_RUNNING, "the refused start left it")
	c.stop(t, time.Second)
	mustFail(t, c.tryStart(t), "StartContainer of an EXITED container")
}

func startMissing(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.create(t, forever())
	c.remove(t)
	n.rejects(t, c.tryStart(t), "StartContainer of a removed container", codes.NotFound)
}

func removeEachState(t *testing.T, n *node) {
	p := n.pod(t)
	for name, c := range map[string]*container{
		"CREATED": p.create(t, forever()),
		"RUNNING": p.start(t, sh("trap '' TERM; while :; do sleep 1; done")),
		"EXITED":  p.start(t, sh("exit 0")),
	} {
		if name == "EXITED" {
			c.waitExit(t)
		}
		c.remove(t)
		if got := n.listContainers(t, &runtimeapi.ContainerFilter{Id: c.ID}); len(got) != 0 {
			t.Errorf("%s: still listed after remove", name)
		}
	}
	testbed.Same(t, p.status(t).GetState(), runtimeapi.PodSandboxState_SANDBOX_READY, "the sandbox is")
}

func removeKeepsLog(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, sh("echo kept"))
	c.waitExit(t)
	want := c.logged(t)
	c.remove(t)
	if got := readLog(t, c.logFile()); got.stdout != want.stdout || got.stdout != "kept\n" {
		t.Errorf("after remove the log says %q, before %q", got.stdout, want.stdout)
	}
}

func containerIdempotent(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, forever())
	c.stop(t, time.Second)
	first := c.status(t)
	c.stop(t, time.Second)
	c.stop(t, 0)
	if again := c.status(t); again.GetExitCode() != first.GetExitCode() || again.GetFinishedAt() != first.GetFinishedAt() {
		t.Errorf("a second stop changed %v to %v", first, again)
	}
	c.remove(t)
	c.remove(t)
	c.stop(t, time.Second)
}

func containerFilters(t *testing.T, n *node) {
	p, other := n.pod(t), n.pod(t)
	shared := map[string]string{"suite": p.ID}
	label := func(role string) containerOption {
		return func(c *runtimeapi.ContainerConfig) {
			c.Labels = map[string]string{"suite": p.ID, "role": role}
		}
	}
	created := p.create(t, forever(), label("created"))
	running := p.start(t, forever(), label("running"))
	exited := other.start(t, sh("exit 0"), label("exited"))
	exited.waitExit(t)
	state := func(s runtimeapi.ContainerState) *runtimeapi.ContainerStateValue {
		return &runtimeapi.ContainerStateValue{State: s}
	}
	for name, c := range map[string]struct {
		filter *runtimeapi.ContainerFilter
		want   []*container
	}{
		"label":               {&runtimeapi.ContainerFilter{LabelSelector: shared}, []*container{created, running, exited}},
		"label and sandbox":   {&runtimeapi.ContainerFilter{LabelSelector: shared, PodSandboxId: p.ID}, []*container{created, running}},
		"two labels":          {&runtimeapi.ContainerFilter{LabelSelector: running.Config.Labels}, []*container{running}},
		"created":             {&runtimeapi.ContainerFilter{LabelSelector: shared, State: state(runtimeapi.ContainerState_CONTAINER_CREATED)}, []*container{created}},
		"running":             {&runtimeapi.ContainerFilter{LabelSelector: shared, State: state(runtimeapi.ContainerState_CONTAINER_RUNNING)}, []*container{running}},
		"exited":              {&runtimeapi.ContainerFilter{LabelSelector: shared, State: state(runtimeapi.ContainerState_CONTAINER_EXITED)}, []*container{exited}},
		"id":                  {&runtimeapi.ContainerFilter{Id: exited.ID}, []*container{exited}},
		"id of another state": {&runtimeapi.ContainerFilter{Id: exited.ID, State: state(runtimeapi.ContainerState_CONTAINER_RUNNING)}, nil},
		"id of another pod":   {&runtimeapi.ContainerFilter{Id: exited.ID, PodSandboxId: p.ID}, nil},
		"missing id":          {&runtimeapi.ContainerFilter{Id: strings.Repeat("ef", 32)}, nil},
		"missing sandbox":     {&runtimeapi.ContainerFilter{PodSandboxId: strings.Repeat("ef", 32)}, nil},
	} {
		want, got := map[string]bool{}, map[string]bool{}
		for _, w := range c.want {
			want[w.ID] = true
		}
		for _, g := range n.listContainers(t, c.filter) {
			got[g.GetId()] = true
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: listed %v, want %v", name, got, want)
		}
	}
}

// listsAgree lists while pods are created and removed. It lists the sandboxes before and after the
// containers: a sandbox is created before its containers and removed after them, so one of the two
// lists has it.
func listsAgree(t *testing.T, n *node) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(stop)
		for range 6 {
			p, err := n.tryPod(t, n.podConfig(t))
			if err != nil {
				t.Error(err)
				return
			}
			if c, err := p.tryCreate(t, p.containerConfig(forever())); err == nil {
				_ = c.tryStart(t)
			}
			p.destroy(t)
		}
	})
	for {
		select {
		case <-stop:
			wg.Wait()
			return
		case <-time.After(time.Millisecond): // leaves processor time to the pods
		}
		before := n.listSandboxes(t, nil)
		containers := n.listContainers(t, nil)
		after := n.listSandboxes(t, nil)
		known := map[string]bool{}
		for _, s := range append(before, after...) {
			known[s.GetId()] = true
		}
		for _, c := range containers {
			if !known[c.GetPodSandboxId()] {
				t.Errorf("container %s is listed, its sandbox %s is not", c.GetId(), c.GetPodSandboxId())
			}
		}
	}
}

func containerVerbose(t *testing.T, n *node) {
	c := n.pod(t).create(t, forever())
	for _, verbose := range []bool{false, true} {
		r, err := n.Runtime.ContainerStatus(call(t), &runtimeapi.ContainerStatusRequest{ContainerId: c.ID, Verbose: verbose})
		must(t, err, "ContainerStatus")
		if got := len(r.GetInfo()) > 0; got != verbose {
			t.Errorf("verbose %v: info is %v", verbose, r.GetInfo())
		}
	}
}

func severalContainers(t *testing.T, n *node) {
	p := n.pod(t)
	var all []*container
	for i := range 4 {
		all = append(all, p.start(t, sh("trap 'exit 0' TERM; echo container "+string(rune('a'+i))+"; while :; do sleep 1 & wait $!; done")))
	}
	for i, c := range all {
		testbed.Same(t, c.line(t, "echo", "alive"), "alive", "container %d: exec printed", i)
	}
	all[1].stop(t, time.Second)
	for i, c := range all {
		want := runtimeapi.ContainerState_CONTAINER_RUNNING
		if i == 1 {
			want = runtimeapi.ContainerState_CONTAINER_EXITED
		}
		testbed.Same(t, c.status(t).GetState(), want, "container %d is", i)
		c.waitLog(t, "container "+string(rune('a'+i))+"\n")
	}
}

func createWithoutSandboxConfig(t *testing.T, n *node) {
	p := n.pod(t)
	_, err := n.Runtime.CreateContainer(call(t), &runtimeapi.CreateContainerRequest{PodSandboxId: p.ID, Config: p.containerConfig(forever())})
	if err != nil {
		mustFail(t, err, "CreateContainer without sandbox_config", codes.InvalidArgument)
	}
}
