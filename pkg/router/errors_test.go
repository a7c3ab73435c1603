package router_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

// The text of an error names the handler once, and its code survives.
func TestErrorsNameTheHandlerOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		failure error
		code    codes.Code
		text    string
	}{
		"a class of errdefs": {
			fmt.Errorf("creating: %w", errdefs.ErrFailedPrecondition), codes.FailedPrecondition,
			`handler "runc": creating`,
		},
		"a status": {
			status.Error(codes.ResourceExhausted, "no room"), codes.ResourceExhausted,
			`handler "runc": no room`,
		},
		"already named": {
			fmt.Errorf("handler \"runc\": no room: %w", errdefs.ErrUnavailable), codes.Unavailable,
			`handler "runc": no room`,
		},
		"refused by preflight, begins with the handler": {
			fmt.Errorf("handler \"runc\" does not support checkpoints: %w", errdefs.ErrFailedPrecondition), codes.FailedPrecondition,
			`handler "runc" does not support checkpoints`,
		},
		"names the handler in the middle": {
			fmt.Errorf("base_runtime_spec of handler \"runc\": %w", errdefs.ErrUnavailable), codes.Unavailable,
			`base_runtime_spec of handler "runc"`,
		},
		"a status that is already named": {
			status.Error(codes.Aborted, `handler "runc": no room`), codes.Aborted,
			`handler "runc": no room`,
		},
		"begins with a word that the kubelet parses": {
			fmt.Errorf("RROUnsupported: the kernel is too old: %w", errdefs.ErrInvalidArgument), codes.InvalidArgument,
			"RROUnsupported: the kernel is too old",
		},
		"no class": {errors.New("exit status 1"), codes.Unknown, `handler "runc": exit status 1`},
	} {
		t.Run(name, func(t *testing.T) {
			one, _ := two()
			one.Fail = failing("CreateContainer", tc.failure)
			n := serveReady(t, table(t, 1, "runc", ready("runc", one)), one)
			_, err := n.CreateContainer(ctx(t), &runtimeapi.CreateContainerRequest{PodSandboxId: n.run(t, "")})
			wantCode(t, err, tc.code)
			test.Equal(t, "text of the error", status.Convert(err).Message(), tc.text)
		})
	}
}

func TestDetailsOfErrorsSurvive(t *testing.T) {
	one, _ := two()
	detailed := test.Value(status.New(codes.ResourceExhausted, "no room").WithDetails(wrapperspb.String("disk")))(t)
	one.Fail = failing("RunPodSandbox", detailed.Err())
	n := serveReady(t, table(t, 1, "runc", ready("runc", one)), one)
	_, err := n.RunPodSandbox(ctx(t), &runtimeapi.RunPodSandboxRequest{})
	details := status.Convert(err).Details()
	if len(details) != 1 {
		t.Fatalf("got %v with details %v", err, details)
	}
	if detail, ok := details[0].(*wrapperspb.StringValue); !ok || detail.GetValue() != "disk" {
		t.Errorf("got details %v", details)
	}
}

// A call about an object reaches only the backend that owns it.
func TestASickBackendCostsItsOwnCallsOnly(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	healthy, sick := n.run(t, "runc"), n.run(t, "kata")
	inHealthy, inSick := n.create(t, healthy), n.create(t, sick)
	two.Fail = func(context.Context, string) error { return status.Error(codes.Unavailable, "out of order") }

	test.Equal(t, "the container is on backend", n.where(t, inHealthy), "one")
	test.Check(t, test.Err(n.PodSandboxStatus(ctx(t), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: healthy})))
	if n.run(t, "runc") == "" {
		t.Error("no new sandbox on the healthy backend")
	}
	_, err := n.ContainerStatus(ctx(t), &runtimeapi.ContainerStatusRequest{ContainerId: inSick})
	wantCode(t, err, codes.Unavailable)
	test.Equal(t, "text of the error", status.Convert(err).Message(), `handler "kata": out of order`)
}
