package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/ocispec"
)

// containerViews show containers to callers.
type containerViews struct {
	layout
	objects  *objects
	runtimes *runtimes
}

func (c *container) state() runtimeapi.ContainerState {
	switch c.Status().Phase {
	case phaseCreated:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	case phaseRunning:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	case phaseExited:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	}
	return runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

// ContainerStatus tells everything about one container, in every state.
func (b *containerViews) ContainerStatus(_ context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := b.objects.container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: c.status()}
	if r.GetVerbose() {
		resp.Info = b.info(c)
	}
	return resp, nil
}

func (c *container) status() *runtimeapi.ContainerStatus {
	spec, st, config := c.Spec(), c.Status(), c.config()
	return &runtimeapi.ContainerStatus{
		Id:          c.ID(),
		Metadata:    config.GetMetadata(),
		State:       c.state(),
		CreatedAt:   spec.CreatedAt,
		StartedAt:   st.StartedAt,
		FinishedAt:  st.FinishedAt,
		ExitCode:    st.ExitCode,
		Image:       imageSpec(spec, config),
		ImageRef:    spec.ImageRef,
		ImageId:     spec.ImageID,
		Reason:      st.Reason,
		Message:     st.Message,
		Labels:      config.GetLabels(),
		Annotations: config.GetAnnotations(),
		Mounts:      config.GetMounts(),
		LogPath:     spec.LogPath,
		Resources:   st.Resources.msg,
		User:        containerUser(st),
		StopSignal:  ocispec.CRISignal(spec.StopSignal),
	}
}

func imageSpec(spec *containerSpec, c *runtimeapi.ContainerConfig) *runtimeapi.ImageSpec {
	return &runtimeapi.ImageSpec{
		// A name that others show too; what the pod asked for stands beside it.
		Image: cmp.Or(spec.ImageTag, spec.ImageName), UserSpecifiedImage: c.GetImage().GetUserSpecifiedImage(),
		Annotations: c.GetImage().GetAnnotations(), RuntimeHandler: c.GetImage().GetRuntimeHandler(),
		ImageRef: c.GetImage().GetImageRef(),
	}
}

func containerUser(st *containerStatus) *runtimeapi.ContainerUser {
	u := &runtimeapi.LinuxContainerUser{Uid: int64(st.User.UID), Gid: int64(st.User.GID)}
	for _, g := range st.User.AdditionalGids {
		u.SupplementalGroups = append(u.SupplementalGroups, int64(g))
	}
	return &runtimeapi.ContainerUser{Linux: u}
}

// containerInfo is the verbose part of ContainerStatus.
type containerInfo struct {
	PID         int             `json:"pid"`
	SandboxID   string          `json:"sandboxID"`
	Handler     string          `json:"handler"`
	Runtime     string          `json:"runtime"`
	Version     string          `json:"runtimeVersion"`
	RuntimePath string          `json:"runtimePath"`
	Binaries    []binaryInfo    `json:"binaries,omitempty"`
	Snapshotter string          `json:"snapshotter"`
	CgroupsPath string          `json:"cgroupsPath"`
	Supervisor  string          `json:"supervisor"`
	RuntimeSpec json.RawMessage `json:"runtimeSpec,omitempty"`
}

func (b *containerViews) info(c *container) map[string]string {
	s := c.sandbox.Spec()
	i := containerInfo{
		PID: c.Status().PID, SandboxID: c.sandbox.ID(), Handler: s.Definition.Name,
		Runtime: s.Plan.Runtime, Version: s.Plan.Version, RuntimePath: s.Definition.Path,
		Binaries: b.runtimes.told(s), Snapshotter: c.Spec().Snapshotter, CgroupsPath: c.Spec().CgroupsPath, Supervisor: s.Supervisor,
	}
	if spec, err := os.ReadFile(filepath.Join(b.containerDir(c.ID()), "config.json")); err == nil {
		i.RuntimeSpec = spec
	}
	text, err := json.Marshal(i)
	if err != nil {
		return nil
	}
	return map[string]string{"info": string(text)}
}

// ListContainers lists containers in all states, newest first.
func (b *containerViews) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: b.list(r.GetFilter())}, nil
}

func (b *containerViews) list(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	all := b.objects.allContainers()
	items := make([]*runtimeapi.Container, 0, len(all))
	for _, c := range all {
		if state := c.state(); c.matchesIn(state, f) {
			items = append(items, c.itemIn(state))
		}
	}
	return items
}

func (c *container) itemIn(state runtimeapi.ContainerState) *runtimeapi.Container {
	spec, config := c.Spec(), c.config()
	return &runtimeapi.Container{
		Id: c.ID(), PodSandboxId: spec.Sandbox, Metadata: config.GetMetadata(),
		Image: imageSpec(spec, config), ImageRef: spec.ImageRef, ImageId: spec.ImageID,
		State: state, CreatedAt: spec.CreatedAt, Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
	}
}

func (c *container) matches(f *runtimeapi.ContainerFilter) bool { return c.matchesIn(c.state(), f) }

// matchesIn is matches for a state that was looked at before: what is listed by its
// state has that one.
func (c *container) matchesIn(state runtimeapi.ContainerState, f *runtimeapi.ContainerFilter) bool {
	return strings.HasPrefix(c.ID(), f.GetId()) &&
		strings.HasPrefix(c.Spec().Sandbox, f.GetPodSandboxId()) &&
		(f.GetState() == nil || f.GetState().GetState() == state) &&
		selects(f.GetLabelSelector(), c.config().GetLabels())
}
