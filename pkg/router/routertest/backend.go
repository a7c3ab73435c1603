// Package routertest has an in-memory backend for tests of the code in front of backends. It
// implements a part of the CRI as specified, and runs nothing.
package routertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/step"
)

// Backend keeps pods in memory. It is safe for concurrent use.
type Backend struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	// Fail is called before each call, and may return the call's error. It may also wait or panic.
	// Do not set it while calls are served.
	Fail func(ctx context.Context, rpc string) error
	// SHA256 contains the digests of binaries, by path.
	SHA256 map[string]string
	// Features are what Status reports of each handler.
	Features map[string]*runtimeapi.RuntimeHandlerFeatures

	id string

	mu          sync.Mutex
	made        int
	sandboxes   map[string]*sandbox
	cidr        string
	images      map[string]string // image → handler that it was pulled for
	subscribers map[chan *runtimeapi.ContainerEventResponse]bool
}

type sandbox struct {
	*runtimeapi.PodSandbox
	definition *handler.Definition
	containers map[string]*runtimeapi.Container
}

// New returns an empty backend.
func New(id string) *Backend {
	return &Backend{
		id: id, sandboxes: map[string]*sandbox{}, images: map[string]string{},
		subscribers: map[chan *runtimeapi.ContainerEventResponse]bool{},
	}
}

// ID implements router.Backend.
func (b *Backend) ID() string { return b.id }

// Recover implements daemon.Engine.
func (b *Backend) Recover(ctx context.Context) error { return b.fail(ctx, "Recover") }

// Close implements daemon.Engine.
func (b *Backend) Close(ctx context.Context) error { return b.fail(ctx, "Close") }

// Inventory implements router.Backend.
func (b *Backend) Inventory() []handler.Owned {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []handler.Owned
	for id, s := range b.sandboxes {
		all = append(all, handler.Owned{
			Sandbox: id, Handler: s.definition.Name, UID: s.GetMetadata().GetUid(), Definition: s.definition,
			Binaries:   []handler.OwnedBinary{{Path: s.definition.Path, SHA256: b.SHA256[s.definition.Path]}},
			Containers: slices.Collect(maps.Keys(s.containers)),
		})
	}
	return all
}

// Live implements router.Backend.
func (b *Backend) Live(sandboxID string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sandboxes[sandboxID]
	return s != nil && s.State == runtimeapi.PodSandboxState_SANDBOX_READY
}

// Die marks a sandbox as if its process had exited by itself.
func (b *Backend) Die(sandboxID string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.sandboxes[sandboxID]; s != nil {
		s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
}

// Definition returns the Definition that a sandbox was created with, or nil.
func (b *Backend) Definition(sandboxID string) *handler.Definition {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.sandboxes[sandboxID]; s != nil {
		return s.definition
	}
	return nil
}

func (b *Backend) fail(ctx context.Context, rpc string) error {
	if b.Fail == nil {
		return nil
	}
	return b.Fail(ctx, rpc)
}

// answer returns the error of Fail, or else calls get with mu held and returns its result.
func answer[R any](ctx context.Context, b *Backend, rpc string, get func() (R, error)) (R, error) {
	if err := b.fail(ctx, rpc); err != nil {
		return *new(R), err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return get()
}

// newID returns an ID of 64 hexadecimal digits that begins with the object's number. b.mu is held.
func newID(b *Backend) string {
	b.made++
	return fmt.Sprintf("%04x%s", b.made, strings.Repeat(fmt.Sprintf("%02x", b.id[0]), 30))
}

// RunPodSandbox creates a sandbox. As in a real runtime, the sandbox exists even if Fail then
// returns an error for "RunPodSandbox, half-way".
func (b *Backend) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	if err := b.fail(ctx, "RunPodSandbox"); err != nil {
		return nil, err
	}
	d := handler.DefinitionFrom(ctx)
	if d == nil {
		return nil, fmt.Errorf("no definition: %w", errdefs.ErrInternal)
	}
	b.mu.Lock()
	id := newID(b)
	s := &sandbox{definition: d, containers: map[string]*runtimeapi.Container{}, PodSandbox: &runtimeapi.PodSandbox{
		Id: id, Metadata: req.GetConfig().GetMetadata(), RuntimeHandler: req.GetRuntimeHandler(),
	}}
	b.sandboxes[id] = s
	b.mu.Unlock()
	_, end := step.Begin(ctx, step.Runtime)
	err := b.fail(ctx, "RunPodSandbox, half-way")
	if end(err); err != nil {
		b.mu.Lock()
		s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		b.mu.Unlock()
		return nil, err
	}
	b.publish(id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// StopPodSandbox marks a sandbox as stopped.
func (b *Backend) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	return answer(ctx, b, "StopPodSandbox", func() (*runtimeapi.StopPodSandboxResponse, error) {
		if s := b.sandboxes[req.GetPodSandboxId()]; s != nil {
			s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		}
		return &runtimeapi.StopPodSandboxResponse{}, nil
	})
}

// RemovePodSandbox removes a sandbox with its containers.
func (b *Backend) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	return answer(ctx, b, "RemovePodSandbox", func() (*runtimeapi.RemovePodSandboxResponse, error) {
		delete(b.sandboxes, req.GetPodSandboxId())
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	})
}

// PodSandboxStatus returns a sandbox.
func (b *Backend) PodSandboxStatus(ctx context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return answer(ctx, b, "PodSandboxStatus", func() (*runtimeapi.PodSandboxStatusResponse, error) {
		s, err := b.sandbox(req.GetPodSandboxId())
		if err != nil {
			return nil, err
		}
		return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
			Id: s.Id, Metadata: s.Metadata, State: s.State, RuntimeHandler: s.RuntimeHandler,
		}}, nil
	})
}

