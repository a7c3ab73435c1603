package observe

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/printable"
)

// maxMessage bounds an error's text, in bytes. The cluster stores it in events and pods' statuses.
const maxMessage = 1024

// toStatus turns any error into a gRPC status with a text that does not repeat the code. A gRPC
// status keeps code, text and details; classes of containerd/errdefs and context errors get their
// code; others get the code of ctx's error if ctx has ended, or else Unknown. Nil stays nil.
func toStatus(ctx context.Context, rpc string, err error) error {
	if err == nil {
		return nil
	}
	err = atomicfile.Explain(err)
	st := classify(ctx, err)
	p, text := st.Proto(), printable.Error(err)
	p.Code = int32(codeFor(rpc, st.Code(), text))
	p.Message = shown(text)
	return status.ErrorProto(p)
}

func classify(ctx context.Context, err error) *status.Status {
	if st, ok := status.FromError(err); ok && st.Code() != codes.OK {
		return st
	}
	// The details of errgrpc repeat the error chain for Go clients; a CRI client uses only the
	// text.
	if code := status.Code(errgrpc.ToGRPC(err)); code != codes.OK && code != codes.Unknown {
		return status.New(code, "")
	}
	if end := ctx.Err(); end != nil {
		return status.FromContextError(end)
	}
	return status.New(codes.Unknown, "")
}

// aboutObject are the calls for which NotFound means that the named sandbox, container or image
// does not exist. The kubelet understands NotFound from any other call as "nothing left to do", so
// other calls must not return the NotFound of a missing file or an exited process.
var aboutObject = []string{
	"PodSandboxStatus", "CreateContainer", "StartContainer", "ContainerStatus",
	"UpdateContainerResources", "ReopenContainerLog", "ExecSync", "Exec", "Attach", "PortForward",
	"ContainerStats", "PodSandboxStats", "CheckpointContainer", "CheckpointPod",
	"UpdatePodSandboxResources", "PullImage",
}

// codeFor adjusts a code to how the kubelet reacts to it.
func codeFor(rpc string, code codes.Code, text string) codes.Code {
	switch {
	case code == codes.NotFound && known[rpc] && !slices.Contains(aboutObject, rpc):
		return codes.Internal
	case rpc == "PullImage" && pullReason(text):
		// The kubelet looks for its reasons only in errors of this code.
		return codes.Unknown
	}
	return code
}

// pullReason reports whether a text begins with a word that the kubelet uses as the reason of a
// failed pull.
func pullReason(text string) bool {
	return strings.HasPrefix(text, crierrors.ErrRegistryUnavailable.Error()) ||
		strings.HasPrefix(text, crierrors.ErrSignatureValidationFailed.Error())
}

// shown returns a text for clients, in one printable line of bounded length: registries, runtimes,
// plugins and other daemons have written parts of it.
func shown(text string) string { return shorten(printable.Line(text)) }

// shorten cuts a long text in its middle: an error begins with the action and ends with the cause.
func shorten(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	const gap = " … "
	const head = (maxMessage - len(gap)) / 2
	const tail = maxMessage - len(gap) - head
	return strings.ToValidUTF8(text[:head], "") + gap + strings.ToValidUTF8(text[len(text)-tail:], "")
}
