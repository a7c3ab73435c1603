package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/daemon"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
)

// files is a Loader whose configuration or error the test sets.
type files struct {
	mu   sync.Mutex
	next *config.Config
	err  error
}

func (f *files) Load(context.Context) (*config.Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.next, f.err
}

func (*files) InForce(context.Context, *config.Config) {}

func (*files) Faults() []string { return nil }

func (*files) Paths() []string { return nil }

func (f *files) Read(ctx context.Context) (*config.Config, error) { return f.Load(ctx) }

func (*files) Check(context.Context, string, []byte) error { return nil }

func (f *files) put(next *config.Config, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next, f.err = next, err
}

// with returns a copy of a configuration with one more handler and another log level.
func with(c *config.Config, name string) *config.Config {
	next := *c
	next.Runtimes = append(slices.Clone(c.Runtimes), &handler.Definition{Name: name, Type: handler.OCI, Path: "/" + name})
	next.Log.Level = "warn"
	return &next
}

// The service manager is notified when a reload begins, with the monotonic time, and
// when it ends. The new configuration is in force by then.
func TestReload(t *testing.T) {
	b := newBed(t)
	manager := b.manager(t)
	f := &files{next: b.config}
	applied := make(chan string, 10)
	b.options.Loader = f
	b.options.Apply = func(_ context.Context, c *config.Config) { applied <- c.Log.Level }
	d := b.started(t)
	if said := told(t, manager, time.Minute); !strings.HasPrefix(said, "READY=1\nSTATUS=Generation 1, handlers: ") {
		t.Fatalf("the notification at the start is %q", said)
	}
	run := func(name string) error {
		_, err := b.client(t).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: name})
		return err
	}
	if err := run("crun"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("before: %v", err)
	}
	f.put(with(b.config, "crun"), nil)
	begin := monotonic(t)
	d.Reload(lifecycle.TriggerSignal)
	var at int64
	said := told(t, manager, time.Minute)
	if _, err := fmt.Sscanf(said, "RELOADING=1\nMONOTONIC_USEC=%d", &at); err != nil || at < begin || at > monotonic(t) {
		t.Errorf("the notification is %q (%v), want a time after %d", said, err, begin)
	}
	said = told(t, manager, time.Minute)
	if !strings.HasPrefix(said, "READY=1\nSTATUS=Generation ") || !strings.Contains(said, "crun, gvisor, kata (not-ready), runc") {
		t.Errorf("the notification is %q", said)
	}
	test.Equal(t, "the log's level", <-applied, "warn")
	test.Checkf(t, run("crun"), "run a pod after the reload")

	f.put(nil, errors.New("config.toml:3:1: no"))
	d.Reload(lifecycle.TriggerSignal)
	if said := told(t, manager, time.Minute); !strings.HasPrefix(said, "RELOADING=1\n") {
		t.Errorf("the notification is %q", said)
	}
	if said := told(t, manager, time.Minute); !strings.HasPrefix(said, "READY=1\n") || !strings.Contains(said, "config.toml:3:1: no") {
		t.Errorf("the notification is %q", said)
	}
	test.Checkf(t, run("crun"), "run a pod after the reload of a bad file")
}

func monotonic(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	test.Must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return now.Nano() / 1000
}

// A reload that is requested during the start runs after the start.
func TestAReloadDuringTheStartIsRemembered(t *testing.T) {
	b := newBed(t)
	f := &files{next: with(b.config, "crun")}
	b.options.Loader = f
	d := b.daemon(t)
	d.Reload(lifecycle.TriggerSignal) // before the start
	b.engine.Fail = func(_ context.Context, rpc string) error {
		if rpc == "Recover" {
			d.Reload(lifecycle.TriggerSignal) // during the recovery
		}
		return nil
	}
	test.Must(t, d.Start(t.Context()))
	events := d.Lifecycle().Watch(t.Context())
	for d.Lifecycle().Current().Last == nil {
		<-events
	}
	if h, err := d.Lifecycle().Handler("crun"); err != nil || !h.State.AcceptsPods() {
		t.Errorf("got %+v, %v", h, err)
	}
}

