package selfcheck

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/probe"
)

// If the program that inspects a pod cannot run, the failure is transient, unless the
// handler cannot run a second program at all.
func TestUnseen(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		passes bool
	}{
		"too few processes":         {fmt.Errorf("run command: %w", syscall.EAGAIN), true},
		"too little memory":         {fmt.Errorf("run command: %w", syscall.ENOMEM), true},
		"an errno in a shim's text": {fmt.Errorf("run command: %w: resource temporarily unavailable", errdefs.ErrUnknown), true},
		"too slow":                  {fmt.Errorf("command timed out: %w", context.DeadlineExceeded), true},
		"no time left":              {context.Canceled, true},
		"a shim that is gone":       {task.FromShim(errdefs.ErrUnavailable), true},
		"killed":                    {errors.New("the program that inspects the pod exited with status 137: "), true},
		"no exec":                   {fmt.Errorf("run command: %w", errdefs.ErrNotImplemented), false},
	} {
		err := failedAt("its checks", uncheckable([]string{"sandboxed/v1", "vm/v1"}, c.err))
		if probe.Transient(err) != c.passes || !errors.Is(err, c.err) {
			t.Errorf("%s: %v; transient: %t", name, err, probe.Transient(err))
		}
		if want := "the handler does not conform to sandboxed/v1, vm/v1: what its pods see is not known: " + c.err.Error(); !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
