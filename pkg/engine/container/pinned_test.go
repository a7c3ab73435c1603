package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/log"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

func put(t *testing.T, path, content string) string {
	t.Helper()
	test.Must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// pinBed is the part of a daemon that these tests use.
type pinBed struct {
	pods     *pod.Registry
	settings *settings.Settings
	tasks    *task.Service
}

// properties are those of a pod and its containers that depend on the configuration.
type properties struct {
	systemd                 bool
	maxLog                  int32
	snapshotter, cgroupPath string
	hostname                string // of the base spec; empty without one
	seccomp                 specs.LinuxSeccompAction
}

func propertiesOf(t *testing.T, k *pinBed, s *pod.Sandbox) properties {
	t.Helper()
	options := test.Value(k.tasks.Bind(s).Options(pod.TaskOptions{}))(t)
	task := &supervisorapi.TaskOptions{}
	test.Must(t, options.UnmarshalTo(task))
	spec := test.Value((&creation{Deps: Deps{Pods: k.pods, Rootfs: rootfs.New(k.pods, nil)}}).plan(s, strings.Repeat("c", pod.IDLength), &runtimeapi.CreateContainerRequest{}, &catalog.Image{}))(t)
	got := properties{systemd: task.SystemdCgroup, maxLog: task.MaxLogLine, snapshotter: spec.Snapshotter, cgroupPath: spec.CgroupsPath}
	base := test.Value(k.settings.BaseSpec(s.Spec()))(t)
	if base != nil {
		got.hostname = base.Hostname
	}
	node := k.settings.NodeOf(s.Spec())
	if node.DefaultSeccomp != nil {
		profile := test.Value(node.DefaultSeccomp())(t)
		got.seccomp = profile.DefaultAction
	}
	return got
}

// A pod that is read from its record keeps the configuration of its creation, although
// the daemon's configuration and the contents of the configured files have changed.
func TestPodKeepsItsConfiguration(t *testing.T) {
	dir := t.TempDir()
	d := &handler.Definition{Name: "runc", Type: handler.OCI, Path: "/runc", BaseRuntimeSpec: filepath.Join(dir, "base.json")}
	put(t, d.BaseRuntimeSpec, `{"ociVersion":"1.0.2","hostname":"then"}`)
	profile := put(t, filepath.Join(dir, "seccomp.json"), `{"defaultAction":"SCMP_ACT_LOG"}`)
	before := &settings.Settings{Driver: cgroup.Systemd, Config: settings.Config{
		CgroupPrefix: func() string { return "then" }, Snapshotter: "overlayfs", MaxLogLineSize: 100, DefaultSeccomp: profile,
	}}
	kept := test.Value(before.Pin(d))(t)
	records := t.TempDir()
	spec := pod.SandboxSpec{Definition: d, Pinned: kept}
	spec.Config.Msg = &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "pods.slice"}}
	old := enginetest.Sandbox(t, records, spec, &enginetest.Runner{})

	put(t, d.BaseRuntimeSpec, `{"ociVersion":"1.0.2","hostname":"now"}`)
	put(t, profile, `{"defaultAction":"SCMP_ACT_KILL"}`)
	pods, _, err := pod.Open(t.Context(), t.TempDir(), dir)
	test.Must(t, err)
	after := &pinBed{pods: pods, settings: &settings.Settings{Driver: cgroup.Cgroupfs, Config: settings.Config{
		CgroupPrefix: func() string { return "now" }, Snapshotter: "native", MaxLogLineSize: 200, DefaultSeccomp: profile,
	}}}
	after.tasks = task.New(after.pods, &binaries.Binaries{Runtimes: binaries.NewRuntimes(nil, log.L)}, nil)
	id := strings.Repeat("c", pod.IDLength)
	want := properties{true, 100, "overlayfs", "pods.slice:then:" + id, "then", specs.ActLog}
	if got := propertiesOf(t, after, old); got != want {
		t.Errorf("the old pod has %+v, want %+v", got, want)
	}
	// A pod that was created without such files does not get them later.
	plain := *d
	plain.BaseRuntimeSpec = ""
	before.DefaultSeccomp = ""
	if kept, err = before.Pin(&plain); err != nil {
		t.Fatal(err)
	}
	spec = pod.SandboxSpec{Definition: &plain, Pinned: kept}
	spec.Config.Msg = &runtimeapi.PodSandboxConfig{}
	if got := propertiesOf(t, after, enginetest.Sandbox(t, records, spec, &enginetest.Runner{})); got.hostname != "" || got.seccomp != "" {
		t.Errorf("a pod without files has %+v", got)
	}
}
