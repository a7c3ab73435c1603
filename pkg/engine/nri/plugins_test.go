package nri

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

var (
	pod  = thing{pod: "pod"}
	ctr  = thing{pod: "pod", container: "ctr"}
	done = func() error { return nil }
)

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestNothingToDoIsNil(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"disabled":  func(c *Config) { c.Disable = true },
		"no socket": func(c *Config) { c.SocketPath = "" },
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t)
			change(&c)
			p, err := Open(c, &node{})
			if p != nil || err != nil {
				t.Errorf("got %v, %v", p, err)
			}
		})
	}
}

func TestNilCostsNothing(t *testing.T) {
	var p *Plugins
	ctx := context.Background()
	var subject Subject = ctr
	allocs := testing.AllocsPerRun(100, func() {
		_ = p.RunPodSandbox(ctx, subject, done)
		_, _ = p.CreateContainer(ctx, subject)
		_ = p.Shown(subject, done)
		p.PostCreateContainer(ctx, subject)
		_ = p.StartContainer(ctx, subject)
		p.PostStartContainer(ctx, subject)
		_, _ = p.UpdateContainer(ctx, subject, nil)
		p.StopContainer(ctx, subject)
		p.RemoveContainer(ctx, subject)
		p.StopPodSandbox(ctx, subject)
		p.RemovePodSandbox(ctx, subject)
	})
	if allocs > 0 {
		t.Errorf("a pod's life without plugins makes %v allocations", allocs)
	}
	test.Check(t, errors.Join(p.Start(), p.Close()))
}

func TestOpenRefuses(t *testing.T) {
	t.Run("a file that is not a plugin", func(t *testing.T) {
		c := testConfig(t)
		test.Must(t, os.Mkdir(c.PluginPath, 0o755))
		for name, mode := range map[string]os.FileMode{"README": 0o644, "10-fine": 0o755, "helper": 0o755} {
			test.Must(t, os.WriteFile(filepath.Join(c.PluginPath, name), nil, mode))
		}
		if _, err := Open(c, &node{}); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "helper") || strings.Contains(err.Error(), "README") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("the socket of another daemon", func(t *testing.T) {
		c := testConfig(t)
		l := test.Value(net.Listen("unix", c.SocketPath))(t)
		defer l.Close()
		test.Refused(t, test.Err(Open(c, &node{})), errdefs.IsFailedPrecondition, c.SocketPath)
	})
	t.Run("but not the socket of a dead daemon", func(t *testing.T) {
		c := testConfig(t)
		l := test.Value(net.ListenUnix("unix", &net.UnixAddr{Name: c.SocketPath}))(t)
		l.SetUnlinkOnClose(false)
		l.Close()
		start(t, c, &node{})
	})
}

func TestLifeInOrder(t *testing.T) {
	p := start(t, testConfig(t), &node{})
	q := &plugin{}
	connect(t, p, q, "10")
	ctx := t.Context()
	test.Must(t, p.RunPodSandbox(ctx, pod, done))
	test.Must(t, test.Err(p.CreateContainer(ctx, ctr)))
	test.Must(t, p.Shown(ctr, done))
	p.PostCreateContainer(ctx, ctr)
	test.Must(t, p.StartContainer(ctx, ctr))
	p.PostStartContainer(ctx, ctr)
	test.Must(t, test.Err(p.UpdateContainer(ctx, ctr, &runtimeapi.LinuxContainerResources{CpuShares: 7})))
	p.PostUpdateContainer(ctx, ctr)
	memory := &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 5}
	test.Must(t, p.UpdatePodSandbox(ctx, pod, memory, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 6}))
	p.PostUpdatePodSandbox(ctx, pod)
	// Every part of the engine that notices the exit calls StopContainer.
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { p.StopContainer(ctx, ctr) })
	}
	all.Wait()
	p.StopPodSandbox(ctx, pod)
	p.StopPodSandbox(ctx, pod)
	p.RemoveContainer(ctx, ctr)
	p.RemoveContainer(ctx, ctr)
	p.RemovePodSandbox(ctx, pod)
	p.RemovePodSandbox(ctx, pod)
	same(t, q.told(), "configure berth 1.2.3", "sync ", "run pod", "create ctr", "postcreate ctr", "start ctr", "poststart ctr",
		"update ctr", "postupdate ctr", "updatepod pod 5 6", "postupdatepod pod",
		"stop ctr", "stoppod pod", "remove ctr", "removepod pod")
	if len(p.stages)+len(p.creating) > 0 {
		t.Errorf("removed objects are still recorded: %v %v", p.stages, p.creating)
	}
}

