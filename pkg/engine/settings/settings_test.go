package settings

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

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
		k := &Settings{DefaultSeccompFile: tc.seccomp}
		_, err := k.Pin(&handler.Definition{Name: "runc", BaseRuntimeSpec: tc.base})
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Pods of builds that made no volumes for images go on without: one that is made for
// a container's restart would be new to its programs, or be refused.
func TestPodsOfOlderBuildsHaveNoImageVolumes(t *testing.T) {
	var older pod.Pinned
	if err := json.Unmarshal([]byte(`{"cgroupDriver":"systemd","snapshotter":"overlayfs","maxLogLineSize":16384}`), &older); err != nil {
		t.Fatal(err)
	}
	today := &Settings{ignoreImageVolumes: false}
	if today.Of(&pod.SandboxSpec{Pinned: &older}).ImageVolumes {
		t.Error("a pod of an older build gets volumes that its image defines")
	}
	d := &handler.Definition{Name: "runc", Type: handler.OCI}
	for ignore, want := range map[bool]bool{false: true, true: false} {
		if got := (&Settings{ignoreImageVolumes: ignore}).Today(d); got.ImageVolumes != want {
			t.Errorf("with ignore_image_defined_volumes = %v a new pod has volumes: %v", ignore, got.ImageVolumes)
		}
	}
}

func put(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
