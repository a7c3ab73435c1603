package task

import (
	"context"
	"errors"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/handler"
)

// blamed marks an error of a call that makes or starts a task as the runtime's
// doing, unless it is somebody else's: the caller's, who went away or asked for
// what there is already; the image's, which lacks the program; the pod's, whose memory
// limit is too low; or that of our own
// supervisor, which an oci handler's calls go through. Pure.
func blamed(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errdefs.IsCanceled(err):
		return err
	case errdefs.IsAlreadyExists(err), errdefs.IsInvalidArgument(err), errdefs.IsNotFound(err), errdefs.IsResourceExhausted(err):
		return err
	case isOfPod(err.Error()):
		return handler.OfPod(err)
	}
	return handler.Blame(err)
}

// isOfPod knows what runtimes say when a container's program is not in its image, or cannot
// be run (runc and crun, Go's exec, runsc), and when its memory limit is too low (runc).
func isOfPod(said string) bool {
	for _, words := range []string{"executable file", `exec: "`, "error finding executable", "memory limit too low", "unable to set memory limit"} {
		if strings.Contains(said, words) {
			return true
		}
	}
	return false
}
