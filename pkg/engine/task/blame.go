package task

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/supervisor"
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
	case supervisor.IsOfPod(err.Error()):
		return handler.OfPod(err)
	}
	return handler.Blame(advised(err))
}

// refusals are what kernels refuse runtimes, by words that stand in the runtime's error, with
// what an administrator does about it. The first that fits counts.
var refusals = []struct {
	words  []string
	advice string
}{
	{[]string{"cgroup", "read-only file system"}, "remount the node's cgroups writable (mount -o remount,rw /sys/fs/cgroup)"},
	{[]string{"cgroup", "no space left on device"}, "the cgroup above has an empty cpuset.cpus, or the node has too many cgroups (num_cgroups in /proc/cgroups)"},
	{[]string{"cgroup", "resource temporarily unavailable"}, "raise cgroup.max.descendants and cgroup.max.depth of the cgroups above the pod"},
	{[]string{"cgroup", "device or resource busy"}, "a cgroup that has processes of its own cannot pass controllers on: name another cgroup parent"},
	{[]string{"cgroup", "invalid argument"}, "a cgroup above has a lower limit: raise that"},
	{[]string{"cgroup", "no such file or directory"}, "the controller is not mounted, or missing in cgroup.subtree_control of the cgroup above"},
	{[]string{"resource temporarily unavailable"}, "raise pids.max of the cgroups above the pod (TasksMax of the unit), or kernel.pid_max"},
}

// advised adds to a runtime's error what to do about it. Pure.
func advised(err error) error {
	said := strings.ToLower(err.Error())
	for _, r := range refusals {
		if !slices.ContainsFunc(r.words, func(word string) bool { return !strings.Contains(said, word) }) {
			return fmt.Errorf("%w; %s", err, r.advice)
		}
	}
	return err
}
