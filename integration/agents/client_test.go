package agents

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	events "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/containerdapi"
)

// watcher records the events that containerd's client receives.
type watcher struct {
	mu     sync.Mutex
	events []string
}

// watch subscribes to events until the test ends.
func watch(t *testing.T, c *client.Client, filters ...string) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(namespaces.WithNamespace(context.Background(), containerdapi.Namespace))
	t.Cleanup(cancel)
	w := &watcher{}
	ch, errs := c.EventService().Subscribe(ctx, filters...)
	go func() {
		for {
			select {
			case e := <-ch:
				w.note(fmt.Sprintf("%s %s %s", e.Namespace, e.Topic, subject(e.Event)))
			case err := <-errs:
				w.note(fmt.Sprint("the subscription ended: ", err))
				return
			}
		}
	}()
	return w
}

// subject is the object of an event, and for an exit also the exit status.
func subject(packed typeurl.Any) string {
	e, err := typeurl.UnmarshalAny(packed)
	if err != nil {
		return err.Error()
	}
	switch e := e.(type) {
	case *events.ContainerCreate:
		return e.ID + " " + e.Image
	case *events.ContainerDelete:
		return e.ID
	case *events.TaskStart:
		return fmt.Sprintf("%s %t", e.ContainerID, e.Pid > 0)
	case *events.TaskExit:
		return fmt.Sprintf("%s %d", e.ContainerID, e.ExitStatus)
	case *events.TaskDelete:
		return e.ContainerID
	case *events.ImageCreate:
		return e.Name
	case *events.ImageDelete:
		return e.Name
	case *events.ContentCreate:
		return e.Digest
	}
	return fmt.Sprintf("%T", e)
}

func (w *watcher) note(event string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, event)
}

// saw waits until these events have come in this order; others may come between them.
func (w *watcher) saw(t *testing.T, want ...string) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		at := 0
		for _, e := range w.events {
			if at < len(want) && e == want[at] {
				at++
			}
		}
		if at < len(want) {
			return fmt.Errorf("no event %q after the first %d wanted events, in:\n%s", want[at], at, strings.Join(w.events, "\n"))
		}
		return nil
	})
}

func TestGoClient(t *testing.T) {
	b := newBed(t, "goclient", testbed.Options{})
	c := b.dial(t)
	ctx := namespaces.WithNamespace(t.Context(), containerdapi.Namespace)
	if ok, err := c.IsServing(ctx); !ok {
		t.Fatalf("the client does not reach the API: %v", err)
	}
	all, tasks := watch(t, c), watch(t, c, `topic=="/tasks/exit"`)
	// A subscription begins at an unknown time; from its first event on it is complete.
	testbed.Eventually(t, patience, func() error {
		b.Client.Pull(t, "", b.Image)
		if _, err := c.ImageService().Get(ctx, b.Image); err != nil {
			return err
		}
		if err := c.ImageService().Delete(ctx, b.Image); err != nil {
			return err
		}
		all.mu.Lock()
		defer all.mu.Unlock()
		if !slices.Contains(all.events, "k8s.io /images/delete "+b.Image) {
			return errors.New("no event for the removed image")
		}
		return nil
	})
	p := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", "trap 'exit 3' TERM; echo trapped; while :; do sleep 0.1; done"}})
	p.Container.WaitLog(t, "trapped")
	id := p.Container.ID
	got, err := c.LoadContainer(ctx, id)
	testbed.Must(t, err)
	info, err := got.Info(ctx)
	testbed.Must(t, err)
	spec, err := got.Spec(ctx)
	if err != nil || spec.Process == nil || !slices.Contains(spec.Process.Args, "sh") {
		t.Errorf("read the spec of a container: %v, %+v", err, spec)
	}
	if info.Image != b.Image || info.SandboxID != p.ID || info.SnapshotKey != id {
		t.Errorf("the container is %+v, want its image, sandbox and snapshot", info)
	}
	if image, err := got.Image(ctx); err != nil || image.Name() != b.Image {
		t.Errorf("read the image of a container: %v", err)
	}
	task, err := got.Task(ctx, nil)
	testbed.Must(t, err)
	if st, err := task.Status(ctx); err != nil || st.Status != client.Running {
		t.Errorf("the status of a running task is %+v, %v", st, err)
	}
	if pids, err := task.Pids(ctx); err != nil || !slices.ContainsFunc(pids, func(p client.ProcessInfo) bool { return p.Pid == task.Pid() }) {
		t.Errorf("the pids of a task lack its process %d: %v, %v", task.Pid(), pids, err)
	}
	measured(t, ctx, task)
	exited, err := task.Wait(ctx)
	testbed.Must(t, err)
	p.Container.Stop(t, time.Minute)
	select {
	case s := <-exited:
		if code, _, err := s.Result(); err != nil || code != 3 {
			t.Errorf("Wait returns exit code %d, %v, want 3", code, err)
		}
	case <-time.After(patience):
		t.Error("Wait does not return after the exit")
	}
	p.Remove(t)
	all.saw(t,
		"k8s.io /containers/create "+p.ID+" berth.dev/pause",
		"k8s.io /containers/create "+id+" "+b.Image,
		"k8s.io /tasks/start "+id+" true",
		"k8s.io /tasks/exit "+id+" 3",
		"k8s.io /tasks/delete "+id,
		"k8s.io /containers/delete "+id,
		"k8s.io /containers/delete "+p.ID)
	tasks.saw(t, "k8s.io /tasks/exit "+id+" 3")
	if _, err := c.LoadContainer(ctx, id); !errdefs.IsNotFound(err) {
		t.Errorf("load a removed container: %v, want not found", err)
	}
	t.Run("refused calls", func(t *testing.T) { notServed(t, ctx, c, b.Image) })
	t.Run("images of clients", func(t *testing.T) { imagesOfClients(t, ctx, b, c) })
}

