package container

import (
	"context"
	"errors"
	"fmt"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// Resources are the limits of containers.
type Resources struct {
	Pods     *pod.Registry
	Tasks    *task.Service
	Settings *settings.Settings
}

// changeResources changes the limits of c, and its process limit unless pids is nil; the CRI has no
// field for the latter.
func (b *Resources) changeResources(ctx context.Context, c *pod.Container, change *runtimeapi.LinuxContainerResources, pids *int64) error {
	if err := c.Op.Lock(ctx); err != nil {
		return err
	}
	defer c.Op.Unlock()
	if c.Status().Phase == pod.PhaseExited {
		return c.Ended()
	}
	spec, err := pod.ReadSpec(b.Pods.ContainerDir(c.ID()))
	if err != nil {
		return err
	}
	after, err := ocispec.UpdateResources(spec.Linux.Resources, change, b.Settings.NodeOf(c.Sandbox.Spec()))
	if err != nil {
		return err
	}
	if pids != nil {
		after.Pids = &specs.LinuxPids{Limit: pids}
	}
	u := &pod.Undo{}
	if err := b.setResources(ctx, u, c, spec, after); err != nil {
		if failed := u.Run(); failed != nil {
			log.G(ctx).WithError(failed).WithField("container", c.ID()).Error("Failed to restore resources of container after a failed update")
			return fmt.Errorf("%w; the previous limits could not be restored", err)
		}
		return err
	}
	return nil
}

// setResources changes spec, cgroup and record, in this order; u restores spec and cgroup.
func (b *Resources) setResources(ctx context.Context, u *pod.Undo, c *pod.Container, spec *specs.Spec, after *specs.LinuxResources) error {
	bundle, before := b.Pods.ContainerDir(c.ID()), spec.Linux.Resources
	put := func(res *specs.LinuxResources) error {
		spec.Linux.Resources = res
		return pod.WriteSpec(bundle, spec)
	}
	told := false
	u.Add("the limits", func(ctx context.Context) error {
		// The next start uses the spec, even if the runtime refuses the old limits.
		err := put(before)
		if told {
			err = errors.Join(err, b.applyResources(ctx, c, before))
		}
		return err
	})
	if err := put(after); err != nil {
		return err
	}
	if c.Status().Phase == pod.PhaseRunning || c.Sandbox.CreatesEarly() {
		err := b.applyResources(context.WithoutCancel(ctx), c, after)
		// A runtime may apply part of an update that it refuses, unless it does not implement updates.
		if told = !errdefs.IsNotImplemented(err); err != nil {
			return err
		}
	}
	return c.Update(func(st *pod.ContainerStatus) error { st.Resources.Msg = ocispec.ContainerResources(spec); return nil })
}

func (b *Resources) applyResources(ctx context.Context, c *pod.Container, res *specs.LinuxResources) error {
	ctx, cancel := context.WithTimeout(ctx, task.CallTimeout(c.Sandbox.Spec().Definition))
	defer cancel()
	client, err := b.Tasks.Worker(ctx, c.Sandbox)
	if err != nil {
		return err
	}
	resources, err := typeurl.MarshalAnyToProto(res)
	if err != nil {
		return err
	}
	_, err = client.Task.Update(ctx, &taskapi.UpdateTaskRequest{ID: c.ID(), Resources: resources})
	if err != nil {
		return fmt.Errorf("update resources: %w", task.FromShim(err))
	}
	return nil
}

// pluginNode is the plugins' view of the engine.
type pluginNode struct {
	subjects  *hooks.Subjects
	resources *Resources
}

// NewPluginNode lets plugins list pods and containers and change resources.
func NewPluginNode(s *hooks.Subjects, r *Resources) nri.Node { return pluginNode{s, r} }

func (n pluginNode) Pods() []nri.Subject {
	var pods []nri.Subject
	for _, s := range n.resources.Pods.Index.AllSandboxes() {
		pods = append(pods, n.subjects.Pod(s))
	}
	return pods
}

func (n pluginNode) Containers() []nri.Subject {
	var containers []nri.Subject
	for _, c := range n.resources.Pods.Index.AllContainers() {
		containers = append(containers, n.subjects.Container(c))
	}
	return containers
}

// UpdateContainer applies a plugin's change. A missing or exited container needs no change. ctx
// limits the wait for the container's lock, because the holder may be waiting for plugins.
func (n pluginNode) UpdateContainer(ctx context.Context, id string, change *api.LinuxResources) error {
	c, err := n.resources.Pods.Index.Container(id)
	if errdefs.IsNotFound(err) || err == nil && c.Status().Phase == pod.PhaseExited {
		return nil
	}
	if err != nil {
		return err
	}
	err = n.resources.changeResources(ctx, c, nri.ToCRI(change), nri.Pids(change))
	if errors.Is(err, pod.ErrEnded) {
		return nil
	}
	return err
}
