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

// maxMessage is the length of an error's text in bytes. It ends up in events
// and in the status of pods, which are stored in the cluster.
const maxMessage = 1024

// toStatus turns any error into a gRPC status, whose text does not repeat the code.
// Errors that are one already keep code, text and details; classes of containerd/errdefs and the context's errors
// get their code; what remains is Unknown, or the context's own end if that is
// over. Nil stays nil.
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
	// The details that errgrpc adds repeat the chain of errors for a Go client,
	// and the text has all that a CRI client can use.
	if code := status.Code(errgrpc.ToGRPC(err)); code != codes.OK && code != codes.Unknown {
		return status.New(code, "")
	}
	if end := ctx.Err(); end != nil {
		return status.FromContextError(end)
	}
	return status.New(codes.Unknown, "")
}

// aboutObject are the calls whose NotFound means that the sandbox, container or
// image that they name does not exist. From any other call the kubelet would
// take NotFound for "nothing left to do", so one that comes from deep inside
// (a missing file, a process that is gone) must not get out.
var aboutObject = []string{
	"PodSandboxStatus", "CreateContainer", "StartContainer", "ContainerStatus",
	"UpdateContainerResources", "ReopenContainerLog", "ExecSync", "Exec", "Attach", "PortForward",
	"ContainerStats", "PodSandboxStats", "CheckpointContainer", "CheckpointPod",
	"UpdatePodSandboxResources", "PullImage",
}

// codeFor adjusts a code to what callers make of it.
func codeFor(rpc string, code codes.Code, text string) codes.Code {
	switch {
	case code == codes.NotFound && known[rpc] && !slices.Contains(aboutObject, rpc):
		return codes.Internal
	case rpc == "PullImage" && pullReason(text):
		// The kubelet finds its reasons only in errors of this code.
		return codes.Unknown
	}
	return code
}

// pullReason says whether a text begins with a word that the kubelet makes the
// reason of a failed pull.
func pullReason(text string) bool {
	return strings.HasPrefix(text, crierrors.ErrRegistryUnavailable.Error()) ||
		strings.HasPrefix(text, crierrors.ErrSignatureValidationFailed.Error())
}

// shown is a text as others may see it, who know nothing of its origin: registries,
// runtimes, plugins and other daemons have written parts of it. It is one line
// that prints and is as long as that allows.
func shown(text string) string { return shorten(printable.Line(text)) }

// shorten cuts a long text in its middle: it begins with what was tried, and
// ends with what went wrong.
func shorten(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	const gap = " … "
	const head = (maxMessage - len(gap)) / 2
	const tail = maxMessage - len(gap) - head
	return strings.ToValidUTF8(text[:head], "") + gap + strings.ToValidUTF8(text[len(text)-tail:], "")
}