// A cordon survives a restart. The handler stays advertised, since the kubelet
// needs its features for the existing pods.
func TestCordonOverRestarts(t *testing.T) {
	b := newBed(t)
	first := b.started(t)
	test.Must(t, first.Lifecycle().Cordon(t.Context(), "gvisor", "kernel bug", "uid 0"))
	test.Must(t, first.Stop(t.Context()))
	b.started(t)
	_, err := b.client(t).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "gvisor"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "accepts no pods while it is cordoned: kernel bug") {
		t.Errorf("got %v", err)
	}
	resp := test.Value(b.client(t).Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true}))(t)
	if !slices.ContainsFunc(resp.GetRuntimeHandlers(), func(h *runtimeapi.RuntimeHandler) bool { return h.GetName() == "gvisor" }) {
		t.Error("a cordoned handler is not advertised")
	}
	if info := resp.GetInfo()["handlers"]; !strings.Contains(info, `"state":"cordoned","reason":"kernel bug"`) {
		t.Errorf("the verbose information is %s", info)
	}
}

// A handler that accepts no pods must not be recommended for a pod that another one refuses.
func TestOnlyHandlersThatTakePodsAreRecommended(t *testing.T) {
	b := newBed(t)
	for _, d := range b.config.Runtimes {
		d.Type = handler.OCI
	}
	var handlers *daemon.Handlers
	b.options.NewEngine = func(_ context.Context, _ *config.Config, _ daemon.Build, h *daemon.Handlers) (daemon.Engine, error) {
		handlers = h
		return b.memory(), nil
	}
	d := b.started(t)
	if usable, accepting := len(handlers.Usable()), len(handlers.Accepting()); usable != 2 || accepting != 2 {
		t.Errorf("%d are usable and %d accept pods, want 2 and 2", usable, accepting)
	}
	test.Must(t, d.Lifecycle().Cordon(t.Context(), "gvisor", "kernel bug", "uid 0"))
	if accepting := handlers.Accepting(); len(accepting) != 1 || accepting[0].Name != "runc" {
		t.Errorf("%v accept pods, want runc", accepting)
	}
	if usable := len(handlers.Usable()); usable != 2 {
		t.Errorf("%d handlers are usable, want 2: the cordoned one counts", usable)
	}
}

// After a reload, the engine uses the new cgroup prefix for new pods.
func TestNewPodsGetThePrefixOfTheLastReload(t *testing.T) {
	b := newBed(t)
	b.config.Engine.CgroupPrefix = "berth"
	f := &files{next: b.config}
	b.options.Loader = f
	var handlers *daemon.Handlers
	b.options.NewEngine = func(_ context.Context, _ *config.Config, _ daemon.Build, h *daemon.Handlers) (daemon.Engine, error) {
		handlers = h
		test.Equal(t, "prefix before the start", h.CgroupPrefix(), "berth")
		return b.memory(), nil
	}
	d := b.started(t)
	for _, prefix := range []string{"cri-containerd", "crio", "berth"} {
		next := *b.config
		next.Engine.CgroupPrefix = prefix
		f.put(&next, nil)
		test.Must(t, test.Err(d.Lifecycle().Reload(t.Context(), lifecycle.TriggerSignal)))
		test.Equal(t, "prefix after the reload", handlers.CgroupPrefix(), prefix)
	}
	f.put(nil, errors.New("a mistake"))
	if _, err := d.Lifecycle().Reload(t.Context(), lifecycle.TriggerSignal); err == nil || handlers.CgroupPrefix() != "berth" {
		t.Errorf("after a reload that failed with %v, the prefix is %q", err, handlers.CgroupPrefix())
	}
}
