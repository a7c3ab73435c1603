package nri

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/berth-cri/berth/integration/testbed"
)

// Environment variables of the plugin process.
const (
	notesEnv  = "BERTH_TEST_NRI_NOTES"
	socketEnv = "BERTH_TEST_NRI_SOCKET"
)

// Annotations of a container or pod, which the plugin acts on.
const (
	wantAdjust = "nri.test/adjust" // the directory to mount
	wantRefuse = "nri.test/refuse"
	wantOther  = "nri.test/update-other" // <container id>=<bytes of memory>
	wantMove   = "nri.test/move"
)

// TestMain runs the plugin if this binary was started as one, else the tests.
func TestMain(m *testing.M) {
	if os.Getenv(notesEnv) == "" {
		os.Exit(m.Run())
	}
	if err := bePlugin(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// bePlugin runs the plugin until its standard input ends. Whenever the connection to berth is lost,
// the plugin registers again.
func bePlugin() error {
	p := &plugin{notes: os.Getenv(notesEnv)}
	go p.obey()
	again := time.NewTicker(20 * time.Millisecond)
	for ; ; <-again.C {
		s, err := stub.New(p, stub.WithPluginName("test"), stub.WithPluginIdx("10"), stub.WithSocketPath(os.Getenv(socketEnv)), stub.WithOnClose(func() {}))
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.stub = s
		p.mu.Unlock()
		_ = s.Run(context.Background()) // it also fails while no daemon runs
		if p.known.Swap(false) {
			p.note("cut off")
		}
	}
}

// plugin notes the events that it receives, and acts on annotations.
type plugin struct {
	mu    sync.Mutex
	notes string
	stub  stub.Stub
	known atomic.Bool // it was synchronized since it last registered
}

func (p *plugin) note(words ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, err := os.OpenFile(p.notes, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(strings.Join(words, " ") + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		panic(err) // the test waits for this note
	}
}

// obey makes the updates from standard input, each a line "<container id> <bytes of memory>".
func (p *plugin) obey() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		id, bytes, _ := strings.Cut(lines.Text(), " ")
		p.mu.Lock()
		s := p.stub
		p.mu.Unlock()
		failed, err := s.UpdateContainers([]*api.ContainerUpdate{memory(id, bytes)})
		p.note("updated", strconv.Itoa(len(failed)), fmt.Sprint(err == nil))
	}
	os.Exit(0)
}

func memory(id, bytes string) *api.ContainerUpdate {
	n, err := strconv.ParseInt(bytes, 10, 64)
	if err != nil {
		panic(err)
	}
	u := &api.ContainerUpdate{}
	u.SetContainerId(id)
	u.SetLinuxMemoryLimit(n)
	return u
}

func (p *plugin) Configure(_ context.Context, _, runtime, version string) (stub.EventMask, error) {
	p.note("configure", runtime, version)
	return 0, nil
}

func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	var all []string
	for _, s := range pods {
		all = append(all, s.GetName())
	}
	for _, c := range containers {
		all = append(all, c.GetName()+"="+strings.TrimPrefix(c.GetState().String(), "CONTAINER_"))
	}
	slices.Sort(all)
	p.known.Store(true)
	p.note("sync", "["+strings.Join(all, " ")+"]")
	return nil, nil
}

func (p *plugin) RunPodSandbox(_ context.Context, s *api.PodSandbox) error {
	p.note("run", s.GetName(), strings.Join(s.GetIps(), ","), strconv.Itoa(len(s.GetLinux().GetNamespaces())))
	if s.GetAnnotations()[wantRefuse] != "" {
		return errors.New("this pod is not welcome")
	}
	return nil
}

func (p *plugin) UpdatePodSandbox(_ context.Context, s *api.PodSandbox, _, r *api.LinuxResources) error {
	p.note("updatepod", s.GetName(), strconv.FormatInt(r.GetMemory().GetLimit().GetValue(), 10))
	return nil
}

func (p *plugin) PostUpdatePodSandbox(_ context.Context, s *api.PodSandbox) error {
	p.note("postupdatepod", s.GetName())
	return nil
}

func (p *plugin) StopPodSandbox(_ context.Context, s *api.PodSandbox) error {
	p.note("stoppod", s.GetName(), strconv.Itoa(len(s.GetLinux().GetNamespaces())))
	return nil
}

