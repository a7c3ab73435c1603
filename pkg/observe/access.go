package observe

import (
	"context"
	"strings"
	"time"

	"github.com/containerd/log"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// changes are the calls that change state or connect to a pod. Most others are repeated often.
var changes = map[string]bool{
	"RunPodSandbox": true, "StopPodSandbox": true, "RemovePodSandbox": true,
	"CreateContainer": true, "StartContainer": true, "StopContainer": true, "RemoveContainer": true,
	"UpdateContainerResources": true, "UpdatePodSandboxResources": true, "UpdateRuntimeConfig": true,
	"CheckpointContainer": true, "CheckpointPod": true, "RestorePod": true,
	"PullImage": true, "RemoveImage": true,
	"Exec": true, "Attach": true, "PortForward": true,
}

// level returns the log level of a call: warning for failures, info for changes, trace for lists,
// statuses and versions, of which there are several per second, and debug for all others. Errors
// that a kubelet gets in normal operation are not failures.
func level(rpc string, code codes.Code) log.Level {
	switch {
	case code == codes.OK && changes[rpc]:
		return log.InfoLevel
	case code == codes.OK && constant(rpc):
		return log.TraceLevel
	case code == codes.OK, expectedError(rpc, code):
		return log.DebugLevel
	}
	return log.WarnLevel
}

func constant(rpc string) bool {
	return strings.HasPrefix(rpc, "List") || strings.HasPrefix(rpc, "Stream") ||
		strings.HasSuffix(rpc, "Status") || rpc == "Version"
}

// expectedError reports whether an error is normal: objects disappear between a list and a status,
// calls newer than berth are tried once, probes time out, watchers disconnect.
func expectedError(rpc string, code codes.Code) bool {
	switch code {
	case codes.NotFound:
		return strings.HasSuffix(rpc, "Status")
	case codes.Unimplemented:
		return true
	case codes.Canceled:
		return rpc == "GetContainerEvents" || constant(rpc)
	case codes.DeadlineExceeded:
		return rpc == "ExecSync"
	}
	return false
}

// logCall writes the access log. Fields are computed only if the line is written.
func (a api) logCall(ctx context.Context, rpc, handler string, req, resp any, took time.Duration, err error) {
	code := status.Code(err)
	at := a.level(rpc, code)
	entry := log.G(ctx)
	if !entry.Logger.IsLevelEnabled(at) {
		return
	}
	l := line{"rpc": rpc, "code": code.String(), "took": took.String()}
	l.add("handler", handler)
	l.subject(req)
	if err == nil {
		l.result(resp)
	} else {
		l.add("error", status.Convert(err).Message())
	}
	a.write(entry.WithFields(log.Fields(l)), at)
}

type line log.Fields

// add adds a text unless it is empty, shortened as errors are, because requests may be large.
func (l line) add(field, text string) {
	if text != "" {
		l[field] = shown(text)
	}
}

// subject adds the object of a request. It picks single fields, never the whole request, which
// holds credentials and environments.
func (l line) subject(req any) {
	if r, ok := req.(interface{ GetPodSandboxId() string }); ok {
		l.add("sandbox", r.GetPodSandboxId())
	}
	if r, ok := req.(interface{ GetContainerId() string }); ok {
		l.add("container", r.GetContainerId())
	}
	if r, ok := req.(interface {
		GetImage() *runtimeapi.ImageSpec
	}); ok {
		l.add("image", r.GetImage().GetImage())
	}
	switch r := req.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		l.pod(r.GetConfig())
	case *runtimeapi.RestorePodRequest:
		l.pod(r.GetConfig())
	case *runtimeapi.CreateContainerRequest:
		l.add("name", r.GetConfig().GetMetadata().GetName())
		l["attempt"] = r.GetConfig().GetMetadata().GetAttempt()
		l.pod(r.GetSandboxConfig())
	case *runtimeapi.StopContainerRequest:
		l["timeout"] = r.GetTimeout()
	}
}

// result adds the ids of created objects and pulled images.
func (l line) result(resp any) {
	switch r := resp.(type) {
	case *runtimeapi.RunPodSandboxResponse:
		l.add("sandbox", r.GetPodSandboxId())
	case *runtimeapi.RestorePodResponse:
		l.add("sandbox", r.GetPodSandboxId())
	case *runtimeapi.CreateContainerResponse:
		l.add("container", r.GetContainerId())
	case *runtimeapi.PullImageResponse:
		l.add("imageID", r.GetImageRef())
	}
}

func (l line) pod(c *runtimeapi.PodSandboxConfig) {
	if m := c.GetMetadata(); m != nil {
		l.add("pod", m.GetNamespace()+"/"+m.GetName())
	}
}