func TestRefusedPodIsUndone(t *testing.T) {
	p := start(t, testConfig(t), &node{})
	first, second := &plugin{}, &plugin{onRun: func() error { return errors.New("not today") }}
	connect(t, p, first, "10")
	connect(t, p, second, "20")
	shown := false
	test.Refused(t, p.RunPodSandbox(t.Context(), pod, func() error { shown = true; return nil }), errdefs.IsFailedPrecondition, "not today")
	if shown {
		t.Error("a refused pod was shown")
	}
	same(t, first.told()[2:], "run pod", "stoppod pod", "removepod pod")

	second.onRun = nil
	test.Says(t, p.RunPodSandbox(t.Context(), pod, func() error { return errors.New("disk full") }), "disk full")
	same(t, first.told()[5:], "run pod", "stoppod pod", "removepod pod")
}

func TestRefusedContainerIsUndone(t *testing.T) {
	p := start(t, testConfig(t), &node{})
	first := &plugin{}
	second := &plugin{onCreate: func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		return nil, nil, errors.New("no room")
	}}
	connect(t, p, first, "10")
	connect(t, p, second, "20")
	_, err := p.CreateContainer(t.Context(), ctr)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "no room") || strings.Contains(err.Error(), "rpc error") {
		t.Errorf("got %v", err)
	}
	p.RemoveContainer(t.Context(), ctr)
	same(t, first.told()[2:], "create ctr", "stop ctr", "remove ctr")
	if len(p.stages)+len(p.creating) > 0 {
		t.Errorf("removed objects are still recorded: %v %v", p.stages, p.creating)
	}
}

func TestCallerWhoGivesUpIsNoRefusal(t *testing.T) {
	p := start(t, testConfig(t), &node{})
	hang := make(chan struct{})
	defer close(hang)
	connect(t, p, &plugin{onStart: func() error { <-hang; return nil }}, "10")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.StartContainer(ctx, ctr); !errors.Is(err, context.DeadlineExceeded) || errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v", err)
	}
	if p.count.Load() != 1 {
		t.Error("the plugin was dropped because of the caller's deadline")
	}
}

func TestHangingPluginIsDropped(t *testing.T) {
	p := start(t, testConfig(t), &node{})
	hang := make(chan struct{})
	defer close(hang)
	bad, good := &plugin{onRun: func() error { <-hang; return nil }}, &plugin{}
	connect(t, p, bad, "10")
	connect(t, p, good, "20")
	begin := time.Now()
	test.Must(t, p.RunPodSandbox(t.Context(), pod, done))
	if took := time.Since(begin); took < requestTimeout || took > 10*requestTimeout {
		t.Errorf("a plugin that hangs took %s, its timeout is %s", took, requestTimeout)
	}
	p.StopPodSandbox(t.Context(), pod)
	same(t, bad.told()[2:], "run pod")
	same(t, good.told()[2:], "run pod", "stoppod pod")
	if n := p.count.Load(); n != 1 {
		t.Errorf("there are %d plugins", n)
	}
}

func TestDeadPluginIsDropped(t *testing.T) {
	p := start(t, testConfig(t), &node{})
	q := &plugin{}
	connect(t, p, q, "10")
	q.stub.Stop()
	q.stub.Wait()
	test.Must(t, p.RunPodSandbox(t.Context(), pod, done))
	test.Eventually(t, "no plugin is left", func() bool {
		p.StopPodSandbox(t.Context(), pod)
		return p.count.Load() == 0
	})
	again := &plugin{}
	connect(t, p, again, "10")
	p.RemovePodSandbox(t.Context(), pod)
}

