package remote

import (
	"context"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// callTimeout limits one call, so that a call that hangs fails the test that made it.
const callTimeout = 90 * time.Second

// Below are the calls of a kubelet about images, for a container with the pull policy IfNotPresent.
// A kubelet does not name handlers in them, because the gate RuntimeClassInImageCriApi is off by
// default.

// idOf returns the ID of the image that a daemon has under a name; empty if it has none.
func idOf(t *testing.T, c *testbed.Client, handler, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	s, err := c.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name, RuntimeHandler: handler}})
	testbed.Mustf(t, err, "status of %s", name)
	return s.GetImage().GetId()
}

// pull pulls an image for a pod.
func pull(t *testing.T, c *testbed.Client, pod *testbed.Pod, name string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	resp, err := c.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name}, SandboxConfig: pod.Config})
	return resp.GetImageRef(), err
}

// create creates a container of the image id, with name as the image that the user specified.
func create(t *testing.T, c *testbed.Client, pod *testbed.Pod, container, id, name string, change ...func(*runtimeapi.ContainerConfig)) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	config := c.ContainerConfig(container, id, "sleep", "3600")
	config.Image.UserSpecifiedImage = name
	for _, f := range change {
		f(config)
	}
	resp, err := c.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: config, SandboxConfig: pod.Config})
	return resp.GetContainerId(), err
}

// remove removes an image by its name or ID from all stores of the daemon c.
func remove(t *testing.T, c *testbed.Client, name string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	_, err := c.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	return err
}

// images returns the images that a daemon lists, by their IDs.
func images(t *testing.T, c *testbed.Client) map[string]*runtimeapi.Image {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	l, err := c.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	testbed.Must(t, err)
	all := map[string]*runtimeapi.Image{}
	for _, i := range l.GetImages() {
		if all[i.GetId()] != nil {
			t.Errorf("%s is listed twice", i.GetId())
		}
		all[i.GetId()] = i
	}
	return all
}
