package remote

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// socket creates a socket and calls f for each connection to it.
func socket(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			go f(c)
		}
	}()
	return path
}

// liar is a CRI daemon whose IDs are empty or belong to another daemon.
type liar struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
	id string
}

func (l liar) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "liar", RuntimeVersion: "1", RuntimeApiVersion: "v1"}, nil
}

func (l liar) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: runtimeapi.RuntimeReady, Status: true}}}}, nil
}

func (l liar) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{}}}, nil
}

func (l liar) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{}, {Id: "stray", PodSandboxId: l.id}}}, nil
}

func (l liar) RunPodSandbox(context.Context, *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: l.id}, nil
}

func (l liar) serve(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	testbed.Must(t, err)
	s := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(s, l)
	runtimeapi.RegisterImageServiceServer(s, l)
	go func() { _ = s.Serve(listener) }() // ends with the test
	t.Cleanup(s.Stop)
	return path
}

// TestEndpointsThatAreNoDaemon adds handlers whose endpoint is not a CRI daemon: they are not ready,
// with the reason in a condition. Handlers of CRI daemons with wrong IDs get no pods. Pods of berth
// itself keep working.
func TestEndpointsThatAreNoDaemon(t *testing.T) {
	dir := t.TempDir()
	file, dead := filepath.Join(dir, "file"), filepath.Join(dir, "dead")
	testbed.Must(t, os.WriteFile(file, nil, 0o600))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead})
	testbed.Must(t, err)
	l.SetUnlinkOnClose(false)
	testbed.Must(t, l.Close())
	drain := func(c net.Conn) {
		for b := make([]byte, 4096); ; {
			if _, err := c.Read(b); err != nil {
				return
			}
		}
	}
	settings := "\x00\x00\x00\x04\x00\x00\x00\x00\x00" // the preface of an HTTP/2 server
	b := newOwn(t)
	for _, e := range []struct{ name, endpoint, why string }{
		{"missing", filepath.Join(dir, "none"), "does not exist"},
		{"file", file, "is not a socket"},
		{"directory", dir, "is not a socket"},
		{"dead", dead, "no process listens"},
		{"self", b.Socket, "by the daemon that received it"},
		{"deaf", socket(t, func(net.Conn) {}), ""},
		{"mute", socket(t, drain), ""},
		{"web", socket(t, func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")); _ = c.Close() }), ""},
		{"trickle", socket(t, func(c net.Conn) {
			go drain(c)
			_, _ = c.Write([]byte(settings))
			for {
				if _, err := c.Write([]byte{0}); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		}), ""},
		{"cut", socket(t, func(c net.Conn) {
			_, _ = c.Write([]byte(settings + "\x00\x01\x00\x01\x04\x00\x00\x00\x01half"))
			_ = c.Close()
		}), ""},
	} {
		b.DropIn(t, "60-"+e.name, fmt.Sprintf("[runtimes.%s]\nendpoint = %q\n", e.name, "unix://"+e.endpoint))
		testbed.Eventually(t, patience, func() error {
			for _, c := range b.status(t).GetStatus().GetConditions() {
				if c.GetType() == "HandlersReady" && strings.Contains(c.GetMessage(), `"`+e.name+`"`) && strings.Contains(c.GetMessage(), e.why) {
					return nil
				}
			}
			return fmt.Errorf("the conditions do not have the handler %s and its reason: %v", e.name, b.status(t).GetStatus().GetConditions())
		})
		if b.announces(t, e.name) {
			t.Errorf("handler %s is listed in Status", e.name)
		}
		_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig(""), RuntimeHandler: e.name})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), `handler "`+e.name+`"`) {
			t.Errorf("run a pod of %s: %v, want unavailable", e.name, err)
		}
		out, err := exec.CommandContext(t.Context(), filepath.Join(b.Bin, "berth"), "handlers", "--admin-socket", filepath.Join(b.Dir, "admin.sock")).CombinedOutput()
		if err != nil || !strings.Contains(string(out), e.name) || !strings.Contains(string(out), "not-ready") {
			t.Errorf("berth handlers does not show %s as not-ready: %v\n%s", e.name, err, out)
		}
		// The message of a condition is limited in length, and must have room for the next handler.
		testbed.Must(t, os.Remove(filepath.Join(b.Dir, "conf.d", "60-"+e.name+".toml")))
	}
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	if got := pod.Container.Exec(t, "echo", "here"); got != "here\n" {
		t.Errorf("exec in berth's own pod prints %q", got)
	}
	for name, id := range map[string]string{"nameless": "", "thief": pod.ID} {
		b.DropIn(t, "70-"+name, fmt.Sprintf("[runtimes.%s]\nendpoint = %q\n", name, "unix://"+liar{id: id}.serve(t)))
		b.ready(t, name)
		_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig(""), RuntimeHandler: name})
		testbed.Fails(t, err, "a pod of %s was created", name)
	}
	sandboxes, err := b.Client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(sandboxes.GetItems()) != 1 || sandboxes.GetItems()[0].GetId() != pod.ID {
		t.Errorf("berth lists the sandboxes %v, %v, want only its own", sandboxes, err)
	}
	containers, err := b.Client.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil || len(containers.GetContainers()) != 1 || containers.GetContainers()[0].GetId() != pod.Container.ID {
		t.Errorf("berth lists the containers %v, %v, want only its own", containers, err)
	}
	if got := pod.Container.Exec(t, "echo", "here"); got != "here\n" {
		t.Errorf("exec in berth's own pod prints %q", got)
	}
}

// newOwn is a berth with the handler runc and no other daemon.
func newOwn(t *testing.T) *bed {
	t.Helper()
	return &bed{Bed: testbed.StartBed(t, "remote/busybox:1", testbed.Options{Config: "[handlers]\nprobe_interval = \"1s\"\n"})}
}
