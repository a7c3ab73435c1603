package testbed

import (
	"context"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/patience"
)

// callTimeout is the time limit of one call. It is long because gVisor is slow on a busy machine.
var callTimeout = patience.Of(2 * time.Minute)

// Client is a CRI client of a daemon: the generated clients, and helpers for pods.
type Client struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient

	// LogRoot has the pods' log directories.
	LogRoot string
	// CgroupParent is the cgroup that has the pods' cgroups; "" leaves the choice to the daemon.
	CgroupParent string
}

// Dial connects to a CRI socket. The connection ends with t.
func Dial(t T, socket, logRoot, cgroupParent string) *Client {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	Mustf(t, err, "connect to %s", socket)
	t.Cleanup(func() {
		Checkf(t, connection.Close(), "close the connection to %s", socket)
	})
	return &Client{
		RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(connection),
		ImageServiceClient:   runtimeapi.NewImageServiceClient(connection),
		LogRoot:              logRoot,
		CgroupParent:         cgroupParent,
	}
}

// Pull pulls an image for a handler and returns its id.
func (c *Client) Pull(t T, handler, image string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	response, err := c.PullImage(ctx, &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: image, RuntimeHandler: handler},
	})
	Mustf(t, err, "pull %s", image)
	return response.GetImageRef()
}

// RemoveAllPods stops and removes every sandbox that the daemon lists.
func (c *Client) RemoveAllPods(ctx context.Context) error {
	list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var first error
	for _, sandbox := range list.GetItems() {
		if err := c.removePod(ctx, sandbox.GetId()); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (c *Client) removePod(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return err
	}
	_, err := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// logDirectory is a pod's log directory, named as by the kubelet.
func (c *Client) logDirectory(metadata *runtimeapi.PodSandboxMetadata) string {
	return filepath.Join(c.LogRoot, metadata.GetNamespace()+"_"+metadata.GetName()+"_"+metadata.GetUid())
}
