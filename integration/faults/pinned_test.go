package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// basedOn is a base_runtime_spec with a limit of open files to tell it by.
const basedOn = `{"ociVersion": "1.0.2",
"process": {"rlimits": [{"type": "RLIMIT_NOFILE", "soft": %d, "hard": %d}]},
"mounts": [
	{"destination": "/proc", "type": "proc", "source": "proc"},
	{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]}
]}`

// denies is a seccomp profile that denies one call and allows all others.
const denies = `{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
"syscalls": [{"names": [%s], "action": "SCMP_ACT_ERRNO"}]}`

// shows prints what a container has of its configuration: the limit, what
// seccomp lets it do, its root filesystem, and a line that is cut in parts.
const shows = `ulimit -n
mkdir /d 2>/dev/null && echo mkdir
ln -s /d /l 2>/dev/null && echo symlink
grep ' / ' /proc/mounts | cut -d' ' -f1
echo 0123456789012345678901234567890123456789`

// TestPinnedConfiguration edits the files and settings that a pod was made with,
// and restarts the daemon. New containers of the old pod have what its first one
// had, those of new pods what is configured now.
func TestPinnedConfiguration(t *testing.T) {
	dir := t.TempDir()
	base, profile := filepath.Join(dir, "base.json"), filepath.Join(dir, "seccomp.json")
	write := func(limit int, denied string) {
		t.Helper()
		for path, content := range map[string]string{base: fmt.Sprintf(basedOn, limit, limit), profile: fmt.Sprintf(denies, denied)} {
			testbed.Must(t, os.WriteFile(path, []byte(content), 0o600))
		}
	}
	configured := func(snapshotter string, line int) string {
		return fmt.Sprintf("default_runtime = \"runc\"\n[engine]\ndefault_seccomp_profile = %q\nsnapshotter = %q\nmax_log_line_size = %d\n[runtimes.runc]\nruntime_path = %q\nbase_runtime_spec = %q\n",
			profile, snapshotter, line, testbed.Part(t, testbed.Runc), base)
	}
	const then = "1111\nsymlink\noverlay\n0123456789\n0123456789\n0123456789\n0123456789"
	const now = "2222\nmkdir\nnot overlay\n01234567890123456789\n01234567890123456789"
	write(1111, `"mkdir", "mkdirat"`)
	b := newBed(t, testbed.Options{Config: configured("overlayfs", 10)})
	atRest := b.Rest(t)
	old := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", shows}, Container: byDefaultSeccomp})
	testbed.MustBe(t, shown(t, old.Container), then, "the pod has")

	write(2222, `"symlink", "symlinkat"`)
	b.configure(t, configured("native", 20))
	spec := testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", shows}, Container: byDefaultSeccomp}
	testbed.Same(t, shown(t, old.RunContainer(t, "second", spec)), then, "a new container of the old pod has")
	fresh := b.Client.RunPod(t, spec)
	testbed.Same(t, shown(t, fresh.Container), now, "a new pod has")

	// Files that are gone are no concern of a pod that has what they said.
	for _, path := range []string{base, profile} {
		testbed.Must(t, os.Remove(path))
	}
	testbed.Same(t, shown(t, old.RunContainer(t, "third", spec)), then, "without the files a new container of the old pod has")
	b.NothingLeft(t, atRest)
}

func byDefaultSeccomp(c *runtimeapi.ContainerConfig) {
	c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

// shown is what a container printed, in the parts of its log.
func shown(t *testing.T, c *testbed.Container) string {
	t.Helper()
	c.WaitExit(t)
	var parts []string
	for _, line := range c.Log(t) {
		text := line.Text
		if strings.HasPrefix(text, "/") {
			text = "not overlay"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "\n")
}
