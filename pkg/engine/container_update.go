package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/validate"
	"github.com/berth-cri/berth/pkg/handler"
)

// resizing serves the call that changes the limits of a container, in which plugins
// have a say.
type resizing struct {
	objects   *objects
	resources *resources
	hooks     *hooks
	plugins   *nri.Plugins // nil unless there can be any
}

// resources are the limits of containers.
type resources struct {
	layout
	settings *settings
	tasks    *tasks
}

func newResources(l layout, s *settings, t *tasks) *resources { return &resources{l, s, t} }

// UpdateContainerResources changes the limits of a container. What the request
// leaves at zero stays. If the runtime refuses, or the change cannot be recorded,
// the old limits are put back.
func (b *resizing) UpdateContainerResources(ctx context.Context, r *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	if err := validate.UpdateContainerResources(r); err != nil {
		return nil, err
	}
	c, err := b.objects.container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.Status().Phase == phaseExited {
		return nil, c.ended()
	}
	change, pids, err := b.updateForPlugins(ctx, c, r.GetLinux())
	if err != nil {
		return nil, err
	}
	if err := b.resources.changeResources(ctx, c, change, pids); err != nil {
		return nil, err
	}
	b.plugins.PostUpdateContainer(ctx, b.hooks.container(c))
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// ended is why nothing of c can change.
func (c *container) ended() error {
	return fmt.Errorf("container %s has ended, its resources cannot change: %w", c.ID(), errEnded)
}

var errEnded = fmt.Errorf("%w", errdefs.ErrFailedPrecondition)

// changeResources changes the limits of c, and that of its processes unless it
// is nil, which the CRI has no word for.
func (b *resources) changeResources(ctx context.Context, c *container, change *runtimeapi.LinuxContainerResources, pids *int64) error {
	if err := c.op.lock(ctx); err != nil {
		return err
	}
	defer c.op.unlock()
	if c.Status().Phase == phaseExited {
		return c.ended()
	}
	spec, err := readSpec(b.containerDir(c.ID()))
	if err != nil {
		return err
	}
	after, err := ocispec.UpdateResources(spec.Linux.Resources, change, b.settings.nodeOf(c.sandbox.Spec()))
	if err != nil {
		return err
	}
	if pids != nil {
		after.Pids = &specs.LinuxPids{Limit: pids}
	}
	u := &undo{}
	if err := b.setResources(ctx, u, c, spec, after); err != nil {
		return errors.Join(err, undone(u.run()))
	}
	return nil
}

// setResources changes the spec, the cgroup and the record, in this order; u puts
// back what was changed.
func (b *resources) setResources(ctx context.Context, u *undo, c *container, spec *specs.Spec, after *specs.LinuxResources) error {
	bundle, before := b.containerDir(c.ID()), spec.Linux.Resources
	put := func(res *specs.LinuxResources) error {
		spec.Linux.Resources = res
		return replaceSpec(bundle, spec)
	}
	told := false
	u.add("the limits", func(ctx context.Context) error {
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
	if c.Status().Phase == phaseRunning || c.sandbox.Spec().Definition.Type == handler.Shim {
		err := b.applyResources(context.WithoutCancel(ctx), c, after)
		// What a runtime refuses it may have done in part, unless it has no update.
		if told = !errdefs.IsNotImplemented(err); err != nil {
			return err
		}
	}
	return c.Update(func(st *containerStatus) error { st.Resources.msg = ocispec.ContainerResources(spec); return nil })
}

// applyResources makes the runtime apply limits.
func (b *resources) applyResources(ctx context.Context, c *container, res *specs.LinuxResources) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout(c.sandbox.Spec().Definition))
	defer cancel()
	client, err := b.tasks.worker(ctx, c.sandbox)
	if err != nil {
		return err
	}
	a, err := typeurl.MarshalAny(res)
	if err != nil {
		return err
	}
	_, err = client.Task.Update(ctx, &taskapi.UpdateTaskRequest{ID: c.ID(), Resources: &anypb.Any{TypeUrl: a.GetTypeUrl(), Value: a.GetValue()}})
	if err != nil {
		return fmt.Errorf("update resources: %w", fromShim(err))
	}
	return nil
}

func undone(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("and the old ones could not be put back: %w", err)
}

// readSpec reads the spec of a container's bundle.
func readSpec(bundle string) (*specs.Spec, error) {
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read the container's spec: %w", err)
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(text, spec); err != nil {
		return nil, fmt.Errorf("read the container's spec: %w", err)
	}
	if spec.Linux == nil {
		spec.Linux = &specs.Linux{}
	}
	if spec.Linux.Resources == nil {
		spec.Linux.Resources = &specs.LinuxResources{}
	}
	return spec, nil
}

// replaceSpec writes the spec of a live bundle as a whole.
func replaceSpec(bundle string, spec *specs.Spec) error {
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	tmp := filepath.Join(bundle, "config.json.tmp")
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return os.Rename(tmp, filepath.Join(bundle, "config.json"))
}
