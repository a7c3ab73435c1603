package nri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

// TestMain lets this binary act as an installed plugin, too: the daemon starts plugins
// with their name in the environment.
func TestMain(m *testing.M) {
	if os.Getenv(api.PluginNameEnvVar) == "" {
		os.Exit(m.Run())
	}
	if err := beInstalled(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// beInstalled runs a plugin that writes its calls to the file that its configuration
// names.
func beInstalled() error {
	p := &plugin{}
	s, err := stub.New(p)
	if err != nil {
		return err
	}
	return s.Run(context.Background())
}

// plugin records its calls and runs the functions that a test has set. A function may be
// nil.
type plugin struct {
	onRun    func() error
	onCreate func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error)
	onUpdate func(*api.Container, *api.LinuxResources) ([]*api.ContainerUpdate, error)
	onStart  func() error
	onSync   func() []*api.ContainerUpdate
	onStop   func() []*api.ContainerUpdate

	mu   sync.Mutex
	seen []string
	file string
	stub stub.Stub
}

func (p *plugin) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, fmt.Sprintf(format, args...))
	if p.file != "" {
		_ = os.WriteFile(p.file, []byte(strings.Join(p.seen, "\n")), 0o600)
	}
}

func (p *plugin) told() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

func (p *plugin) Configure(_ context.Context, config, runtime, version string) (stub.EventMask, error) {
	if os.Getenv(api.PluginNameEnvVar) != "" {
		p.file = strings.TrimSpace(config)
	}
	p.note("configure %s %s", runtime, version)
	return 0, nil
}

func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	var all []string
	for _, s := range pods {
		all = append(all, s.GetId())
	}
	for _, c := range containers {
		all = append(all, c.GetId()+"="+strings.TrimPrefix(c.GetState().String(), "CONTAINER_"))
	}
	slices.Sort(all)
	p.note("sync %s", strings.Join(all, " "))
	if p.onSync != nil {
		return p.onSync(), nil
	}
	return nil, nil
}

func (p *plugin) RunPodSandbox(_ context.Context, s *api.PodSandbox) error {
	p.note("run %s", s.GetId())
	if p.onRun != nil {
		return p.onRun()
	}
	return nil
}

func (p *plugin) UpdatePodSandbox(_ context.Context, s *api.PodSandbox, overhead, resources *api.LinuxResources) error {
	p.note("updatepod %s %d %d", s.GetId(), overhead.GetMemory().GetLimit().GetValue(), resources.GetMemory().GetLimit().GetValue())
	return nil
}

func (p *plugin) PostUpdatePodSandbox(_ context.Context, s *api.PodSandbox) error {
	p.note("postupdatepod %s", s.GetId())
	return nil
}

func (p *plugin) StopPodSandbox(_ context.Context, s *api.PodSandbox) error {
	p.note("stoppod %s", s.GetId())
	return nil
}

func (p *plugin) RemovePodSandbox(_ context.Context, s *api.PodSandbox) error {
	p.note("removepod %s", s.GetId())
	return nil
}

func (p *plugin) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.note("create %s", c.GetId())
	if p.onCreate != nil {
		return p.onCreate(c)
	}
	return nil, nil, nil
}

func (p *plugin) PostCreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.note("postcreate %s", c.GetId())
	return nil
}

func (p *plugin) StartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.note("start %s", c.GetId())
	if p.onStart != nil {
		return p.onStart()
	}
	return nil
}

func (p *plugin) PostStartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.note("poststart %s", c.GetId())
	return nil
}

func (p *plugin) UpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container, r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	p.note("update %s", c.GetId())
	if p.onUpdate != nil {
		return p.onUpdate(c, r)
	}
	return nil, nil
}

func (p *plugin) PostUpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.note("postupdate %s", c.GetId())
	return nil
}

func (p *plugin) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	p.note("stop %s", c.GetId())
	if p.onStop != nil {
		return p.onStop(), nil
	}
	return nil, nil
}

func (p *plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.note("remove %s", c.GetId())
	return nil
}

// node is a node in memory. UpdateContainer takes the container's lock, as the engine
// does.
type node struct {
	mu         sync.Mutex
	pods       []Subject
	containers []Subject
	locks      map[string]*sync.Mutex
	updated    []string
}

func (n *node) Pods() []Subject {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.pods)
}

func (n *node) Containers() []Subject {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.containers)
}

func (n *node) UpdateContainer(_ context.Context, id string, r *api.LinuxResources) error {
	if l := n.locks[id]; l != nil {
		l.Lock()
		defer l.Unlock()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if strings.HasPrefix(id, "bad") {
		return errors.New("the runtime refuses")
	}
	n.updated = append(n.updated, fmt.Sprintf("%s shares=%d", id, ToCRI(r).GetCpuShares()))
	return nil
}

func (n *node) updates() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.updated)
}

// thing is a Subject: a container, or a pod if container is empty.
type thing struct {
	pod       string
	container string
	state     runtimeapi.ContainerState
	stopped   bool
}

func (s thing) ID() string {
	if s.container != "" {
		return s.container
	}
	return s.pod
}

func (s thing) Pod() Pod {
	return Pod{ID: s.pod, Stopped: s.stopped, Config: &runtimeapi.PodSandboxConfig{}}
}

func (s thing) Container() Container {
	return Container{ID: s.container, Sandbox: s.pod, State: State(s.state), Config: &runtimeapi.ContainerConfig{}}
}

// requestTimeout is the time that a plugin has for an answer.
const requestTimeout = 300 * time.Millisecond

func testConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	return Config{
		SocketPath: filepath.Join(dir, "nri.sock"), PluginPath: filepath.Join(dir, "plugins"), PluginConfigPath: filepath.Join(dir, "conf.d"),
		LinkDir:             filepath.Join(dir, "links"),
		RegistrationTimeout: 10 * time.Second, RequestTimeout: requestTimeout, Name: "berth", Version: "1.2.3",
	}
}

func start(t *testing.T, c Config, n Node) *Plugins {
	t.Helper()
	p := test.Value(Open(c, n))(t)
	if p == nil {
		t.Fatal("Open returned no Plugins")
	}
	t.Cleanup(func() { test.Check(t, p.Close()) })
	test.Must(t, p.Start())
	return p
}

// connect registers a plugin and waits until hooks reach it.
func connect(t *testing.T, p *Plugins, q *plugin, idx string) {
	t.Helper()
	before := p.count.Load()
	s := test.Value(stub.New(q, stub.WithPluginName("test"), stub.WithPluginIdx(idx), stub.WithSocketPath(p.config.SocketPath), stub.WithOnClose(func() {})))(t)
	q.stub = s
	test.Must(t, s.Start(t.Context()))
	t.Cleanup(s.Stop)
	test.Eventually(t, "the plugin is registered", func() bool { return p.count.Load() > before })
}

func shares(id string, n uint64) *api.ContainerUpdate {
	u := &api.ContainerUpdate{}
	u.SetContainerId(id)
	u.SetLinuxCPUShares(n)
	return u
}