// sandbox finds a sandbox; mu is held.
func (b *Backend) sandbox(id string) (*sandbox, error) {
	if s := b.sandboxes[id]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("backend %s has no sandbox %s: %w", b.id, id, errdefs.ErrNotFound)
}

// StartContainer returns the error of Fail, and does nothing else.
func (b *Backend) StartContainer(ctx context.Context, _ *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	return &runtimeapi.StartContainerResponse{}, b.fail(ctx, "StartContainer")
}

// CreateContainer creates a container.
func (b *Backend) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return answer(ctx, b, "CreateContainer", func() (*runtimeapi.CreateContainerResponse, error) {
		s, err := b.sandbox(req.GetPodSandboxId())
		if err != nil {
			return nil, err
		}
		c := &runtimeapi.Container{Id: newID(b), PodSandboxId: s.Id, Metadata: req.GetConfig().GetMetadata()}
		s.containers[c.Id] = c
		return &runtimeapi.CreateContainerResponse{ContainerId: c.Id}, nil
	})
}

// StopContainer marks a container as stopped.
func (b *Backend) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	return answer(ctx, b, "StopContainer", func() (*runtimeapi.StopContainerResponse, error) {
		if c, err := b.container(req.GetContainerId()); err == nil {
			c.State = runtimeapi.ContainerState_CONTAINER_EXITED
		}
		return &runtimeapi.StopContainerResponse{}, nil
	})
}

// RemoveContainer removes a container.
func (b *Backend) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	return answer(ctx, b, "RemoveContainer", func() (*runtimeapi.RemoveContainerResponse, error) {
		if c, err := b.container(req.GetContainerId()); err == nil {
			delete(b.sandboxes[c.PodSandboxId].containers, c.Id)
		}
		return &runtimeapi.RemoveContainerResponse{}, nil
	})
}

// ContainerStatus returns a container.
func (b *Backend) ContainerStatus(ctx context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return answer(ctx, b, "ContainerStatus", func() (*runtimeapi.ContainerStatusResponse, error) {
		c, err := b.container(req.GetContainerId())
		if err != nil {
			return nil, err
		}
		return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: c.Id, Metadata: c.Metadata, State: c.State}}, nil
	})
}

// container finds a container; mu is held.
func (b *Backend) container(id string) (*runtimeapi.Container, error) {
	for _, s := range b.sandboxes {
		if c := s.containers[id]; c != nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("backend %s has no container %s: %w", b.id, id, errdefs.ErrNotFound)
}

// ExecSync returns the backend's ID as output.
func (b *Backend) ExecSync(ctx context.Context, _ *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return &runtimeapi.ExecSyncResponse{Stdout: []byte(b.id)}, b.fail(ctx, "ExecSync")
}

// ListPodSandbox lists sandboxes. It applies only the ID of the filter.
func (b *Backend) ListPodSandbox(ctx context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return answer(ctx, b, "ListPodSandbox", func() (*runtimeapi.ListPodSandboxResponse, error) {
		resp := &runtimeapi.ListPodSandboxResponse{}
		for _, id := range slices.Sorted(maps.Keys(b.sandboxes)) {
			if of := req.GetFilter().GetId(); of == "" || of == id {
				// A shallow copy: the pointers' targets never change.
				s := b.sandboxes[id]
				resp.Items = append(resp.Items, &runtimeapi.PodSandbox{Id: s.Id, Metadata: s.Metadata, State: s.State, RuntimeHandler: s.RuntimeHandler})
			}
		}
		return resp, nil
	})
}

// ListContainers lists containers. It applies only the IDs of the filter.
func (b *Backend) ListContainers(ctx context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return answer(ctx, b, "ListContainers", func() (*runtimeapi.ListContainersResponse, error) {
		resp := &runtimeapi.ListContainersResponse{}
		f := req.GetFilter()
		for _, s := range b.sandboxes {
			for _, c := range s.containers {
				if (f.GetId() == "" || f.GetId() == c.Id) && (f.GetPodSandboxId() == "" || f.GetPodSandboxId() == s.Id) {
					resp.Containers = append(resp.Containers, &runtimeapi.Container{Id: c.Id, PodSandboxId: c.PodSandboxId, Metadata: c.Metadata, State: c.State})
				}
			}
		}
		return resp, nil
	})
}

// GetContainerEvents sends an event for each sandbox that is started.
func (b *Backend) GetContainerEvents(_ *runtimeapi.GetEventsRequest, to grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	if err := b.fail(to.Context(), "GetContainerEvents"); err != nil {
		return err
	}
	events := make(chan *runtimeapi.ContainerEventResponse, 1024)
	b.mu.Lock()
	b.subscribers[events] = true
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.subscribers, events)
		b.mu.Unlock()
	}()
	for {
		select {
		case <-to.Context().Done():
			return to.Context().Err()
		case e := <-events:
			if err := to.Send(e); err != nil {
				return err
			}
		}
	}
}

