package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

func put(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// told is what a core does with a pod, as far as the configuration decides it.
type told struct {
	systemd                 bool
	maxLog                  int32
	snapshotter, cgroupPath string
	hostname                string // of the base spec; empty without one
	seccomp                 specs.LinuxSeccompAction
	tolerates               bool
}

func tell(t *testing.T, k *core, s *sandbox) told {
	t.Helper()
	options, err := k.tasks.options(s.Spec(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	task := &supervisorapi.TaskOptions{}
	if err := options.UnmarshalTo(task); err != nil {
		t.Fatal(err)
	}
	spec, err := (&creation{settings: k.settings, clock: k.clock, mounts: newMounts(k.layout, nil)}).plan(s, strings.Repeat("c", idLength), &runtimeapi.CreateContainerRequest{}, &image.Image{})
	if err != nil {
		t.Fatal(err)
	}
	got := told{systemd: task.SystemdCgroup, maxLog: task.MaxLogLine, snapshotter: spec.Snapshotter, cgroupPath: spec.CgroupsPath}
	base, err := k.settings.baseSpec(s.Spec())
	if err != nil {
		t.Fatal(err)
	}
	if base != nil {
		got.hostname = base.Hostname
	}
	node := k.settings.nodeOf(s.Spec())
	if node.SystemdCgroup != got.systemd {
		t.Errorf("the node's driver is systemd: %v, the task's: %v", node.SystemdCgroup, got.systemd)
	}
	got.tolerates = node.TolerateMissingHugetlb
	if node.DefaultSeccomp != nil {
		profile, err := node.DefaultSeccomp()
		if err != nil {
			t.Fatal(err)
		}
		got.seccomp = profile.DefaultAction
	}
	return got
}

// A pod keeps what the configuration said when it was made, through a record on
// disk, another configuration, and other contents of the files.
func TestPodKeepsItsConfiguration(t *testing.T) {
	dir := t.TempDir()
	d := &handler.Definition{Name: "runc", Type: handler.OCI, Path: "/runc", BaseRuntimeSpec: filepath.Join(dir, "base.json")}
	put(t, d.BaseRuntimeSpec, `{"ociVersion":"1.0.2","hostname":"then"}`)
	profile := put(t, filepath.Join(dir, "seccomp.json"), `{"defaultAction":"SCMP_ACT_LOG"}`)
	before := &settings{driver: cgroup.Systemd, snapshotter: "overlayfs", maxLogLineSize: 100, tolerateMissingHugetlb: true, defaultSeccompFile: profile}
	kept, err := before.pin(d)
	if err != nil {
		t.Fatal(err)
	}
	records := t.TempDir()
	spec := sandboxSpec{Definition: d, Pinned: kept}
	spec.Config.msg = &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "pods.slice"}}
	old := newSandbox(reopened(t, records, spec))
	spec.Pinned = nil // as an older build wrote it
	spec.Config.msg = &runtimeapi.PodSandboxConfig{}
	older := newSandbox(reopened(t, records, spec))

	put(t, d.BaseRuntimeSpec, `{"ociVersion":"1.0.2","hostname":"now"}`)
	put(t, profile, `{"defaultAction":"SCMP_ACT_KILL"}`)
	after := &core{clock: &clock{}, layout: layout{state: dir}, settings: &settings{
		driver: cgroup.Cgroupfs, snapshotter: "native", maxLogLineSize: 200, defaultSeccompFile: profile,
	}}
	after.tasks = newTasks(after.layout, after.settings, newRuntimes(nil, log.L), nil)
	id := strings.Repeat("c", idLength)
	want := told{true, 100, "overlayfs", "pods.slice:berth:" + id, "then", specs.ActLog, true}
	if got := tell(t, after, old); got != want {
		t.Errorf("the old pod has %+v, want %+v", got, want)
	}
	want = told{false, 200, "native", "/berth/" + id, "now", specs.ActKill, false}
	if got := tell(t, after, older); got != want {
		t.Errorf("a pod of an older build has %+v, want %+v", got, want)
	}
	// Without files a pod keeps that there were none.
	plain := *d
	plain.BaseRuntimeSpec = ""
	before.defaultSeccompFile = ""
	if kept, err = before.pin(&plain); err != nil {
		t.Fatal(err)
	}
	spec = sandboxSpec{Definition: &plain, Pinned: kept}
	spec.Config.msg = &runtimeapi.PodSandboxConfig{}
	if got := tell(t, after, newSandbox(reopened(t, records, spec))); got.hostname != "" || got.seccomp != "" {
		t.Errorf("a pod without files has %+v", got)
	}
}

func TestPinRefusesFilesThatNoPodCouldUse(t *testing.T) {
	dir := t.TempDir()
	good := put(t, filepath.Join(dir, "good.json"), `{"defaultAction":"SCMP_ACT_LOG"}`)
	for name, tc := range map[string]struct{ base, seccomp, says string }{
		"base is gone":     {base: "/none/base.json", says: "base.json"},
		"base is empty":    {base: put(t, filepath.Join(dir, "empty"), ""), says: "empty"},
		"base is no spec":  {base: good, says: "defaultAction"},
		"profile is gone":  {seccomp: "/none/seccomp.json", says: "default_seccomp_profile"},
		"profile is none":  {seccomp: put(t, filepath.Join(dir, "none.json"), `{}`), says: "SCMP_ACT_"},
		"profile is typed": {seccomp: put(t, filepath.Join(dir, "typo.json"), `{"default":"SCMP_ACT_LOG"}`), says: "default"},
	} {
		k := &settings{defaultSeccompFile: tc.seccomp}
		_, err := k.pin(&handler.Definition{Name: "runc", BaseRuntimeSpec: tc.base})
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A node's pods have the same files: a record of each must not cost memory each.
func TestTextsAreShared(t *testing.T) {
	var a, b, none text
	for into, from := range map[*text]string{&a: `"long"`, &b: `"long"`, &none: `""`} {
		if err := json.Unmarshal([]byte(from), into); err != nil {
			t.Fatal(err)
		}
	}
	if a != b || a.String() != "long" {
		t.Errorf("%v and %v", a, b)
	}
	if none != (text{}) || none.String() != "" {
		t.Errorf("nothing became %v", none)
	}
	if err := json.Unmarshal([]byte("1"), &a); err == nil {
		t.Error("a number is taken for a text")
	}
}

// reopened writes a record, and reads it as the next daemon does.
func reopened(t *testing.T, dir string, spec sandboxSpec) *store.Object[sandboxSpec, sandboxStatus] {
	t.Helper()
	id := newID()
	pods, _, err := store.Open[sandboxSpec, sandboxStatus](dir)
	if err == nil {
		_, err = pods.Create(id, spec, sandboxStatus{}, store.Relaxed)
	}
	if err == nil {
		pods, _, err = store.Open[sandboxSpec, sandboxStatus](dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	o, ok := pods.Get(id)
	if !ok {
		t.Fatal("the record is gone")
	}
	return o
}

// Pods of builds that made no volumes for images go on without: one that is made for
// a container's restart would be new to its programs, or be refused.
func TestPodsOfOlderBuildsHaveNoImageVolumes(t *testing.T) {
	var older pinned
	if err := json.Unmarshal([]byte(`{"cgroupDriver":"systemd","snapshotter":"overlayfs","maxLogLineSize":16384}`), &older); err != nil {
		t.Fatal(err)
	}
	today := &settings{ignoreImageVolumes: false}
	if today.of(&sandboxSpec{Pinned: &older}).ImageVolumes {
		t.Error("a pod of an older build gets volumes that its image defines")
	}
	d := &handler.Definition{Name: "runc", Type: handler.OCI}
	for ignore, want := range map[bool]bool{false: true, true: false} {
		if got := (&settings{ignoreImageVolumes: ignore}).today(d); got.ImageVolumes != want {
			t.Errorf("with ignore_image_defined_volumes = %v a new pod has volumes: %v", ignore, got.ImageVolumes)
		}
	}
}
