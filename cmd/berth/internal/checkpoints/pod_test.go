package checkpoints

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
)

// TestSizeOfACheckpoint: the size of a checkpoint that is being written is that of its files.
func TestSizeOfACheckpoint(t *testing.T) {
	dir := t.TempDir()
	if got := sizeOf(dir); got != 0 {
		t.Errorf("without files, the size is %d", got)
	}
	for name, text := range map[string]string{"0/config.dump": "{}", "1/checkpoint/pages-1.img": "memory", "shm.tar": "x"} {
		path := filepath.Join(dir, manifest.ImagesDir, name)
		test.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)))
	}
	if got := sizeOf(dir); got != 9 {
		t.Errorf("the size is %d", got)
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
