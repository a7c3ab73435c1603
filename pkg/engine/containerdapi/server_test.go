package containerdapi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	events "github.com/containerd/containerd/api/events"
	core "github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

func newServer(t *testing.T) *Server {
	t.Helper()
	dir := t.TempDir()
	pods, _, err := pod.Open(t.Context(), filepath.Join(dir, "root"), filepath.Join(dir, "state"))
	test.Must(t, err)
	store := test.Value(image.Open(t.Context(), image.Config{Root: filepath.Join(dir, "images")}))(t)
	t.Cleanup(func() { _ = store.Close() })
	return New(Deps{Pods: pods, Images: store, Stats: noStats{}, Events: &Broker{}, OOM: func(string) {}, Version: "1"})
}

type noStats struct{}

func (noStats) ContainerStats(context.Context, *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	return nil, errors.New("no statistics here")
}

// Every method of every service has a kind, so that a method of a newer API is not
// allowed by accident.
func TestEveryMethodHasAKind(t *testing.T) {
	server := test.Value(newServer(t).server(t.Context(), Agents, nil))(t)
	var served []string
	for service, info := range server.GetServiceInfo() {
		for _, m := range info.Methods {
			served = append(served, shortName("/"+service+"/"+m.Name))
		}
	}
	for _, m := range served {
		if kinds[m] == unknown {
			t.Errorf("%s has no kind", m)
		}
	}
	for m := range kinds {
		if !slices.Contains(served, m) {
			t.Errorf("%s has a kind but is not served", m)
		}
	}
}

// Clients search for these plugins by name.
func TestPluginsThatClientsLookFor(t *testing.T) {
	served, err := containerdServices(t.Context(), newServer(t).deps, newStreams())
	if err != nil || len(served) != 5 {
		t.Fatalf("%d services, %v", len(served), err)
	}
	var names []string
	for _, r := range append(provided(newServer(t).deps, newStreams()), named()...) {
		names = append(names, r.URI())
	}
	for _, want := range []string{
		plugins.ContentPlugin.String() + ".content", plugins.SnapshotPlugin.String() + ".overlayfs", plugins.GRPCPlugin.String() + ".images",
		plugins.RuntimePluginV2.String() + ".task", plugins.TransferPlugin.String() + ".local",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("no plugin %s", want)
		}
	}
}

func TestBrokerDisconnectsWhoDoesNotRead(t *testing.T) {
	b := &Broker{}
	silent, err := b.subscribe(nil)
	test.Must(t, err)
	for range subscriberBuffer + 1 {
		test.Must(t, b.Publish(t.Context(), "/images/create", &events.ImageCreate{Name: "x"}))
	}
	n := 0
	for range silent.events {
		n++
	}
	if n != subscriberBuffer || !silent.missed {
		t.Errorf("the subscriber that did not read has %d events, missed is %t", n, silent.missed)
	}
	for _, filters := range [][]string{{"topic~="}, make([]string, maxFilters+1), {strings.Repeat("x", maxFilterBytes+1)}} {
		test.Is(t, test.Err(b.subscribe(filters)), errdefs.IsInvalidArgument, "%d invalid filters", len(filters))
	}
	for range maxSubscribers {
		_, err = b.subscribe(nil)
	}
	test.Check(t, err)
	if _, err = b.subscribe(nil); !errdefs.IsResourceExhausted(err) {
		t.Errorf("more than %d subscribers: %v", maxSubscribers, err)
	}
}

func TestFiltersOfEvents(t *testing.T) {
	b := &Broker{}
	s := test.Value(b.subscribe([]string{`topic=="/images/delete",event.name~="^registry"`}))(t)
	for topic, event := range map[string]any{
		"/images/create": &events.ImageCreate{Name: "registry.test/app:1"}, "/images/delete": &events.ImageDelete{Name: "registry.test/app:1"},
		"/images/update": &events.ImageUpdate{Name: "other"},
	} {
		test.Must(t, b.Publish(t.Context(), topic, event))
	}
	var got []string
	for range 3 {
		if e := <-s.events; s.wants.Match(e) {
			got = append(got, e.Topic)
		}
	}
	test.EqualLists(t, "the matching events", got, []string{"/images/delete"})
}

const (
	created = runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT
	started = runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT
	stopped = runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
	deleted = runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
)

