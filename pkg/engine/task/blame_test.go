package task

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

func TestWhoIsToBlame(t *testing.T) {
	oci, other := &supervised{}, &foreign{}
	for name, c := range map[string]struct {
		by   pod.Tasks
		err  error
		want bool
	}{
		"nothing":                    {oci, nil, false},
		"the runtime fails":          {oci, errors.New("run: exit status 1: it cannot be done"), true},
		"the error has a class":      {oci, fmt.Errorf("it is broken: %w", errdefs.ErrInternal), true},
		"the runtime cannot be run":  {oci, fmt.Errorf("no such file: %w", errdefs.ErrFailedPrecondition), true},
		"the runtime takes too long": {oci, fmt.Errorf("it was killed: %w", context.DeadlineExceeded), true},
		"a library is missing":       {oci, errors.New("error while loading shared libraries: libseccomp.so.2: cannot open shared object file: No such file or directory"), true},
		"the caller went away":       {oci, fmt.Errorf("start: %w", context.Canceled), false},
		"a name is taken":            {oci, fmt.Errorf("task x: %w", errdefs.ErrAlreadyExists), false},
		"the request is wrong":       {oci, fmt.Errorf("bundle: %w", errdefs.ErrInvalidArgument), false},
		"the task is gone":           {oci, fmt.Errorf("task x: %w", errdefs.ErrNotFound), false},
		"our supervisor died":        {oci, fmt.Errorf("%w: %w", ttrpc.ErrClosed, errdefs.ErrUnavailable), false},
		"the handler's shim died":    {other, fmt.Errorf("%w: %w", ttrpc.ErrClosed, errdefs.ErrUnavailable), true},
		"runc, no such program":      {oci, errors.New(`exec: "/nope": stat /nope: no such file or directory`), false},
		"runc, none in PATH":         {oci, errors.New("exec: \"nope\": executable file not found in $PATH"), false},
		"crun, no such program":      {oci, errors.New("executable file `nope` not found in $PATH: No such file or directory"), false},
		"runc, no memory":            {oci, errors.New("runc run failed: unable to start container process: container init was OOM-killed (memory limit too low?)"), false},
		"runc, limit below usage":    {oci, errors.New("unable to set memory limit to 524288 (current usage: 2981888, peak usage: 3039232)"), false},
		"runsc, no such program":     {oci, errors.New(`creating process: error finding executable "nope" in PATH []: no such file or directory`), false},
	} {
		got := c.by.Attribute(c.err)
		if handler.IsRuntimeFault(got) != c.want || !errors.Is(got, c.err) || (c.err != nil && got.Error() != c.err.Error()) {
			t.Errorf("%s: attributed to the runtime: %v, want %v (%v)", name, handler.IsRuntimeFault(got), c.want, got)
		}
	}
}

func TestAdvice(t *testing.T) {
	for said, want := range map[string]string{
		"runc run failed: unable to apply cgroup configuration: mkdir /sys/fs/cgroup/pids/x: read-only file system":                     "remount",
		"unable to apply cgroup configuration: mkdir /sys/fs/cgroup/x: resource temporarily unavailable":                                "cgroup.max.descendants",
		"failed to write 100000: write /sys/fs/cgroup/cpu/x/cpu.cfs_quota_us: invalid argument":                                         "lower limit",
		"failed to write 12: write /sys/fs/cgroup/cpuset/x/cgroup.procs: no space left on device":                                       "cpuset.cpus",
		"enabling controllers: write /sys/fs/cgroup/a/cgroup.subtree_control: device or resource busy":                                  "another cgroup parent",
		"open /sys/fs/cgroup/x/memory.max: no such file or directory":                                                                   "subtree_control",
		"fork/exec /proc/self/exe: Resource temporarily unavailable":                                                                    "pids.max",
		"starting container: setting up network: read-only file system, which is the root":                                              "",
		"error while loading shared libraries: libseccomp.so.2: cannot open shared object file: No such file or directory, of no group": "",
	} {
		got := (&supervised{}).Attribute(errors.New(said)).Error()
		if advice := strings.TrimPrefix(got, said); !strings.Contains(advice, want) || (want == "") != (advice == "") {
			t.Errorf("%s: %q, want %q", said, advice, want)
		}
	}
}
