package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func TestExpired(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	at := func(name string, hours int) listedCheckpoint {
		return listedCheckpoint{Namespace: "n", Name: name, Directory: name + strings.Repeat("'", max(hours, 0)), Created: now.Add(-time.Duration(hours) * time.Hour)}
	}
	some := []listedCheckpoint{at("a", 1), at("b", 2), at("a", 3), at("a", 5)}
	elsewhere := at("a", 4)
	elsewhere.Namespace, elsewhere.Directory = "m", "other"
	for name, c := range map[string]struct {
		all       []listedCheckpoint
		keep      int
		olderThan time.Duration
		want      string
	}{
		"no bounds":                        {some, 0, 0, ""},
		"none":                             {nil, 1, time.Hour, ""},
		"two of each":                      {some, 2, 0, "a'''''"},
		"one of each":                      {some, 1, 0, "a''''' a'''"},
		"another namespace is another pod": {append([]listedCheckpoint{elsewhere}, some...), 3, 0, ""},
		"by age":                           {some, 0, 3 * time.Hour, "a''''' a'''"},
		"all are too old":                  {some, 0, time.Hour, "a''''' a''' b'' a'"},
		"number and age":                   {some, 2, 2 * time.Hour, "a''''' a''' b''"},
		"neither too many nor too old":     {some, 5, 10 * time.Hour, ""},
		"of one time":                      {[]listedCheckpoint{{Directory: "x", Created: now}, {Directory: "y", Created: now}}, 1, 0, "x"},
		"of the future":                    {[]listedCheckpoint{at("x", -1), at("x", 0)}, 1, time.Hour, "x"},
	} {
		before := slices.Clone(c.all)
		var got []string
		for _, l := range expired(c.all, c.keep, c.olderThan, now) {
			got = append(got, l.Directory)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if !slices.EqualFunc(c.all, before, func(a, b listedCheckpoint) bool { return a.Directory == b.Directory }) {
			t.Errorf("%s: it changed its argument", name)
		}
	}
}

// TestSizeOfACheckpoint that is being written counts the files of each container.
func TestSizeOfACheckpoint(t *testing.T) {
	dir := t.TempDir()
	if got := sizeOf(dir); got != 0 {
		t.Errorf("without any there are %d bytes", got)
	}
	for name, text := range map[string]string{"0/config.dump": "{}", "1/checkpoint/pages-1.img": "memory", "shm.tar": "x"} {
		path := filepath.Join(dir, manifest.ImagesDir, name)
		test.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)))
	}
	if got := sizeOf(dir); got != 9 {
		t.Errorf("there are %d bytes", got)
	}
}

func TestRequestOfACheckpoint(t *testing.T) {
	pod := test.Value(manifest.Encode(&runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "old", Attempt: 3}, Hostname: "p", LogDirectory: "/var/log/pods/old",
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/kubepods/old"},
	}))(t)
	container := test.Value(manifest.Encode(&runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Command: []string{"x"}}))(t)
	m := &manifest.Manifest{Handler: manifest.Handler{Name: "gvisor"}, Pod: pod, Containers: []manifest.Container{{Name: "main", Config: container}}}
	for name, c := range map[string]struct {
		as   restored
		want [5]string // name, namespace, uid, handler, logs
	}{
		"as it was":   {restored{uid: "new"}, [5]string{"p", "n", "new", "gvisor", "/var/log/pods/n_p_new"}},
		"as another":  {restored{name: "q", namespace: "m", uid: "u", handler: "h", logs: "/l"}, [5]string{"q", "m", "u", "h", "/l"}},
		"another UID": {restored{name: "q", logs: "/l"}, [5]string{"q", "n", "", "gvisor", "/l"}},
	} {
		r := test.Value(requestOf(m, &c.as))(t)
		md := r.GetConfig().GetMetadata()
		if c.want[2] == "" && md.GetUid() != "" && md.GetUid() != "old" {
			c.want[2] = md.GetUid()
		}
		if got := [5]string{md.GetName(), md.GetNamespace(), md.GetUid(), r.GetRuntimeHandler(), r.GetConfig().GetLogDirectory()}; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if md.GetAttempt() != 0 || r.GetConfig().GetLinux().GetCgroupParent() != "" || len(r.GetContainerConfigs()) != 1 || r.GetContainerConfigs()[0].GetCommand()[0] != "x" {
			t.Errorf("%s: %v", name, r)
		}
	}
}

