package faults

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestARefusalIsSaidOnce looks at the text that a kubelet puts into the events of a pod: it
// named the handler twice, and ended with the class that is its code.
func TestARefusalIsSaidOnce(t *testing.T) {
	b := newBed(t, testbed.Options{Runtimes: map[string]string{"gvisor": testbed.Part(t, testbed.Runsc)}})
	config := b.Client.SandboxConfig("")
	config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
	_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: "gvisor"})
	testbed.Refused(t, err, codes.FailedPrecondition, "does not support hostPID")
	if text := status.Convert(err).Message(); strings.Count(text, `handler "gvisor"`) != 1 || strings.Contains(text, "precondition") {
		t.Errorf("the text is %s", text)
	}
	// What is missing is in words, not by its class alone.
	_, err = b.Client.PullImage(testbed.Within(t, time.Minute), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: strings.Replace(b.Image, "busybox:1", "absent:1", 1)}})
	testbed.Refused(t, err, codes.NotFound, "does not have the image")
}
