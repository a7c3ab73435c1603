package testbed

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TryCheckpoint writes a checkpoint of the pod and these containers to a directory.
func (p *Pod) TryCheckpoint(t T, dir string, containers ...*Container) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	var ids []string
	for _, c := range containers {
		ids = append(ids, c.ID)
	}
	_, err := p.client.CheckpointPod(ctx, &runtimeapi.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: dir, ContainerIds: ids})
	return err
}

// TryRestore restores a pod from a checkpoint. Its containers are CREATED, in the order of the
// request. A cleanup removes the pod.
func (c *Client) TryRestore(t T, request *runtimeapi.RestorePodRequest) (*Pod, []*Container, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	response, err := c.RestorePod(ctx, request)
	if err != nil {
		return nil, nil, err
	}
	pod := &Pod{ID: response.GetPodSandboxId(), Handler: request.GetRuntimeHandler(), Config: request.GetConfig(), client: c}
	t.Cleanup(func() {
		err := c.removePod(context.Background(), pod.ID)
		// A test may have killed the daemon; then the testbed's own cleanup removes the pod.
		if err != nil && status.Code(err) != codes.Unavailable {
			t.Errorf("remove pod %s: %v", request.GetConfig().GetMetadata().GetName(), err)
		}
	})
	ids := map[string]string{}
	for _, restored := range response.GetRestoredContainers() {
		ids[restored.GetName()] = restored.GetContainerId()
	}
	var containers []*Container
	for _, config := range request.GetContainerConfigs() {
		id, ok := ids[config.GetMetadata().GetName()]
		if !ok || id == "" {
			t.Fatalf("the answer has no container %q: %v", config.GetMetadata().GetName(), response)
		}
		delete(ids, config.GetMetadata().GetName())
		containers = append(containers, &Container{ID: id, LogPath: filepath.Join(request.GetConfig().GetLogDirectory(), config.GetLogPath()), client: c})
	}
	if len(ids) != 0 {
		t.Errorf("the answer has containers that the request does not have: %v", ids)
	}
	return pod, containers, nil
}

// CheckpointImage makes an image with the archive of a container's checkpoint, as checkpointctl
// does.
func CheckpointImage(t T, archive string) v1.Image {
	t.Helper()
	layer, err := tarball.LayerFromFile(archive, tarball.WithMediaType(types.OCILayer))
	Mustf(t, err, "make an image of %s", archive)
	image, err := mutate.AppendLayers(Image(t), layer)
	Mustf(t, err, "make an image of %s", archive)
	return mutate.Annotations(image, map[string]string{"org.criu.checkpoint.container.name": "main"}).(v1.Image)
}

// FittingCRIU returns the criu of the machine. If that does not work with the kernel, which may be
// newer, the test is skipped.
func FittingCRIU(t T) string {
	t.Helper()
	criu := Part(t, CRIU)
	if why := CRIUUnfit(t, criu); why != "" {
		t.Skipf("the criu of this machine does not work with its kernel: %s", why)
	}
	return criu
}

// CRIUUnfit is the reason why a criu does not work with this kernel, or "" if it does.
func CRIUUnfit(t T, criu string) string {
	t.Helper()
	out, err := exec.Command(criu, "check").CombinedOutput()
	if err == nil {
		return ""
	}
	for line := range strings.Lines(string(out)) {
		if _, why, ok := strings.Cut(line, "Error ("); ok {
			_, why, _ = strings.Cut(why, "): ")
			return strings.TrimSpace(why)
		}
	}
	t.Fatalf("%s check: %v: %s", criu, err, out)
	return ""
}

// CrunHasCRIU reports whether the crun of the tests was built with CRIU; Debian's was not.
func CrunHasCRIU(t T) bool {
	t.Helper()
	crun := Part(t, Crun)
	out, err := exec.Command(crun, "--version").Output()
	Mustf(t, err, "%s --version", crun)
	return slices.Contains(strings.Fields(string(out)), "+CRIU")
}
