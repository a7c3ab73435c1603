package observe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/log"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestLevels(t *testing.T) {
	for _, tc := range []struct {
		rpc  string
		code codes.Code
		want log.Level
	}{
		{"RunPodSandbox", codes.OK, log.InfoLevel},
		{"RemoveContainer", codes.OK, log.InfoLevel},
		{"PullImage", codes.OK, log.InfoLevel},
		{"Exec", codes.OK, log.InfoLevel},
		{"ExecSync", codes.OK, log.DebugLevel}, // probes
		{"RuntimeConfig", codes.OK, log.DebugLevel},
		{"ListContainers", codes.OK, log.TraceLevel},
		{"StreamImages", codes.OK, log.TraceLevel},
		{"Status", codes.OK, log.TraceLevel},
		{"ContainerStatus", codes.OK, log.TraceLevel},
		{"Version", codes.OK, log.TraceLevel},

		{"RunPodSandbox", codes.Unknown, log.WarnLevel},
		{"ListContainers", codes.Internal, log.WarnLevel},
		{"Version", codes.Unavailable, log.WarnLevel},
		{"StartContainer", codes.NotFound, log.WarnLevel},
		{"RunPodSandbox", codes.Canceled, log.WarnLevel},
		{"StopContainer", codes.DeadlineExceeded, log.WarnLevel},

		{"ContainerStatus", codes.NotFound, log.DebugLevel},
		{"CheckpointPod", codes.Unimplemented, log.DebugLevel},
		{"ExecSync", codes.DeadlineExceeded, log.DebugLevel},
		{"GetContainerEvents", codes.Canceled, log.DebugLevel},
		{"ListContainers", codes.Canceled, log.DebugLevel},
	} {
		test.Equal(t, fmt.Sprintf("level of %s with %s", tc.rpc, tc.code), level(tc.rpc, tc.code), tc.want)
	}
}

// logged returns the log of one call.
func logged(t *testing.T, rpc, handler string, req, resp any, err error) string {
	t.Helper()
	ctx, out := logTo(t)
	cri.logCall(ctx, rpc, handler, req, resp, 0, err)
	return out.String()
}

// lines is a buffer of log lines. It can be used by any goroutine.
type lines struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.String()
}

// logTo returns a context that logs all levels to a new buffer.
func logTo(t *testing.T) (context.Context, *lines) {
	t.Helper()
	out, logger := &lines{}, another(log.L.Logger)
	logger.Out, logger.Formatter, logger.Level = out, log.L.Logger.Formatter, log.TraceLevel
	return log.WithLogger(t.Context(), &log.Entry{Logger: logger}), out
}

// another returns a new value of a type that package log does not name.
func another[T any](*T) *T { return new(T) }

func TestAccessLogSaysWhatACallIsAbout(t *testing.T) {
	config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "shop"}}
	for name, tc := range map[string]struct {
		rpc       string
		req, resp any
		err       error
		want      []string
		wantNot   []string
	}{
		"a new sandbox": {
			rpc: "RunPodSandbox", req: &runtimeapi.RunPodSandboxRequest{Config: config}, resp: &runtimeapi.RunPodSandboxResponse{PodSandboxId: "5a"},
			want: []string{"level=info", `msg="CRI call"`, "rpc=RunPodSandbox", "code=OK", "handler=runc", "pod=shop/web", "sandbox=5a"},
		},
		"a sandbox that failed": {
			rpc: "RunPodSandbox", req: &runtimeapi.RunPodSandboxRequest{Config: config}, resp: (*runtimeapi.RunPodSandboxResponse)(nil),
			err:  status.Error(codes.Unavailable, "no address is left"),
			want: []string{"level=warning", "code=Unavailable", `error="no address is left"`, "pod=shop/web"}, wantNot: []string{"sandbox="},
		},
		"a new container": {
			rpc: "CreateContainer", resp: &runtimeapi.CreateContainerResponse{ContainerId: "c1"},
			req: &runtimeapi.CreateContainerRequest{PodSandboxId: "5a", SandboxConfig: config, Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "nginx", Attempt: 3},
			}},
			want: []string{"sandbox=5a", "container=c1", "name=nginx", "attempt=3", "pod=shop/web"},
		},
		"a stop":   {rpc: "StopContainer", req: &runtimeapi.StopContainerRequest{ContainerId: "c1", Timeout: 7}, want: []string{"container=c1", "timeout=7"}},
		"a pull":   {rpc: "PullImage", req: &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "busybox"}}, resp: &runtimeapi.PullImageResponse{ImageRef: "sha256:1"}, want: []string{"image=busybox", "imageID=\"sha256:1\""}},
		"a stream": {rpc: "StreamImages", want: []string{"rpc=StreamImages"}},
	} {
		t.Run(name, func(t *testing.T) {
			line := logged(t, tc.rpc, "runc", tc.req, tc.resp, tc.err)
			for _, want := range tc.want {
				if !strings.Contains(line, want) {
					t.Errorf("%q lacks %s", line, want)
				}
			}
			for _, not := range tc.wantNot {
				if strings.Contains(line, not) {
					t.Errorf("%q has %s", line, not)
				}
			}
		})
	}
}

