package observe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/printable"
)

func TestCodesOfErrors(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for name, tc := range map[string]struct {
		ctx  context.Context
		rpc  string
		err  error
		want codes.Code
	}{
		"invalid argument":    {err: errdefs.ErrInvalidArgument, want: codes.InvalidArgument},
		"not found":           {rpc: "ContainerStatus", err: errdefs.ErrNotFound, want: codes.NotFound},
		"already exists":      {err: errdefs.ErrAlreadyExists, want: codes.AlreadyExists},
		"permission denied":   {err: errdefs.ErrPermissionDenied, want: codes.PermissionDenied},
		"resource exhausted":  {err: errdefs.ErrResourceExhausted, want: codes.ResourceExhausted},
		"failed precondition": {err: errdefs.ErrFailedPrecondition, want: codes.FailedPrecondition},
		"conflict":            {err: errdefs.ErrConflict, want: codes.FailedPrecondition},
		"aborted":             {err: errdefs.ErrAborted, want: codes.Aborted},
		"out of range":        {err: errdefs.ErrOutOfRange, want: codes.OutOfRange},
		"not implemented":     {err: errdefs.ErrNotImplemented, want: codes.Unimplemented},
		"internal":            {err: errdefs.ErrInternal, want: codes.Internal},
		"unavailable":         {err: errdefs.ErrUnavailable, want: codes.Unavailable},
		"data loss":           {err: errdefs.ErrDataLoss, want: codes.DataLoss},
		"unauthenticated":     {err: errdefs.ErrUnauthenticated, want: codes.Unauthenticated},
		"canceled":            {err: context.Canceled, want: codes.Canceled},
		"deadline":            {err: context.DeadlineExceeded, want: codes.DeadlineExceeded},

		"wrapped":                        {err: fmt.Errorf("a: %w", fmt.Errorf("b: %w", errdefs.ErrAborted)), want: codes.Aborted},
		"a status":                       {err: status.Error(codes.ResourceExhausted, "x"), want: codes.ResourceExhausted},
		"a wrapped status":               {err: fmt.Errorf("a: %w", status.Error(codes.DataLoss, "x")), want: codes.DataLoss},
		"no class":                       {err: errors.New("x"), want: codes.Unknown},
		"no class, after the call ended": {ctx: over, err: errors.New("signal: killed"), want: codes.Canceled},
		"a class, after the call ended":  {ctx: over, err: errdefs.ErrAborted, want: codes.Aborted},

		// The kubelet treats NotFound from these calls as success.
		"stop sandbox, a file is missing":     {rpc: "StopPodSandbox", err: errdefs.ErrNotFound, want: codes.Internal},
		"remove sandbox, a file is missing":   {rpc: "RemovePodSandbox", err: errdefs.ErrNotFound, want: codes.Internal},
		"stop container, a file is missing":   {rpc: "StopContainer", err: errdefs.ErrNotFound, want: codes.Internal},
		"remove container, a file is missing": {rpc: "RemoveContainer", err: errdefs.ErrNotFound, want: codes.Internal},
		"not found, of a newer call":          {rpc: "FreezePod", err: status.Error(codes.NotFound, "x"), want: codes.NotFound},
		"run, a file is missing":              {rpc: "RunPodSandbox", err: status.Error(codes.NotFound, "x"), want: codes.Internal},
		"an error of the file system":         {rpc: "RunPodSandbox", err: fmt.Errorf("x: %w", os.ErrNotExist), want: codes.Unknown},

		// The kubelet searches for reasons only in errors with the code Unknown.
		"registry":                   {rpc: "PullImage", err: fmt.Errorf("RegistryUnavailable: x: %w", errdefs.ErrUnavailable), want: codes.Unknown},
		"signature":                  {rpc: "PullImage", err: fmt.Errorf("SignatureValidationFailed: x: %w", errdefs.ErrPermissionDenied), want: codes.Unknown},
		"no such image":              {rpc: "PullImage", err: errdefs.ErrNotFound, want: codes.NotFound},
		"the word in another call":   {rpc: "RunPodSandbox", err: fmt.Errorf("RegistryUnavailable: %w", errdefs.ErrUnavailable), want: codes.Unavailable},
		"the word elsewhere in text": {rpc: "PullImage", err: fmt.Errorf("x: RegistryUnavailable: %w", errdefs.ErrUnavailable), want: codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := tc.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			got := status.Convert(toStatus(ctx, tc.rpc, tc.err))
			test.Equal(t, fmt.Sprint(tc.err), got.Code(), tc.want)
			test.Equal(t, "text", got.Message(), printable.Error(tc.err))
		})
	}
	if err := toStatus(t.Context(), "Version", nil); err != nil {
		t.Errorf("success is %v", err)
	}
}

func TestDetailsSurvive(t *testing.T) {
	detailed := test.Value(status.New(codes.NotFound, "x").WithDetails(wrapperspb.String("detail")))(t)
	got := status.Convert(toStatus(t.Context(), "StopContainer", detailed.Err()))
	if got.Code() != codes.Internal || len(got.Details()) != 1 {
		t.Errorf("got %v with %v", got, got.Details())
	}
}

// Control characters from a registry, a runtime or another daemon are escaped: an
// error must not control a terminal or look like several lines.
func TestTextsOfErrorsPrint(t *testing.T) {
	const said = "unexpected status: \x1b]0;owned\x07\x1b[2J\r\nlevel=error msg=forged \xff\u202e"
	const want = `unexpected status: \u001b]0;owned\u0007\u001b[2J\r\nlevel=error msg=forged \xff\u202e`
	for name, err := range map[string]error{
		"plain":      errors.New(said),
		"classified": fmt.Errorf("%w%s", errdefs.ErrUnavailable, said),
		"a status":   status.Error(codes.PermissionDenied, said),
	} {
		for _, rpc := range []string{"PullImage", "RunPodSandbox"} {
			if got := status.Convert(toStatus(t.Context(), rpc, err)).Message(); !strings.HasSuffix(got, want) {
				t.Errorf("%s of %s: %q", name, rpc, got)
			}
		}
	}
}

func TestShorten(t *testing.T) {
	for name, text := range map[string]string{
		"long":          "begin " + strings.Repeat("x", 5000) + " end",
		"two bytes":     "begin " + strings.Repeat("ä", 5000) + " end",
		"four bytes":    "begin " + strings.Repeat("😀", 5000) + " end",
		"odd by one":    "begin x" + strings.Repeat("ä", 5000) + " end",
		"not UTF-8":     "begin " + strings.Repeat("\xffx", 5000) + " end",
		"just too long": "begin " + strings.Repeat("x", maxMessage-9) + " end",
	} {
		got := shown(text)
		if len(got) > maxMessage || len(got) < maxMessage-8 || !utf8.ValidString(got) {
			t.Errorf("%s: %d bytes, valid: %v", name, len(got), utf8.ValidString(got))
		}
		if !strings.HasPrefix(got, "begin ") || !strings.HasSuffix(got, " end") || !strings.Contains(got, " … ") {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, text := range []string{"", "short", strings.Repeat("x", maxMessage)} {
		test.Equal(t, fmt.Sprintf("shown(%q)", text), shown(text), text)
	}
}

func FuzzShorten(f *testing.F) {
	f.Add("x", 2000)
	f.Add("ä\xff", 600)
	f.Fuzz(func(t *testing.T, text string, times int) {
		long := strings.Repeat(text, min(max(times, 0), 3000))
		if got := shown(long); len(got) > maxMessage || !utf8.ValidString(got) {
			t.Errorf("%d bytes, valid: %v", len(got), utf8.ValidString(got))
		}
	})
}
