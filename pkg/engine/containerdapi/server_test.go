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
	"github.com/containerd/containerd/v2/plugins"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

func newServer(t *testing.T) *Server {
	t.Helper()
	dir := t.TempDir()
	pods, _, err := pod.Open(t.Context(), filepath.Join(dir, "root"), filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	store, err := image.Open(t.Context(), image.Config{Root: filepath.Join(dir, "images")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s, err := New(t.Context(), Deps{Pods: pods, Images: store, Stats: noStats{}, Events: &Broker{}, OOM: func(string) {}, Version: "1"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type noStats struct{}

func (noStats) ContainerStats(context.Context, *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	return nil, errors.New("no statistics here")
}

// Each method of each service is decided on: one that a newer API brings is not let
// through by chance.
func TestEveryMethodHasAKind(t *testing.T) {
	server, err := newServer(t).server(Agents, nil)
	if err != nil {
		t.Fatal(err)
	}
	var served []string
	for service, info := range server.GetServiceInfo() {
		for _, m := range info.Methods {
			served = append(served, shortName("/"+service+"/"+m.Name))
		}
	}
	for _, m := range served {
		if kinds[m] == unknown {
			t.Errorf("%s is of no kind", m)
		}
	}
	for m := range kinds {
		if !slices.Contains(served, m) {
			t.Errorf("%s is not served", m)
		}
	}
}

// Clients look for these by their names.
func TestPluginsThatClientsLookFor(t *testing.T) {
	served, err := containerdServices(t.Context(), newServer(t).deps)
	if err != nil || len(served) != 4 {
		t.Fatalf("%d services, %v", len(served), err)
	}
	var names []string
	for _, r := range append(provided(newServer(t).deps), named()...) {
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

func TestNewNeedsAllParts(t *testing.T) {
	if _, err := New(t.Context(), Deps{}); err == nil {
		t.Error("a server without parts")
	}
}

func TestBrokerDisconnectsWhoDoesNotRead(t *testing.T) {
	b := &Broker{}
	silent, err := b.subscribe(nil)
	if err != nil {
		t.Fatal(err)
	}
	picky, err := b.subscribe([]string{`topic=="/images/delete"`})
	if err != nil {
		t.Fatal(err)
	}
	for range subscriberBuffer + 1 {
		if err := b.Publish(t.Context(), "/images/create", &events.ImageCreate{Name: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Publish(t.Context(), "/images/delete", &events.ImageDelete{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	if n := len(picky.events); n != 1 {
		t.Errorf("who wants one topic has %d events", n)
	}
	n := 0
	for range silent.events {
		n++
	}
	if n != subscriberBuffer || !silent.missed {
		t.Errorf("who did not read has %d events, missed %t", n, silent.missed)
	}
	if _, err := b.subscribe([]string{"topic~="}); err == nil {
		t.Error("a filter that is none is taken")
	}
	for range maxSubscribers {
		_, err = b.subscribe(nil)
	}
	if err == nil {
		t.Errorf("there may be more than %d subscribers", maxSubscribers)
	}
}

func TestLifeEvents(t *testing.T) {
	d := &handler.Definition{Name: "runc", Path: "/usr/bin/runc"}
	s := enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: d}, &enginetest.Runner{})
	c := enginetest.Container(t, s)
	if err := c.Update(func(st *pod.ContainerStatus) error {
		st.PID, st.ExitCode, st.Reason = 7, 137, "OOMKilled"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	topics := func(c *pod.Container, id string, kind runtimeapi.ContainerEventType) string {
		var all []string
		for _, e := range lifeEvents(s, c, id, kind) {
			text := e.topic
			if exit, ok := e.event.(*events.TaskExit); ok {
				text += fmt.Sprintf(" %d", exit.GetExitStatus())
			}
			all = append(all, text)
		}
		return strings.Join(all, ", ")
	}
	const created, started, stopped, deleted = runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
		runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
	for _, want := range []struct {
		name  string
		c     *pod.Container
		id    string
		kind  runtimeapi.ContainerEventType
		topic string
	}{
		{"a container is created", c, c.ID(), created, "/containers/create"},
		{"a container is started", c, c.ID(), started, "/tasks/create, /tasks/start"},
		{"a container is killed for memory", c, c.ID(), stopped, "/tasks/oom, /tasks/exit 137"},
		{"a container is removed", nil, c.ID(), deleted, "/tasks/delete, /containers/delete"},
		{"a sandbox without a process is created", nil, s.ID(), created, "/containers/create"},
		{"a sandbox without a process is started", nil, s.ID(), started, ""},
		{"a sandbox without a process is removed", nil, s.ID(), deleted, "/containers/delete"},
	} {
		if got := topics(want.c, want.id, want.kind); got != want.topic {
			t.Errorf("%s: %q, want %q", want.name, got, want.topic)
		}
	}
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
		if got := runtimeName(&handler.Definition{Type: c.kind, Path: c.path}); got != c.want {
			t.Errorf("%s: %s, want %s", c.path, got, c.want)
		}
	}
}

func TestLabels(t *testing.T) {
	got := labels(map[string]string{"a": "image", "b": "image", kindLabel: "image"}, map[string]string{"a": "pod"}, kindContainer)
	if len(got) != 3 || got["a"] != "pod" || got["b"] != "image" || got[kindLabel] != kindContainer {
		t.Errorf("%v", got)
	}
}