func TestLatePluginSeesTheNode(t *testing.T) {
	created, running, exited := runtimeapi.ContainerState_CONTAINER_CREATED, runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	n := &node{
		pods: []Subject{thing{pod: "p1"}, thing{pod: "p2", stopped: true}},
		containers: []Subject{
			thing{pod: "p1", container: "c1", state: running}, thing{pod: "p1", container: "c2", state: exited},
			thing{pod: "p1", container: "c3", state: created}, thing{pod: "p1", container: "c4", state: created},
		},
	}
	p := start(t, testConfig(t), n)
	coming := thing{pod: "p1", container: "c5", state: created}
	test.Must(t, test.Err(p.CreateContainer(t.Context(), coming)))
	test.Must(t, p.StartContainer(t.Context(), thing{pod: "p1", container: "c4"}))
	q := &plugin{}
	connect(t, p, q, "10")
	same(t, q.told()[1:], "sync c1=RUNNING c3=CREATED c4=RUNNING c5=CREATED p1 p2")
	// The plugin gets the later calls for the objects of its Synchronize, and for no others.
	p.StopContainer(t.Context(), thing{pod: "p1", container: "c1"})
	p.RemoveContainer(t.Context(), thing{pod: "p1", container: "c2"})
	p.StopPodSandbox(t.Context(), thing{pod: "p1"})
	p.StopPodSandbox(t.Context(), thing{pod: "p2"})
	p.RemovePodSandbox(t.Context(), thing{pod: "p2"})
	p.RemoveContainer(t.Context(), coming)
	same(t, q.told()[2:], "stop c1", "stoppod p1", "removepod p2", "stop c5", "remove c5")
}

// TestNothingIsLostWhileAPluginRegisters creates containers while plugins register: each
// plugin gets each container either in Synchronize or in CreateContainer.
func TestNothingIsLostWhileAPluginRegisters(t *testing.T) {
	n := &node{}
	p := start(t, testConfig(t), n)
	stop := make(chan struct{})
	var creator sync.WaitGroup
	var names []string
	creator.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			c := thing{pod: "pod", container: "c" + strings.Repeat("i", i%40) + time.Now().Format(".000000000")}
			test.Check(t, test.Err(p.CreateContainer(t.Context(), c)))
			time.Sleep(50 * time.Microsecond) // gives a plugin time to register at this point
			_ = p.Shown(c, func() error {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.containers = append(n.containers, c)
				names = append(names, c.container)
				return nil
			})
		}
	})
	var plugins []*plugin
	for _, idx := range []string{"10", "20", "30"} {
		q := &plugin{onSync: func() []*api.ContainerUpdate {
			time.Sleep(20 * time.Millisecond) // no container may be created in this time
			return nil
		}}
		connect(t, p, q, idx)
		plugins = append(plugins, q)
	}
	created := func() int {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(names)
	}
	before := created()
	test.Eventually(t, "a container was created after all plugins had registered", func() bool { return created() > before+1 })
	close(stop)
	creator.Wait()
	for i, q := range plugins {
		told := strings.Join(q.told(), "\n") + "\n"
		for _, name := range names {
			synced, hooked := strings.Contains(told, name+"=CREATED"), strings.Contains(told, "create "+name+"\n")
			if synced == hooked {
				t.Fatalf("plugin %d: container %s was in Synchronize: %v; was in CreateContainer: %v", i, name, synced, hooked)
			}
		}
	}
	if len(names) == 0 {
		t.Fatal("no container was created")
	}
}

