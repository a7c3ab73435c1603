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

// changes are the calls that change something. All others are asked again and
// again, most of them every second.
var changes = map[string]bool{
	"RunPodSandbox": true, "StopPodSandbox": true, "RemovePodSandbox": true,
	"CreateContainer": true, "StartContainer": true, "StopContainer": true, "RemoveContainer": true,
	"UpdateContainerResources": true, "UpdatePodSandboxResources": true, "UpdateRuntimeConfig": true,
	"CheckpointContainer": true, "CheckpointPod": true, "RestorePod": true,
	"PullImage": true, "RemoveImage": true,
	"Exec": true, "Attach": true, "PortForward": true,
}

// level is how loud a call is logged: what failed is a warning, what changed
// something is information, what was only asked is for debugging, and lists and
// the node's status, several per second, for tracing. Answers that are everyday
// news to a kubelet are no failures.
func level(rpc string, code codes.Code) log.Level {
	switch {
	case code == codes.OK && changes[rpc]:
		return log.InfoLevel
	case code == codes.OK && constant(rpc):
		return log.TraceLevel
	case code == codes.OK, everyday(rpc, code):
		return log.DebugLevel
	}
	return log.WarnLevel
}

func constant(rpc string) bool {
	return strings.HasPrefix(rpc, "List") || strings.HasPrefix(rpc, "Stream") ||
		strings.HasSuffix(rpc, "Status") || rpc == "Version"
}

// everyday says whether an error is no news: objects vanish between a list and
// a status, newer calls are tried once, probes time out, watchers hang up.
func everyday(rpc string, code codes.Code) bool {
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

// logCall writes the access log. Nothing is put together for a line that is
// not written.
func (a api) logCall(ctx context.Context, rpc, handler string, req, resp any, took time.Duration, err error) {
	code := status.Code(err)
	at := a.level(rpc, code)
	entry := log.G(ctx)
	if !entry.Logger.IsLevelEnabled(at) {
		return
	}
	l := line{"rpc": rpc, "code": code.String(), "took": took.String()}
	l.say("handler", handler)
	l.subject(req)
	if err == nil {
		l.result(resp)
	} else {
		l.say("error", status.Convert(err).Message())
	}
	a.write(entry.WithFields(log.Fields(l)), at)
}

type line log.Fields

// say adds a text, unless there is none. Requests may be large: what they say
// is as bounded as errors are.
func (l line) say(field, text string) {
	if text != "" {
		l[field] = shown(text)
	}
}

// subject adds what a request is about. It picks single fields and never a
// request as a whole: those hold credentials and environments.
func (l line) subject(req any) {
	if r, ok := req.(interface{ GetPodSandboxId() string }); ok {
		l.say("sandbox", r.GetPodSandboxId())
	}
	if r, ok := req.(interface{ GetContainerId() string }); ok {
		l.say("container", r.GetContainerId())
	}
	if r, ok := req.(interface {
		GetImage() *runtimeapi.ImageSpec
	}); ok {
		l.say("image", r.GetImage().GetImage())
	}
	switch r := req.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		l.pod(r.GetConfig())
	case *runtimeapi.RestorePodRequest:
		l.pod(r.GetConfig())
	case *runtimeapi.CreateContainerRequest:
		l.say("name", r.GetConfig().GetMetadata().GetName())
		l["attempt"] = r.GetConfig().GetMetadata().GetAttempt()
		l.pod(r.GetSandboxConfig())
	case *runtimeapi.StopContainerRequest:
		l["timeout"] = r.GetTimeout()
	}
}

// result adds the ids that a call has made.
func (l line) result(resp any) {
	switch r := resp.(type) {
	case *runtimeapi.RunPodSandboxResponse:
		l.say("sandbox", r.GetPodSandboxId())
	case *runtimeapi.RestorePodResponse:
		l.say("sandbox", r.GetPodSandboxId())
	case *runtimeapi.CreateContainerResponse:
		l.say("container", r.GetContainerId())
	case *runtimeapi.PullImageResponse:
		l.say("imageID", r.GetImageRef())
	}
}

func (l line) pod(c *runtimeapi.PodSandboxConfig) {
	if m := c.GetMetadata(); m != nil {
		l.say("pod", m.GetNamespace()+"/"+m.GetName())
	}
}
