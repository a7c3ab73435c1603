package settings

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

func TestPinRefusesFilesThatNoPodCouldUse(t *testing.T) {
	dir := t.TempDir()
	good := put(t, filepath.Join(dir, "good.json"), `{"defaultAction":"SCMP_ACT_LOG"}`)
	for name, tc := range map[string]struct{ base, seccomp, says string }{
		"base is gone":          {base: "/none/base.json", says: "base.json"},
		"base is empty":         {base: put(t, filepath.Join(dir, "empty"), ""), says: "empty"},
		"base is not a spec":    {base: good, says: "defaultAction"},
		"profile is gone":       {seccomp: "/none/seccomp.json", says: "default_seccomp_profile"},
		"profile has no action": {seccomp: put(t, filepath.Join(dir, "none.json"), `{}`), says: "SCMP_ACT_"},
		"profile has a typo":    {seccomp: put(t, filepath.Join(dir, "typo.json"), `{"default":"SCMP_ACT_LOG"}`), says: "default"},
	} {
		k := &Settings{Config: Config{DefaultSeccomp: tc.seccomp}}
		_, err := k.Pin(&handler.Definition{Name: "runc", BaseRuntimeSpec: tc.base})
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestImageVolumes(t *testing.T) {
	d := &handler.Definition{Name: "runc", Type: handler.OCI}
	for ignore, want := range map[bool]bool{false: true, true: false} {
		if got := (&Settings{Config: Config{IgnoreImageVolumes: ignore}}).Current(d); got.ImageVolumes != want {
			t.Errorf("with ignore_image_defined_volumes = %v a new pod has volumes: %v", ignore, got.ImageVolumes)
		}
	}
}

// A pod keeps the prefix that was configured when it was created.
func TestPodsKeepTheirCgroupPrefix(t *testing.T) {
	const id = "0123"
	now := "berth"
	kept := &Settings{Driver: cgroup.Systemd, Config: Config{CgroupPrefix: func() string { return now }}}
	d := &handler.Definition{Name: "runc", Type: handler.OCI}
	made := func() *pod.SandboxSpec {
		pinned := test.Value(kept.Pin(d))(t)
		text := test.Value(json.Marshal(pinned))(t)
		s := &pod.SandboxSpec{Definition: d} // as after a restart
		test.Must(t, json.Unmarshal(text, &s.Pinned))
		s.Config.Msg = &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "pods.slice"}}
		return s
	}
	before := made()
	now = "cri-containerd"
	after := made()
	for name, tc := range map[string]struct {
		of   *pod.SandboxSpec
		want string
	}{
		"before the change": {before, "berth"},
		"after the change":  {after, "cri-containerd"},
	} {
		if got, err := tc.of.CgroupsPath(id); err != nil || got != "pods.slice:"+tc.want+":"+id {
			t.Errorf("%s: %q, %v, want the prefix %s", name, got, err, tc.want)
		}
	}
	test.Equal(t, "the prefix of new pods, without a configured prefix", (&Settings{}).Current(d).CgroupPrefix, "berth")
}

func put(t *testing.T, path, content string) string {
	t.Helper()
	test.Must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