// The log must not contain secrets of callers.
func TestAccessLogHasNoSecrets(t *testing.T) {
	const secret = "hunter2"
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web"}, Annotations: map[string]string{secret: secret}, Labels: map[string]string{secret: secret},
	}
	for rpc, messages := range map[string][2]any{
		"PullImage": {&runtimeapi.PullImageRequest{
			Image:         &runtimeapi.ImageSpec{Image: "busybox", Annotations: map[string]string{secret: secret}},
			Auth:          &runtimeapi.AuthConfig{Username: secret, Password: secret, Auth: secret, IdentityToken: secret, RegistryToken: secret},
			SandboxConfig: config,
		}, &runtimeapi.PullImageResponse{ImageRef: "sha256:1"}},
		"CreateContainer": {&runtimeapi.CreateContainerRequest{SandboxConfig: config, Config: &runtimeapi.ContainerConfig{
			Envs: []*runtimeapi.KeyValue{{Key: secret, Value: []byte(secret)}}, Command: []string{secret}, Args: []string{secret},
			Annotations: map[string]string{secret: secret},
		}}, &runtimeapi.CreateContainerResponse{ContainerId: "c1"}},
		"RunPodSandbox": {&runtimeapi.RunPodSandboxRequest{Config: config}, &runtimeapi.RunPodSandboxResponse{PodSandboxId: "5a"}},
		"ExecSync": {
			&runtimeapi.ExecSyncRequest{ContainerId: "c1", Cmd: []string{"echo", secret}},
			&runtimeapi.ExecSyncResponse{Stdout: []byte(secret), Stderr: []byte(secret)},
		},
		// The URL alone gives access.
		"Exec":            {&runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{secret}}, &runtimeapi.ExecResponse{Url: "http://127.0.0.1/" + secret}},
		"Attach":          {&runtimeapi.AttachRequest{ContainerId: "c1"}, &runtimeapi.AttachResponse{Url: "http://127.0.0.1/" + secret}},
		"PortForward":     {&runtimeapi.PortForwardRequest{PodSandboxId: "5a"}, &runtimeapi.PortForwardResponse{Url: "http://127.0.0.1/" + secret}},
		"ContainerStatus": {&runtimeapi.ContainerStatusRequest{ContainerId: "c1"}, &runtimeapi.ContainerStatusResponse{Info: map[string]string{"info": secret}}},
	} {
		for _, err := range []error{nil, status.Error(codes.Unknown, "failed")} {
			line := logged(t, rpc, "runc", messages[0], messages[1], err)
			if line == "" || strings.Contains(line, secret) {
				t.Errorf("%s is logged as %q", rpc, line)
			}
		}
	}
}

func TestAccessLogLinesAreShort(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	line := logged(t, "PullImage", "", &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: long + "\nlevel=error"}}, nil, errors.New(long))
	if len(line) > 4096 || strings.Count(line, "\n") != 1 {
		t.Errorf("%d bytes in %d lines", len(line), strings.Count(line, "\n"))
	}
}

func TestQuietLinesCostNothing(t *testing.T) {
	ctx, out := logTo(t)
	log.G(ctx).Logger.SetLevel(log.InfoLevel)
	req := &runtimeapi.ListContainersRequest{}
	if allocs := testing.AllocsPerRun(100, func() { cri.logCall(ctx, "ListContainers", "", req, nil, 0, nil) }); allocs != 0 || out.String() != "" {
		t.Errorf("%v allocations, %q", allocs, out.String())
	}
}