func TestUpdatesOfOthers(t *testing.T) {
	n := &node{}
	p := start(t, testConfig(t), n)
	q := &plugin{
		onCreate: func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
			return nil, []*api.ContainerUpdate{shares("other", 1), shares("bad", 1)}, nil
		},
		onUpdate: func(c *api.Container, r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
			return []*api.ContainerUpdate{shares("other", 2), shares(c.GetId(), r.GetCpu().GetShares().GetValue()+1)}, nil
		},
		onStop: func() []*api.ContainerUpdate { return []*api.ContainerUpdate{shares("other", 3)} },
	}
	connect(t, p, q, "10")
	test.Checkf(t, test.Err(p.CreateContainer(t.Context(), ctr)), "creating a container while the update of another fails")
	same(t, n.updates(), "other shares=1")
	got := test.Value(p.UpdateContainer(t.Context(), ctr, &runtimeapi.LinuxContainerResources{CpuShares: 7, MemoryLimitInBytes: 9, MemorySwapLimitInBytes: 10}))(t)
	if r := ToCRI(got); r.GetCpuShares() != 8 || r.GetMemoryLimitInBytes() != 9 || r.GetCpuQuota() != 0 {
		t.Errorf("the container's own update is %v", r)
	}
	same(t, n.updates(), "other shares=1", "other shares=2")
	p.StopContainer(t.Context(), ctr)
	same(t, n.updates(), "other shares=1", "other shares=2", "other shares=3")
}

func TestUnsolicitedUpdates(t *testing.T) {
	n := &node{}
	p := start(t, testConfig(t), n)
	q := &plugin{}
	connect(t, p, q, "10")
	if bad, err := q.stub.UpdateContainers([]*api.ContainerUpdate{shares("one", 1), shares("two", 2)}); err != nil || len(bad) > 0 {
		t.Errorf("got %v, %v", bad, err)
	}
	same(t, n.updates(), "one shares=1", "two shares=2")

	ignored := shares("bad too", 1)
	ignored.SetIgnoreFailure()
	class := &api.ContainerUpdate{}
	class.SetContainerId("three")
	class.SetLinuxRDTClass("gold")
	test.Checkf(t, test.Err(q.stub.UpdateContainers([]*api.ContainerUpdate{ignored})), "a failure that may be ignored")
	for _, u := range []*api.ContainerUpdate{shares("bad", 1), class} {
		test.Fails(t, test.Err(q.stub.UpdateContainers([]*api.ContainerUpdate{u})), "the update of %s failed, but the plugin got no error", u.GetContainerId())
	}
	same(t, n.updates(), "one shares=1", "two shares=2")
}

// TestRegistrationDoesNotWaitForAContainer has a plugin that requests an update of a container
// while the plugin registers. The container is locked by a call that waits for plugins.
func TestRegistrationDoesNotWaitForAContainer(t *testing.T) {
	lock := &sync.Mutex{}
	n := &node{locks: map[string]*sync.Mutex{"busy": lock}}
	p := start(t, testConfig(t), n)
	reached := make(chan struct{})
	q := &plugin{onSync: func() []*api.ContainerUpdate {
		close(reached)
		return []*api.ContainerUpdate{shares("busy", 1)}
	}}
	lock.Lock()
	started := make(chan error, 1)
	go func() {
		<-reached
		started <- p.StartContainer(context.Background(), thing{pod: "pod", container: "busy"})
		lock.Unlock()
	}()
	begin := time.Now()
	connect(t, p, q, "10")
	test.Check(t, <-started)
	if took := time.Since(begin); took > updateTimeout/2 {
		t.Errorf("the registration took %s", took)
	}
	// The next update of the container is made after this one.
	q.onStop = func() []*api.ContainerUpdate { return []*api.ContainerUpdate{shares("busy", 2)} }
	p.StopContainer(t.Context(), thing{pod: "pod", container: "busy"})
	same(t, n.updates(), "busy shares=1", "busy shares=2")
}

