package session

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runtimev2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// lateTasks registers a command when the channel may is closed, even if the context of Exec
// has ended before.
type lateTasks struct {
	runtimev2.TaskServiceClient // nil: its methods must not be called

	asked, may chan struct{}
	log        chan string
}

func (l lateTasks) Exec(context.Context, *taskapi.ExecProcessRequest) (*emptypb.Empty, error) {
	close(l.asked)
	<-l.may
	l.log <- "registered"
	return &emptypb.Empty{}, nil
}

func (l lateTasks) Delete(context.Context, *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	l.log <- "removed"
	return &taskapi.DeleteResponse{}, nil
}

func TestCommandThatIsRegisteredLateIsRemoved(t *testing.T) {
	late := lateTasks{asked: make(chan struct{}), may: make(chan struct{}), log: make(chan string, 2)}
	e := &Execution{Client: &shim.Client{Task: late}, Container: "c", ID: NewExecID(), Dir: t.TempDir()}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := e.Run(ctx, &anypb.Any{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	<-late.asked
	time.AfterFunc(50*time.Millisecond, func() { close(late.may) })
	e.Clean()
	close(late.log)
	var did []string
	for what := range late.log {
		did = append(did, what)
	}
	if len(did) != 2 || did[0] != "registered" || did[1] != "removed" {
		t.Errorf("the shim's calls are %q", did)
	}
}

func TestFitAnswer(t *testing.T) {
	const half = execAnswer / 2
	for _, c := range []struct{ out, err, wantOut, wantErr int }{
		{0, 0, 0, 0},
		{100, 200, 100, 200},
		{maxExecOutput, 0, execAnswer, 0},
		{0, maxExecOutput, 0, execAnswer},
		{maxExecOutput, 10, execAnswer - 10, 10},
		{10, maxExecOutput, 10, execAnswer - 10},
		{maxExecOutput, maxExecOutput, half, half},
		{half + 5, half + 5, half, half},
		{half - 5, half + 50, half - 5, half + 5},
	} {
		out, errOut := fitAnswer(c.out, c.err)
		if out != c.wantOut || errOut != c.wantErr {
			t.Errorf("fitAnswer(%d, %d) = %d, %d, want %d, %d", c.out, c.err, out, errOut, c.wantOut, c.wantErr)
		}
		answer := &runtimeapi.ExecSyncResponse{Stdout: make([]byte, out), Stderr: make([]byte, errOut), ExitCode: -1}
		if size := proto.Size(answer); size > maxExecOutput {
			t.Errorf("for %d and %d bytes the answer has %d bytes", c.out, c.err, size)
		}
	}
}

func TestExecErrorOfADeadlineThatTheOtherSideSawFirst(t *testing.T) {
	for left, want := range map[time.Duration]string{time.Hour: "run command", 500 * time.Millisecond: "timed out"} {
		ctx, cancel := context.WithTimeout(t.Context(), left)
		err := execError(ctx, task.FromShim(errgrpc.ToGRPC(context.DeadlineExceeded)))
		cancel()
		if !strings.Contains(err.Error(), want) || !errdefs.IsDeadlineExceeded(err) {
			t.Errorf("with %v left the error is %v", left, err)
		}
	}
}

func TestTooManyCommands(t *testing.T) {
	b := newExecs(&pod.Registry{Index: pod.NewIndex()}, nil)
	if !b.commands.TryAcquire(maxExecSyncs) {
		t.Fatal("a command runs already")
	}
	request := &runtimeapi.ExecSyncRequest{ContainerId: "c", Cmd: []string{"true"}}
	test.Refused(t, test.Err(b.ExecSync(t.Context(), request)), errdefs.IsResourceExhausted, "try again later")
	b.commands.Release(1) // a command has exited
	for range 2 {
		test.Is(t, test.Err(b.ExecSync(t.Context(), request)), errdefs.IsNotFound, "a command in a missing container, after another command has exited")
	}
}