// An exit is announced after the record has lost its process ID, and a removal after the
// container is gone. The events have the process ID and the exit code nevertheless.
func TestLifeEvents(t *testing.T) {
	d := &handler.Definition{Name: "runc", Path: "/usr/bin/runc"}
	plain := enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: d}, &enginetest.Runner{})
	withProcess := enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: d, Plan: pod.Plan{Process: true}}, &enginetest.Runner{})
	ran, never := enginetest.Container(t, plain), enginetest.Container(t, plain)
	ran.Spec().ImageRef = "registry.test/app@sha256:0"
	set := func(c *pod.Container, change func(st *pod.ContainerStatus)) {
		t.Helper()
		test.Must(t, c.Update(func(st *pod.ContainerStatus) error { change(st); return nil }))
	}
	process := func(s *pod.Sandbox, pid int, code uint32) {
		t.Helper()
		test.Must(t, s.Update(func(st *pod.SandboxStatus) error { st.PID, st.ExitCode = pid, code; return nil }))
	}
	b := &Broker{}
	sub := test.Value(b.subscribe(nil))(t)
	for _, step := range []struct {
		name string
		tell func()
		want string
	}{
		{"a container is created", func() { b.Announced(plain, ran, ran.ID(), created) }, "/containers/create registry.test/app@sha256:0"},
		{"the container is started", func() {
			set(ran, func(st *pod.ContainerStatus) { st.PID, st.StartedAt = 7, 1 })
			b.Announced(plain, ran, ran.ID(), started)
		}, "/tasks/create 7, /tasks/start 7"},
		{"the container is killed for memory", func() {
			set(ran, func(st *pod.ContainerStatus) { st.PID, st.ExitCode, st.Reason, st.FinishedAt = 0, 137, "OOMKilled", 2 })
			b.Announced(plain, ran, ran.ID(), stopped)
		}, "/tasks/oom, /tasks/exit 7 137"},
		{"the container is removed", func() { b.Announced(plain, nil, ran.ID(), deleted) }, "/tasks/delete 7 137, /containers/delete"},
		{"a container is stopped before it was started", func() {
			set(never, func(st *pod.ContainerStatus) { st.ExitCode = 137 })
			b.Announced(plain, never, never.ID(), stopped)
		}, ""},
		{"the container that was not started is removed", func() { b.Announced(plain, nil, never.ID(), deleted) }, "/containers/delete"},
		{"a sandbox without a process is created", func() { b.Announced(plain, nil, plain.ID(), created) }, "/containers/create berth.dev/pause"},
		{"the sandbox without a process is started", func() { b.Announced(plain, nil, plain.ID(), started) }, ""},
		{"the sandbox without a process is stopped", func() { b.Announced(plain, nil, plain.ID(), stopped) }, ""},
		{"the sandbox without a process is removed", func() { b.Announced(plain, nil, plain.ID(), deleted) }, "/containers/delete"},
		{"a sandbox with a process is started", func() { process(withProcess, 8, 0); b.Announced(withProcess, nil, withProcess.ID(), started) }, "/tasks/create 8, /tasks/start 8"},
		{"the sandbox with a process is stopped", func() { process(withProcess, 0, 137); b.Announced(withProcess, nil, withProcess.ID(), stopped) }, "/tasks/exit 8 137"},
		{"the sandbox with a process is removed", func() { b.Announced(withProcess, nil, withProcess.ID(), deleted) }, "/tasks/delete 8 137, /containers/delete"},
	} {
		step.tell()
		var got []string
		for len(sub.events) > 0 {
			got = append(got, said(<-sub.events))
		}
		test.Equal(t, fmt.Sprint(step.name), strings.Join(got, ", "), step.want)
	}
	if n := len(b.tasks); n != 0 {
		t.Errorf("%d tasks of removed containers are still recorded", n)
	}
}

// said returns the topic of an event, and the fields that this test checks.
func said(e *core.Envelope) string {
	event, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		return err.Error()
	}
	switch event := event.(type) {
	case *events.ContainerCreate:
		return e.Topic + " " + event.GetImage()
	case *events.TaskCreate:
		return fmt.Sprint(e.Topic, " ", event.GetPid())
	case *events.TaskStart:
		return fmt.Sprint(e.Topic, " ", event.GetPid())
	case *events.TaskExit:
		return fmt.Sprint(e.Topic, " ", event.GetPid(), " ", event.GetExitStatus())
	case *events.TaskDelete:
		return fmt.Sprint(e.Topic, " ", event.GetPid(), " ", event.GetExitStatus())
	}
	return e.Topic
}

func TestRuntimeName(t *testing.T) {
	for _, c := range []struct {
		kind       handler.Type
		path, want string
	}{
		{handler.OCI, "/usr/bin/crun", "dev.berth.crun"},
		{handler.Shim, "/opt/kata/bin/containerd-shim-kata-v2", "io.containerd.kata.v2"},
		{handler.Shim, "/opt/bin/containerd-shim-kata-qemu-v2", "io.containerd.kata-qemu.v2"},
		{handler.Shim, "/opt/bin/shim", "dev.berth.shim"},
	} {
		test.Equal(t, fmt.Sprint(c.path), runtimeName(&handler.Definition{Type: c.kind, Path: c.path}), c.want)
	}
}

func TestLabels(t *testing.T) {
	got := labels(map[string]string{"a": "image", "b": "image", kindLabel: "image"}, map[string]string{"a": "pod"}, kindContainer)
	if len(got) != 3 || got["a"] != "pod" || got["b"] != "image" || got[kindLabel] != kindContainer {
		t.Errorf("the labels are %v", got)
	}
}
