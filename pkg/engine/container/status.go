package container

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

// views serves status and lists of containers.
type views struct{ Deps }

// ContainerStatus returns the status of a container in any state.
func (b *views) ContainerStatus(_ context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := b.Pods.Index.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: c.CRIStatus()}
	if r.GetVerbose() {
		resp.Info = b.info(c)
	}
	return resp, nil
}

// containerInfo is the verbose part of ContainerStatus.
type containerInfo struct {
	PID         int                   `json:"pid"`
	SandboxID   string                `json:"sandboxID"`
	Handler     string                `json:"handler"`
	Runtime     string                `json:"runtime"`
	Version     string                `json:"runtimeVersion"`
	RuntimePath string                `json:"runtimePath"`
	Binaries    []handler.OwnedBinary `json:"binaries,omitempty"`
	Snapshotter string                `json:"snapshotter"`
	CgroupsPath string                `json:"cgroupsPath"`
	Supervisor  string                `json:"supervisor"`
	RuntimeSpec json.RawMessage       `json:"runtimeSpec,omitempty"`
}

func (b *views) info(c *pod.Container) map[string]string {
	s := c.Sandbox.Spec()
	i := containerInfo{
		PID: c.Status().PID, SandboxID: c.Sandbox.ID(), Handler: s.Definition.Name,
		Runtime: s.Plan.Runtime, Version: s.Plan.Version, RuntimePath: s.Definition.Path,
		Binaries: b.Binaries.Runtimes.Describe(s), Snapshotter: c.Spec().Snapshotter, CgroupsPath: c.Spec().CgroupsPath, Supervisor: s.Supervisor,
	}
	if spec, err := os.ReadFile(filepath.Join(b.Pods.ContainerDir(c.ID()), "config.json")); err == nil {
		i.RuntimeSpec = spec
	}
	text, err := json.Marshal(i)
	if err != nil {
		return nil
	}
	return map[string]string{"info": string(text)}
}

// ListContainers lists containers in all states, newest first.
func (b *views) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: b.List(r.GetFilter())}, nil
}

func (b *views) List(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	return pod.Items(b.Pods.Index.AllContainers(), func(o *pod.Container) *runtimeapi.Container { return o.Item(f) })
}

// EncodedContainers is the encoded response of ListContainers.
func (b *views) EncodedContainers(f *runtimeapi.ContainerFilter) ([]byte, error) {
	return b.Pods.Index.EncodedContainers(f)
}