func (p *plugin) RemovePodSandbox(_ context.Context, s *api.PodSandbox) error {
	p.note("removepod", s.GetName())
	return nil
}

func (p *plugin) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.note("create", c.GetName())
	wants := c.GetAnnotations()
	if wants[wantRefuse] != "" {
		return nil, nil, errors.New("this container is not welcome")
	}
	var updates []*api.ContainerUpdate
	if other := wants[wantOther]; other != "" {
		id, bytes, _ := strings.Cut(other, "=")
		updates = append(updates, memory(id, bytes))
	}
	a := &api.ContainerAdjustment{}
	if dir := wants[wantAdjust]; dir != "" {
		a.AddEnv("NRI_ENV", "by plugin")
		a.AddAnnotation("nri.test/note", "by plugin")
		a.AddMount(&api.Mount{Destination: "/nri", Source: dir, Type: "bind", Options: []string{"rbind", "ro"}})
		a.AddDevice(&api.LinuxDevice{Path: "/dev/nri-null", Type: "c", Major: 1, Minor: 3})
		a.AddRlimit("RLIMIT_NOFILE", 777, 555)
		a.SetLinuxMemoryLimit(48 << 20)
	}
	if wants[wantMove] != "" {
		a.SetLinuxCgroupsPath("/elsewhere")
	}
	return a, updates, nil
}

func (p *plugin) PostCreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.note("postcreate", c.GetName(), c.GetState().String())
	return nil
}

func (p *plugin) StartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.note("start", c.GetName())
	return nil
}

func (p *plugin) PostStartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.note("poststart", c.GetName(), c.GetState().String())
	return nil
}

func (p *plugin) UpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container, r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	limit := r.GetMemory().GetLimit().GetValue()
	p.note("update", c.GetName(), strconv.FormatInt(limit, 10))
	return []*api.ContainerUpdate{memory(c.GetId(), strconv.FormatInt(limit/2, 10))}, nil
}

func (p *plugin) PostUpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.note("postupdate", c.GetName(), strconv.FormatInt(c.GetLinux().GetResources().GetMemory().GetLimit().GetValue(), 10))
	return nil
}

func (p *plugin) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	p.note("stop", c.GetName(), c.GetState().String(), strconv.Itoa(int(c.GetExitCode())))
	return nil, nil
}

func (p *plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.note("remove", c.GetName())
	return nil
}

// process is a plugin that runs outside of berth, as one from a DaemonSet does.
type process struct {
	notes   string
	command *exec.Cmd
	stdin   *os.File
}

// startPlugin starts a plugin and waits until berth has synchronized it.
func startPlugin(t *testing.T, socket string) *process {
	t.Helper()
	p := &process{notes: filepath.Join(t.TempDir(), "notes")}
	self, err := os.Executable()
	testbed.Must(t, err)
	p.command = exec.Command(self)
	p.command.Env = append(os.Environ(), notesEnv+"="+p.notes, socketEnv+"="+socket)
	stderr := &bytes.Buffer{}
	p.command.Stderr = stderr
	r, w, err := os.Pipe()
	testbed.Must(t, err)
	p.command.Stdin, p.stdin = r, w
	testbed.Must(t, p.command.Start())
	r.Close()
	t.Cleanup(func() {
		p.kill()
		w.Close()
		if t.Failed() {
			t.Logf("stderr of the plugin:\n%s", stderr)
		}
	})
	p.await(t, 1, "sync")
	return p
}

// kill kills the plugin by SIGKILL.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

// told returns the events that the plugin has noted, a line each.
func (p *process) told(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(p.notes)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// await waits until the plugin has noted n events with a prefix.
func (p *process) await(t *testing.T, n int, prefix string) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		lines := p.told(t)
		if got := len(matching(lines, prefix)); got < n {
			return fmt.Errorf("the plugin received %q %d times, not %d:\n%s", prefix, got, n, strings.Join(lines, "\n"))
		}
		return nil
	})
}

// forget deletes the notes so far.
func (p *process) forget(t *testing.T) {
	t.Helper()
	testbed.Must(t, os.Truncate(p.notes, 0))
}

func matching(lines []string, prefix string) []string {
	var some []string
	for _, l := range lines {
		if strings.HasPrefix(l, prefix) {
			some = append(some, l)
		}
	}
	return some
}
