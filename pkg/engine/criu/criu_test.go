package criu

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	runtimev2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
)

// runner runs a frozen container.
type runner struct {
	*enginetest.Runner

	frozen *frozen
}

func (r *runner) Bind(s *pod.Sandbox) pod.Runner {
	by := r.Runner.Bind(s)
	by.Connection = r
	return by
}

func (r *runner) Client(context.Context) (*shim.Client, error) {
	return &shim.Client{Task: r.frozen}, nil
}

// frozen is the shim of a container: the first busy calls of Pause and Resume fail.
type frozen struct {
	runtimev2.TaskServiceClient

	busy int
	gone bool
}

// Pause fails until busy is zero, as Resume does.
func (f *frozen) Pause(context.Context, *taskapi.PauseRequest) (*emptypb.Empty, error) {
	if f.gone {
		return nil, errgrpc.ToGRPC(errdefs.ErrNotFound)
	}
	if f.busy--; f.busy >= 0 {
		return nil, errgrpc.ToGRPC(errdefs.ErrUnknown)
	}
	return &emptypb.Empty{}, nil
}

// freeze retries if a runtime fails to freeze a container, but not forever.
func TestFreezeAgain(t *testing.T) {
	for name, c := range map[string]struct {
		f     frozen
		left  int // busy after the attempts
		class func(error) bool
	}{
		"first attempt succeeds": {frozen{}, -1, func(err error) bool { return err == nil }},
		"third attempt succeeds": {frozen{busy: 2}, -1, func(err error) bool { return err == nil }},
		"every attempt fails":    {frozen{busy: 100}, 100 - freezeAttempts, errdefs.IsUnknown},
		"container is gone":      {frozen{busy: 100, gone: true}, 100, errdefs.IsNotFound},
	} {
		if err := freeze(t.Context(), &shim.Client{Task: &c.f}, "c"); !c.class(err) || c.f.busy != c.left {
			t.Errorf("%s: %v, busy is %d", name, err, c.f.busy)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := &frozen{busy: 100}
	if err := freeze(ctx, &shim.Client{Task: f}, "c"); err == nil || f.busy != 99 {
		t.Errorf("with an ended context: %v, busy is %d", err, f.busy)
	}
}

func (f *frozen) Resume(context.Context, *taskapi.ResumeRequest) (*emptypb.Empty, error) {
	if f.busy--; f.busy >= 0 {
		return nil, errdefs.ErrFailedPrecondition
	}
	return &emptypb.Empty{}, nil
}

func (f *frozen) State(context.Context, *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	if f.gone {
		return nil, errgrpc.ToGRPC(errdefs.ErrNotFound)
	}
	return &taskapi.StateResponse{Status: tasktypes.Status_PAUSED}, nil
}

// stands returns a frozen container with its record. The container's Op is locked.
func stands(t *testing.T, f *frozen) (d *Dumper, c *pod.Container, record string) {
	t.Helper()
	pods, _, err := pod.Open(t.Context(), filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "state"))
	test.Must(t, err)
	by := &runner{&enginetest.Runner{}, f}
	c = enginetest.Container(t, enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{}}, by))
	record = pods.FrozenDir(c.ID())
	test.Must(t, errors.Join(os.MkdirAll(record, 0o700), c.Op.Lock(t.Context())))
	return New(pods, nil, nil), c, record
}

// If Thaw fails, it returns an error and continues in the background until it succeeds.
func TestThawGoesOnTrying(t *testing.T) {
	d, c, record := stands(t, &frozen{busy: 2})
	test.Fails(t, d.Thaw(t.Context(), c), "Thaw succeeded although Resume failed")
	c.Op.Unlock()
	test.Eventually(t, "the record is removed after the thaw", func() bool {
		_, err := os.Stat(record)
		return errors.Is(err, fs.ErrNotExist)
	})
}

// Thaw succeeds for a container that no longer exists, and removes its record.
func TestThawOfNothing(t *testing.T) {
	d, c, record := stands(t, &frozen{busy: 1, gone: true})
	test.Check(t, d.Thaw(t.Context(), c))
	test.ErrorIs(t, test.Err(os.Stat(record)), fs.ErrNotExist, "the record of the container")
}
