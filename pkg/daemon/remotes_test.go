package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// leadTo starts another berth, and adds a handler "legacy" to this one that uses
// runc of the other berth.
func (b *bed) leadTo(t *testing.T, other *bed) {
	t.Helper()
	other.engine = routertest.New("other")
	other.started(t)
	b.config.Runtimes = append(b.config.Runtimes, &handler.Definition{
		Name: "legacy", Type: handler.CRI, Endpoint: other.config.Server.Socket, RemoteHandler: "runc",
	})
}

// handlerIs waits until a handler is advertised, or until it is not and the node reports reason.
func (b *bed) handlerIs(t *testing.T, name, reason string) {
	t.Helper()
	test.Retry(t, func() error {
		s, err := b.client(t).Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		message := ""
		for _, c := range s.GetStatus().GetConditions() {
			if c.GetType() == "HandlersReady" {
				message = c.GetMessage()
			}
		}
		listed := false
		for _, h := range s.GetRuntimeHandlers() {
			listed = listed || h.GetName() == name
		}
		if listed != (reason == "") || !strings.Contains(message, reason) {
			return fmt.Errorf("handler %s is listed: %v; %s", name, listed, message)
		}
		return nil
	})
}

func TestPodsOfAnotherDaemon(t *testing.T) {
	b, other := newBed(t), newBed(t)
	b.leadTo(t, other)
	d := b.started(t)
	b.handlerIs(t, "legacy", "")
	client := b.client(t)
	ctx := t.Context()
	theirs := test.Value(client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "legacy", Config: &runtimeapi.PodSandboxConfig{}}))(t)
	own := test.Value(client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}}))(t)
	if got := other.engine.Definition(theirs.GetPodSandboxId()); got == nil || got.Name != "runc" {
		t.Errorf("the pod's definition in the other daemon is %v", got)
	}
	listed := func(want ...string) error {
		l, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		got := map[string]bool{}
		for _, p := range l.GetItems() {
			got[p.GetId()] = true
		}
		for _, id := range want {
			if !got[id] {
				return fmt.Errorf("%s is not among %v", id, got)
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("%d are listed, want %d", len(got), len(want))
		}
		return nil
	}
	test.Check(t, listed(theirs.GetPodSandboxId(), own.GetPodSandboxId()))
	test.Must(t, d.Stop(context.Background()))
	b.started(t)
	client = b.client(t)
	test.Check(t, test.Err(client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: theirs.GetPodSandboxId()[:8]})))
	test.Check(t, test.Err(client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: theirs.GetPodSandboxId()})))
	test.Check(t, listed(own.GetPodSandboxId()))
}

func TestPodsOfADaemonThatIsGone(t *testing.T) {
	b, other := newBed(t), newBed(t)
	gone := other.daemon(t)
	test.Must(t, gone.Start(t.Context()))
	b.config.Runtimes = append(b.config.Runtimes, &handler.Definition{
		Name: "legacy", Type: handler.CRI, Endpoint: other.config.Server.Socket, RemoteHandler: "runc",
	})
	d := b.started(t)
	b.handlerIs(t, "legacy", "")
	client := b.client(t)
	ctx := t.Context()
	theirs, err := client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "legacy", Config: &runtimeapi.PodSandboxConfig{}})
	test.Must(t, err)
	test.Must(t, gone.Stop(context.Background()))
	b.handlerIs(t, "legacy", "does not exist; check that its daemon is running")
	for range 2 { // the second time after a restart, while the daemon is away
		_, err = client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: theirs.GetPodSandboxId()})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), `handler "legacy": the CRI daemon at `) {
			t.Errorf("the status of a pod of a stopped daemon: %v", err)
		}
		l, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil || len(l.GetItems()) != 1 || l.GetItems()[0].GetRuntimeHandler() != "legacy" {
			t.Errorf("listed %v, %v", l, err)
		}
		test.Must(t, d.Stop(context.Background()))
		d = b.started(t)
		client = b.client(t)
	}
}

