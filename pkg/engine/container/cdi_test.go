package container

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/internal/test"
)

const stranger = 12345

// TestChangeableDevices has two CDI specs. Devices of the spec that users other than
// root can change are refused; devices of the other spec are injected.
func TestChangeableDevices(t *testing.T) {
	text := func(vendor string) string {
		return `{"cdiVersion": "0.6.0", "kind": "` + vendor + `/gpu", "devices": [{"name": "0", "containerEdits": {"env": ["GPU=0"]}}]}`
	}
	for name, c := range map[string]struct {
		change func(dir string) error
		want   string
	}{
		"file writable by all":      {func(dir string) error { return os.Chmod(dir+"/theirs.json", 0o666) }, "chmod o-w"},
		"file of another user":      {func(dir string) error { return os.Chown(dir+"/theirs.json", stranger, 0) }, "chown root"},
		"directory writable by all": {func(dir string) error { return os.Chmod(dir, 0o777) }, "chmod o-w"},
		"sticky directory":          {func(dir string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, "chmod o-w"},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := t.TempDir(), t.TempDir()
			put(t, filepath.Join(ours, "ours.json"), text("ours.com"))
			put(t, filepath.Join(theirs, "theirs.json"), text("theirs.com"))
			test.Must(t, c.change(theirs))
			b := &specifier{Deps{CDISpecDirs: []string{ours, theirs}}}
			spec := &specs.Spec{Process: &specs.Process{}}
			test.Refused(t, b.injectCDI(spec, []string{"ours.com/gpu=0", "theirs.com/gpu=0"}), errdefs.IsFailedPrecondition, c.want, "theirs.com/gpu=0")
			test.Check(t, b.injectCDI(spec, []string{"ours.com/gpu=0"}))
			if len(spec.Process.Env) != 1 {
				t.Errorf("environment %q, want that of one device", spec.Process.Env)
			}
		})
	}
}