func (b *Backend) publish(id string, t runtimeapi.ContainerEventType) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for events := range b.subscribers {
		events <- &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: t}
	}
}

// Subscribers counts the subscriptions to events.
func (b *Backend) Subscribers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subscribers)
}

// Version returns the backend's ID as the runtime's version.
func (b *Backend) Version(ctx context.Context, _ *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "memory", RuntimeVersion: b.id, RuntimeApiVersion: "v1"}, b.fail(ctx, "Version")
}

// RuntimeConfig returns cgroupfs as the driver.
func (b *Backend) RuntimeConfig(ctx context.Context, _ *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, b.fail(ctx, "RuntimeConfig")
}

// UpdateRuntimeConfig implements router.Backend.
func (b *Backend) UpdateRuntimeConfig(ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return answer(ctx, b, "UpdateRuntimeConfig", func() (*runtimeapi.UpdateRuntimeConfigResponse, error) {
		b.cidr = req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
		return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
	})
}

// CIDR returns the last pod CIDR from UpdateRuntimeConfig.
func (b *Backend) CIDR() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cidr
}

// Status returns the two required conditions, and one of the backend's own.
func (b *Backend) Status(ctx context.Context, _ *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	if err := b.fail(ctx, "Status"); err != nil {
		return nil, err
	}
	resp := &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: "RuntimeReady", Status: true, Message: b.id}, {Type: "NetworkReady", Status: true, Message: b.id},
		{Type: "Healthy-" + b.id, Status: true},
	}}, Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true}}
	for _, name := range slices.Sorted(maps.Keys(b.Features)) {
		resp.RuntimeHandlers = append(resp.RuntimeHandlers, &runtimeapi.RuntimeHandler{Name: name, Features: b.Features[name]})
	}
	return resp, nil
}

// PullImage records the handler that an image was pulled for.
func (b *Backend) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	return answer(ctx, b, "PullImage", func() (*runtimeapi.PullImageResponse, error) {
		name := ""
		if d := handler.DefinitionFrom(ctx); d != nil {
			name = d.Name
		}
		b.images[req.GetImage().GetImage()] = name
		return &runtimeapi.PullImageResponse{ImageRef: b.id + "/" + name}, nil
	})
}

// ListImages lists the pulled images.
func (b *Backend) ListImages(ctx context.Context, _ *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return answer(ctx, b, "ListImages", func() (*runtimeapi.ListImagesResponse, error) {
		resp := &runtimeapi.ListImagesResponse{}
		for _, image := range slices.Sorted(maps.Keys(b.images)) {
			resp.Images = append(resp.Images, &runtimeapi.Image{Id: image})
		}
		return resp, nil
	})
}

// ImageFsInfo returns the backend's ID as the mount point.
func (b *Backend) ImageFsInfo(ctx context.Context, _ *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: b.id}}}}, b.fail(ctx, "ImageFsInfo")
}

// ImageStatus returns a pulled image.
func (b *Backend) ImageStatus(ctx context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	return answer(ctx, b, "ImageStatus", func() (*runtimeapi.ImageStatusResponse, error) {
		resp := &runtimeapi.ImageStatusResponse{}
		if _, there := b.images[req.GetImage().GetImage()]; there {
			resp.Image = &runtimeapi.Image{Id: req.GetImage().GetImage()}
		}
		return resp, nil
	})
}

// RemoveImage removes an image.
func (b *Backend) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	return answer(ctx, b, "RemoveImage", func() (*runtimeapi.RemoveImageResponse, error) {
		delete(b.images, req.GetImage().GetImage())
		return &runtimeapi.RemoveImageResponse{}, nil
	})
}