// A list waits for the first list of each daemon: a list without its pods would make
// the kubelet start them a second time.
func TestNothingIsListedBeforeASlowDaemonHasToldItsPods(t *testing.T) {
	b, other := newBed(t), newBed(t)
	slow := make(chan struct{})
	other.engine = routertest.New("other")
	other.engine.Fail = func(ctx context.Context, rpc string) error {
		if rpc == "ListContainers" {
			select {
			case <-slow:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	other.started(t)
	pod := test.Value(other.client(t).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}}))(t)
	b.config.Runtimes = append(b.config.Runtimes, &handler.Definition{
		Name: "legacy", Type: handler.CRI, Endpoint: other.config.Server.Socket, RemoteHandler: "runc",
	})
	time.AfterFunc(5*time.Second, func() { close(slow) })
	b.started(t)
	l, err := b.client(t).ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(l.GetItems()) != 1 || l.GetItems()[0].GetId() != pod.GetPodSandboxId() {
		t.Errorf("listed %v, %v", l, err)
	}
}

func TestADaemonIsNoBackendOfItsOwn(t *testing.T) {
	b, other := newBed(t), newBed(t)
	for name, endpoint := range map[string]string{"self": b.config.Server.Socket, "around": other.config.Server.Socket} {
		b.config.Runtimes = append(b.config.Runtimes, &handler.Definition{Name: name, Type: handler.CRI, Endpoint: endpoint, RemoteHandler: "runc"})
	}
	other.config.DefaultRuntime = "back"
	other.config.Runtimes = append(other.config.Runtimes, &handler.Definition{Name: "back", Type: handler.CRI, Endpoint: b.config.Server.Socket})
	other.started(t)
	b.started(t)
	b.handlerIs(t, "self", "by the daemon that received it")
	test.Check(t, test.Err(b.client(t).ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})))
}

// Each of three daemons that use each other in a circle detects the circle, even if no
// default handler is part of it and there are no pods.
func TestACircleOfDaemons(t *testing.T) {
	beds := []*bed{newBed(t), newBed(t), newBed(t)}
	for i, b := range beds {
		b.config.Runtimes = append(b.config.Runtimes, &handler.Definition{
			Name: "next", Type: handler.CRI, Endpoint: beds[(i+1)%len(beds)].config.Server.Socket, RemoteHandler: "runc",
		})
		b.started(t)
	}
	for _, b := range beds {
		b.handlerIs(t, "next", "leads back to this berth")
		test.Check(t, test.Err(b.client(t).ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})))
	}
}

func secondName(t *testing.T, socket string) string {
	t.Helper()
	link := filepath.Join(t.TempDir(), "second.sock")
	test.Must(t, os.Symlink(socket, link))
	return link
}

func TestTwoSocketsOfOneDaemon(t *testing.T) {
	b, other := newBed(t), newBed(t)
	b.leadTo(t, other)
	// The pods of the other daemon are listed twice: through its socket, and through
	// a second name of the socket.
	b.config.Runtimes = append(b.config.Runtimes, &handler.Definition{
		Name: "twice", Type: handler.CRI, Endpoint: secondName(t, other.config.Server.Socket), RemoteHandler: "runc",
	})
	pod := test.Value(other.client(t).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}}))(t)
	b.started(t)
	test.Retry(t, func() error {
		s, err := b.client(t).Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil || !strings.Contains(s.String(), "both have the pod sandbox "+pod.GetPodSandboxId()) {
			return fmt.Errorf("%v, %w", s, err)
		}
		return nil
	})
	l, err := b.client(t).ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(l.GetItems()) != 1 {
		t.Errorf("listed %v, %v", l, err)
	}
}