// daemonOf serves a management API that tells of pods that wait to go on from checkpoints.
type daemonOf struct {
	adminv1.UnimplementedAdminServer

	inUse      []string
	recovering bool
}

func (d *daemonOf) GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	return &adminv1.GetStatusResponse{Recovering: d.recovering, PodCheckpoints: &adminv1.PodCheckpoints{InUse: d.inUse}}, nil
}

func (d *daemonOf) serve(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l := test.Value(net.Listen("unix", socket))(t)
	server := grpc.NewServer()
	adminv1.RegisterAdminServer(server, d)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return socket
}

// checkpointIn makes a checkpoint of a pod.
func checkpointIn(t *testing.T, dir string) string {
	t.Helper()
	test.Must(t, os.MkdirAll(filepath.Join(dir, manifest.ImagesDir), 0o700))
	test.Must(t, os.WriteFile(filepath.Join(dir, manifest.ImagesDir, "pages.img"), []byte("memory"), 0o600))
	m := &manifest.Manifest{
		Created: time.Now().Add(-time.Hour), Pod: []byte(`{"metadata":{"namespace":"n","name":"p"}}`),
		Containers: []manifest.Container{{Name: "main", Config: []byte("{}")}},
	}
	test.Must(t, manifest.Seal(t.Context(), dir, m))
	return dir
}

// TestRemovalAsksTheDaemon: what a pod is yet to go on from stays, by whatever path it was restored.
func TestRemovalAsksTheDaemon(t *testing.T) {
	parent := t.TempDir()
	around := filepath.Join(t.TempDir(), "around")
	test.Must(t, os.Symlink(parent, around))
	waits, free := checkpointIn(t, filepath.Join(parent, "waits")), checkpointIn(t, filepath.Join(parent, "free"))
	socket := (&daemonOf{inUse: []string{filepath.Join(around, "waits")}}).serve(t)
	if code, _, stderr := ran(t, "checkpoint", "rm", "--admin-socket", socket, waits); code != exitFailure || !strings.Contains(stderr, "in use") {
		t.Errorf("rm: exit status %d: %s", code, stderr)
	}
	if code, stdout, stderr := ran(t, "checkpoint", "prune", "--admin-socket", socket, parent, "--older-than", "1m"); code != 0 || strings.Contains(stdout, waits) {
		t.Errorf("prune: exit status %d: %s%s", code, stdout, stderr)
	}
	test.Must(t, test.Err(os.Stat(waits)))
	test.Fails(t, test.Err(os.Stat(free)), "what no pod waits for was not pruned")
	recovering := (&daemonOf{recovering: true}).serve(t)
	if code, _, stderr := ran(t, "checkpoint", "rm", waits, "--admin-socket", recovering); code != exitFailure || !strings.Contains(stderr, "try again") {
		t.Errorf("before it knows its pods: exit status %d: %s", code, stderr)
	}
	socket = (&daemonOf{}).serve(t)
	if code, stdout, stderr := ran(t, "checkpoint", "rm", waits, "--admin-socket", socket); code != 0 || stdout != "removed "+waits+"\n" {
		t.Errorf("exit status %d: %s%s", code, stdout, stderr)
	}
	again := checkpointIn(t, waits)
	if code, _, stderr := ran(t, "checkpoint", "rm", again, "--admin-socket", socket+".none"); code != 0 {
		t.Errorf("without a daemon: exit status %d: %s", code, stderr)
	}
}

func TestIsInRegistry(t *testing.T) {
	t.Chdir(t.TempDir())
	test.Must(t, os.Mkdir("warm.d", 0o700))
	for to, want := range map[string]bool{
		"registry.example/team/notebook:warm": true, "127.0.0.1:5000/notebook": true, "localhost/notebook:1": true,
		"registry.example/notebook@sha256:0123456789012345678901234567890123456789012345678901234567890123": true,
		"": false, "notebook": false, "notebook:1": false, "/var/lib/notebook": false, "./a.b/c": false, "../a.b/c": false,
		"checkpoints/notebook": false, "warm.d/notebook": false, "registry.example/": false, "registry.example/UPPER": false,
	} {
		test.Equal(t, fmt.Sprintf("%q", to), isInRegistry(to), want)
	}
}