func TestInstalledPlugin(t *testing.T) {
	c := testConfig(t)
	c.SocketPath = ""
	self := test.Value(os.Executable())(t)
	notes := filepath.Join(t.TempDir(), "notes")
	for _, dir := range []string{c.PluginPath, c.PluginConfigPath} {
		test.Must(t, os.Mkdir(dir, 0o755))
	}
	// A plugin that cannot be executed is left out.
	if err := errors.Join(
		os.Link(self, filepath.Join(c.PluginPath, "10-good")),
		os.WriteFile(filepath.Join(c.PluginConfigPath, "10-good.conf"), []byte(notes), 0o600),
		os.WriteFile(filepath.Join(c.PluginPath, "20-broken"), []byte("#!/no/such/shell\n"), 0o755), //nolint:gosec // it is a program
	); err != nil {
		t.Fatal(err)
	}
	p := start(t, c, &node{pods: []Subject{thing{pod: "old"}}})
	test.Must(t, p.RunPodSandbox(t.Context(), pod, done))
	text := test.Value(os.ReadFile(notes))(t)
	same(t, strings.Split(string(text), "\n"), "configure berth 1.2.3", "sync old", "run pod")
	if n := p.count.Load(); n != 1 {
		t.Errorf("there are %d plugins", n)
	}
}

// TestChangeablePlugins has plugins that users other than root can change: they are left
// out, while the other plugins and the daemon start.
func TestChangeablePlugins(t *testing.T) {
	const stranger = 12345
	program := func(c Config) string { return filepath.Join(c.PluginPath, "20-theirs") }
	for name, tt := range map[string]struct {
		change func(c Config) error
		want   int32 // plugins that start
	}{
		"unchanged":                                 {func(Config) error { return nil }, 2},
		"program writable by all":                   {func(c Config) error { return os.Chmod(program(c), 0o777) }, 1},
		"program of another user":                   {func(c Config) error { return os.Chown(program(c), stranger, 0) }, 1},
		"target of a link writable by all":          {func(c Config) error { return replaceByLink(t, program(c)) }, 1},
		"configuration writable by all":             {func(c Config) error { return os.Chmod(filepath.Join(c.PluginConfigPath, "theirs.conf"), 0o666) }, 1},
		"directory writable by all":                 {func(c Config) error { return os.Chmod(c.PluginPath, 0o777) }, 0},
		"configurations' directory writable by all": {func(c Config) error { return os.Chmod(c.PluginConfigPath, 0o777) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t)
			self := test.Value(os.Executable())(t)
			text := test.Value(os.ReadFile(self))(t)
			notes := t.TempDir()
			if err := errors.Join(os.Mkdir(c.PluginPath, 0o755), os.Mkdir(c.PluginConfigPath, 0o755),
				os.WriteFile(filepath.Join(c.PluginPath, "10-ours"), text, 0o755), os.WriteFile(program(c), text, 0o755), //nolint:gosec // programs
				os.WriteFile(filepath.Join(c.PluginConfigPath, "ours.conf"), []byte(filepath.Join(notes, "ours")), 0o600),
				os.WriteFile(filepath.Join(c.PluginConfigPath, "theirs.conf"), []byte(filepath.Join(notes, "theirs")), 0o600),
				tt.change(c)); err != nil {
				t.Fatal(err)
			}
			p := start(t, c, &node{})
			if n := p.count.Load(); n != tt.want {
				t.Errorf("%d plugins were started, want %d", n, tt.want)
			}
			if _, err := os.Stat(filepath.Join(notes, "theirs")); (err == nil) != (tt.want == 2) {
				t.Errorf("notes of the plugin that others can change: %v", err)
			}
		})
	}
}

// replaceByLink replaces a program with a symbolic link to a file that every user can write.
func replaceByLink(t *testing.T, program string) error {
	target := filepath.Join(t.TempDir(), "program")
	return errors.Join(os.Rename(program, target), os.Chmod(target, 0o707), os.Symlink(target, program))
}

func TestHooksWaitForTheStart(t *testing.T) {
	p := test.Value(Open(testConfig(t), &node{}))(t)
	told := make(chan struct{})
	go func() {
		p.StopContainer(context.Background(), ctr)
		close(told)
	}()
	select {
	case <-told:
		t.Error("a hook did not wait for the plugins")
	case <-time.After(20 * time.Millisecond):
	}
	test.Must(t, p.Close())
	<-told // Close ends the wait of the hook
}