// A table whose handlers cannot be recorded on disk is not put in force.
func TestHandlersThatCannotBeKept(t *testing.T) {
	b, other := newBed(t), newBed(t)
	b.leadTo(t, other)
	f := &files{next: b.config}
	b.options.Loader = f
	d := b.started(t)
	b.handlerIs(t, "legacy", "")
	more := with(b.config, "more")
	more.Runtimes = append(more.Runtimes, &handler.Definition{
		Name: "legacy2", Type: handler.CRI, Endpoint: other.config.Server.Socket, RemoteHandler: "runc",
	})
	f.put(more, nil)
	records := filepath.Join(b.config.Engine.Root, "remote")
	test.Must(t, os.Rename(records, records+".away"))
	test.Must(t, os.WriteFile(records, nil, 0o600))
	run := func(name string) error {
		_, err := b.client(t).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: name, Config: &runtimeapi.PodSandboxConfig{}})
		return err
	}
	test.Says(t, test.Err(d.Lifecycle().Reload(t.Context(), lifecycle.TriggerAdmin)), "record the handlers of the CRI daemon")
	if err := run("more"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a handler of a refused table: %v", err)
	}
	test.Must(t, errors.Join(os.Remove(records), os.Rename(records+".away", records)))
	test.Must(t, test.Err(d.Lifecycle().Reload(t.Context(), lifecycle.TriggerAdmin)))
	b.handlerIs(t, "legacy2", "")
	test.Check(t, errors.Join(run("more"), run("legacy2")))
}

// records returns the files about CRI daemons.
func (b *bed) records(t *testing.T) []string {
	t.Helper()
	return test.Value(filepath.Glob(filepath.Join(b.config.Engine.Root, "remote", "*")))(t)
}

// A daemon that becomes a backend later gets the pod CIDR that the kubelet sent before.
func TestADaemonThatComesLateIsTold(t *testing.T) {
	b, other := newBed(t), newBed(t)
	f := &files{next: b.config}
	b.options.Loader = f
	d := b.started(t)
	const cidr = "10.1.2.0/24"
	test.Must(t, test.Err(b.client(t).UpdateRuntimeConfig(t.Context(), &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{
		NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidr},
	}})))
	more := *b.config
	b.config = &more
	b.leadTo(t, other)
	f.put(b.config, nil)
	test.Must(t, test.Err(d.Lifecycle().Reload(t.Context(), lifecycle.TriggerAdmin)))
	test.Retry(t, func() error {
		if got := other.engine.CIDR(); got != cidr {
			return fmt.Errorf("the CIDR of the other daemon is %q", got)
		}
		return nil
	})
}

// If a handler changes to another daemon, its pods stay in the old one, also after a restart.
// The old daemon is dropped with its last pod.
func TestAHandlerLeadsElsewhere(t *testing.T) {
	b, before, after := newBed(t), newBed(t), newBed(t)
	b.leadTo(t, before)
	f := &files{next: b.config}
	b.options.Loader = f
	d := b.started(t)
	b.handlerIs(t, "legacy", "")
	run := func() string {
		resp := test.Value(b.client(t).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "legacy", Config: &runtimeapi.PodSandboxConfig{}}))(t)
		return resp.GetPodSandboxId()
	}
	there := run()
	moved := *b.config
	moved.Runtimes = moved.Runtimes[:len(moved.Runtimes)-1]
	b.config = &moved
	after.engine = routertest.New("zzz") // creates other ids
	after.started(t)
	b.config.Runtimes = append(slices.Clone(b.config.Runtimes), &handler.Definition{
		Name: "legacy", Type: handler.CRI, Endpoint: after.config.Server.Socket, RemoteHandler: "runc",
	})
	f.put(b.config, nil)
	test.Must(t, test.Err(d.Lifecycle().Reload(t.Context(), lifecycle.TriggerAdmin)))
	here := run()
	for id, engine := range map[string]*routertest.Backend{there: before.engine, here: after.engine} {
		if engine.Definition(id) == nil {
			t.Errorf("sandbox %s is not in the expected daemon", id)
		}
	}
	test.Must(t, d.Stop(context.Background()))
	b.options.Config = b.config
	d = b.started(t)
	client := b.client(t)
	for _, id := range []string{there, here} {
		if resp, err := client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id}); err != nil || resp.GetStatus().GetRuntimeHandler() != "legacy" {
			t.Errorf("after a restart: %v, %v", resp, err)
		}
	}
	if h, err := d.Lifecycle().Handler("legacy"); err != nil || h.Pods != 2 {
		t.Errorf("the handler is %+v, %v", h, err)
	}
	many := len(b.records(t))
	test.Must(t, test.Err(client.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: there})))
	test.Retry(t, func() error {
		if left := b.records(t); len(left) != many/2 {
			return fmt.Errorf("the records of CRI daemons are %v", left)
		}
		return nil
	})
	test.Check(t, test.Err(client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: here})))
}