// measured fails unless a task has metrics of memory and processes.
func measured(t *testing.T, ctx context.Context, task client.Task) { //nolint:revive // t is the first parameter
	t.Helper()
	m, err := task.Metrics(ctx)
	if err != nil {
		t.Errorf("read the metrics of a task: %v", err)
		return
	}
	data, err := typeurl.UnmarshalAny(m.Data)
	testbed.Must(t, err)
	var memory, pids uint64
	switch m := data.(type) {
	case *cgroup1.Metrics:
		memory, pids = m.GetMemory().GetUsage().GetUsage(), m.GetPids().GetCurrent()
	case *cgroup2.Metrics:
		memory, pids = m.GetMemory().GetUsage(), m.GetPids().GetCurrent()
	}
	if memory == 0 || pids == 0 {
		t.Errorf("the metrics of a task have %d bytes and %d processes", memory, pids)
	}
}

func notServed(t *testing.T, ctx context.Context, c *client.Client, image string) { //nolint:revive // t is the first parameter
	t.Helper()
	_, err := c.SandboxStore().List(ctx)
	if !errdefs.IsNotImplemented(err) {
		t.Errorf("call a service that berth does not have: %v, want not implemented", err)
	}
	for what, f := range map[string]func() error{
		"a new container": func() error {
			_, err := c.ContainerService().Create(ctx, containers.Container{ID: "x", Spec: &anypb.Any{TypeUrl: "x", Value: []byte("{}")}, Runtime: containers.RuntimeInfo{Name: "x"}})
			return err
		},
		"a pull that unpacks by itself": func() error {
			_, err := c.Pull(ctx, image, plainHTTP(), client.WithPullUnpack)
			return err
		},
		"a snapshot": func() error {
			_, err := c.SnapshotService("overlayfs").Prepare(ctx, "x", "")
			return err
		},
		"a pull into another namespace": func() error {
			_, err := c.Pull(namespaces.WithNamespace(ctx, "default"), image, plainHTTP())
			return err
		},
	} {
		if err := f(); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v, want permission denied", what, err)
		}
	}
	other := namespaces.WithNamespace(ctx, "moby")
	if found, err := c.Containers(other); err != nil || len(found) > 0 {
		t.Errorf("another namespace lists containers: %v, %v", found, err)
	}
	if _, err := c.LoadContainer(other, "x"); !errdefs.IsNotFound(err) {
		t.Errorf("load a container of another namespace: %v, want not found", err)
	}
}

// plainHTTP has the client use HTTP for every registry, as this test's registry does.
func plainHTTP() client.RemoteOpt {
	return client.WithResolver(docker.NewResolver(docker.ResolverOptions{
		Hosts: docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchAllHosts)),
	}))
}

// imagesOfClients pulls an image by the client, runs a pod from it, and removes the image.
func imagesOfClients(t *testing.T, ctx context.Context, b *bed, c *client.Client) { //nolint:revive // t is the first parameter
	t.Helper()
	ref := b.Registry.Push(t, "mine", testbed.Busybox(t)) + ":latest"
	img, err := c.Pull(ctx, ref, plainHTTP())
	testbed.Mustf(t, err, "pull as containerd's client does")
	if ok, err := img.IsUnpacked(ctx, "overlayfs"); !ok {
		t.Errorf("an image that the client pulled is not unpacked: %v", err)
	}
	p := b.Client.RunPod(t, testbed.PodSpec{Image: ref, Command: []string{"sleep", "1000"}})
	// As through the CRI, an image can be removed while a pod runs from it.
	testbed.Checkf(t, c.ImageService().Delete(ctx, ref), "remove an image that a pod runs from")
	p.Container.Exec(t, "ls", "/")
	b.Restart(t)
	p.Container.Exec(t, "ls", "/")
	if _, err := b.dial(t).ImageService().Get(ctx, ref); !errdefs.IsNotFound(err) {
		t.Errorf("get a removed image after a restart: %v, want not found", err)
	}
}
