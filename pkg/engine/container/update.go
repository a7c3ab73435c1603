package container

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/engine/validate"
)

// resizing serves the call that changes the limits of a container, in which plugins
// have a say.
type resizing struct {
	pods      *pod.Registry
	hooks     *hooks.Hooks
	resources *Resources
}

// Resources are the limits of containers.
type Resources struct {
	pods     *pod.Registry
	tasks    *task.Service
	settings *settings.Settings
}

// NewResources changes the limits of containers.
func NewResources(pods *pod.Registry, s *settings.Settings, t *task.Service) *Resources {
	return &Resources{pods: pods, settings: s, tasks: t}
}

// UpdateContainerResources changes the limits of a container. What the request
// leaves at zero stays. If the runtime refuses, or the change cannot be recorded,
// the old limits are put back.
func (b *resizing) UpdateContainerResources(ctx context.Context, r *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	if err := validate.UpdateContainerResources(r); err != nil {
		return nil, err
	}
	c, err := b.pods.Index.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.Status().Phase == pod.PhaseExited {
		return nil, c.Ended()
	}
	change, pids, err := b.updateForPlugins(ctx, c, r.GetLinux())
	if err != nil {
		return nil, err
	}
	if err := b.resources.changeResources(ctx, c, change, pids); err != nil {
		return nil, err
	}
	b.hooks.Plugins.PostUpdateContainer(ctx, b.hooks.Container(c))
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// changeResources changes the limits of c, and that of its processes unless it
// is nil, which the CRI has no word for.
func (b *Resources) changeResources(ctx context.Context, c *pod.Container, change *runtimeapi.LinuxContainerResources, pids *int64) error {
	if err := c.Op.Lock(ctx); err != nil {
		return err
	}
	defer c.Op.Unlock()
	if c.Status().Phase == pod.PhaseExited {
		return c.Ended()
	}
	spec, err := pod.ReadSpec(b.pods.ContainerDir(c.ID()))
	if err != nil {
		return err
	}
	after, err := ocispec.UpdateResources(spec.Linux.Resources, change, b.settings.NodeOf(c.Sandbox.Spec()))
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
			return fmt.Errorf("%w; the limits from before could not be restored", err)
		}
		return err
	}
	return nil
}

// setResources changes the spec, the cgroup and the record, in this order; u puts
// back what was changed.
func (b *Resources) setResources(ctx context.Context, u *pod.Undo, c *pod.Container, spec *specs.Spec, after *specs.LinuxResources) error {
	bundle, before := b.pods.ContainerDir(c.ID()), spec.Linux.Resources
	put := func(res *specs.LinuxResources) error {
		spec.Linux.Resources = res
		return replaceSpec(bundle, spec)
	}
	told := false
	u.Add("the limits", func(ctx context.Context) error {
		// The next start goes by the spec, also if the runtime refuses again.
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
		// What a runtime refuses it may have done in part, unless it has no update.
		if told = !errdefs.IsNotImplemented(err); err != nil {
			return err
		}
	}
	return c.Update(func(st *pod.ContainerStatus) error { st.Resources.Msg = ocispec.ContainerResources(spec); return nil })
}

// applyResources makes the runtime apply limits.
func (b *Resources) applyResources(ctx context.Context, c *pod.Container, res *specs.LinuxResources) error {
	ctx, cancel := context.WithTimeout(ctx, task.CallTimeout(c.Sandbox.Spec().Definition))
	defer cancel()
	client, err := b.tasks.Worker(ctx, c.Sandbox)
	if err != nil {
		return err
	}
	a, err := typeurl.MarshalAny(res)
	if err != nil {
		return err
	}
	_, err = client.Task.Update(ctx, &taskapi.UpdateTaskRequest{ID: c.ID(), Resources: &anypb.Any{TypeUrl: a.GetTypeUrl(), Value: a.GetValue()}})
	if err != nil {
		return fmt.Errorf("update resources: %w", task.FromShim(err))
	}
	return nil
}

func replaceSpec(bundle string, spec *specs.Spec) error {
	return atomicfile.WriteJSON(filepath.Join(bundle, "config.json"), spec, atomicfile.Relaxed)
}

// updateForPlugins asks plugins what is to be done in place of a request.
func (b *resizing) updateForPlugins(ctx context.Context, c *pod.Container, change *runtimeapi.LinuxContainerResources) (*runtimeapi.LinuxContainerResources, *int64, error) {
	wanted, err := b.hooks.Plugins.UpdateContainer(ctx, b.hooks.Container(c), change)
	if err != nil || wanted == nil {
		return change, nil, err
	}
	return nri.ToCRI(wanted), nri.Pids(wanted), nil
}
