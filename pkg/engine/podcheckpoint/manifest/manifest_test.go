package manifest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func podConfig() *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u"}, Hostname: "p",
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/a", Sysctls: map[string]string{"kernel.x": "1"}},
	}
}

func containerConfig() *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "busybox"},
		Command: []string{"sh"}, Args: []string{"-c", "x"}, WorkingDir: "/",
		Envs:   []*runtimeapi.KeyValue{{Key: "A", Value: []byte("1")}, {Key: "B", Value: []byte("2")}},
		Mounts: []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: "/host", Readonly: true}, {ContainerPath: "/a", HostPath: "/b"}},
		Linux:  &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{RunAsUser: &runtimeapi.Int64Value{Value: 7}}},
	}
}

// made returns a manifest, and a target that fits it.
func made(t *testing.T) (*Manifest, *Target) {
	t.Helper()
	pod := test.Value(Encode(podConfig()))(t)
	config := test.Value(Encode(containerConfig()))(t)
	h := Handler{Name: "gvisor", Runtime: "runsc", Binaries: []Binary{{Path: "/runsc", Version: "1", SHA256: strings.Repeat("a", 64)}}, Flags: []string{"--debug"}}
	n := Node{Architecture: "x86_64", Kernel: "6.1", CPUFeatures: []string{"aes", "avx"}}
	m := &Manifest{Format: format, Handler: h, Node: n, Pod: pod, Containers: []Container{{Name: "main", Config: config, Image: Image{ID: "sha256:1", Name: "busybox"}}}}
	to := &Target{Handler: h, Node: n, Pod: podConfig(), Containers: []*runtimeapi.ContainerConfig{containerConfig()}, Images: map[string]Image{"main": {ID: "sha256:1"}}}
	to.Node.CPUFeatures = []string{"aes", "avx", "avx2"}
	return m, to
}

func TestFits(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Target)
		says   []string // nil if the target fits
	}{
		"the same":    {func(*Target) {}, nil},
		"another pod": {func(to *Target) { to.Pod.Metadata.Uid, to.Pod.Hostname, to.Pod.Linux.CgroupParent = "v", "q", "/b" }, nil},
		"other names of files": {func(to *Target) {
			to.Containers[0].Mounts[0].HostPath, to.Containers[0].LogPath = "/elsewhere", "1.log"
		}, nil},
		"another order": {func(to *Target) {
			c := to.Containers[0]
			c.Mounts[0], c.Mounts[1], c.Envs[0], c.Envs[1] = c.Mounts[1], c.Mounts[0], c.Envs[1], c.Envs[0]
		}, nil},
		"other limits": {func(to *Target) { to.Containers[0].Linux.Resources = &runtimeapi.LinuxContainerResources{CpuShares: 3} }, nil},
		"labels": {func(to *Target) {
			to.Containers[0].Labels, to.Pod.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
		}, nil},
		"an empty field": {func(to *Target) { to.Pod.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{} }, nil},

		"another machine":    {func(to *Target) { to.Node.Architecture = "aarch64" }, []string{"made on x86_64", "this node is aarch64"}},
		"an older processor": {func(to *Target) { to.Node.CPUFeatures = []string{"aes"} }, []string{"lacks avx"}},
		"another version": {func(to *Target) {
			to.Handler.Binaries = []Binary{{Path: "/new", Version: "2", SHA256: strings.Repeat("b", 64)}}
		},
			[]string{"made by 1 (/runsc, sha256 aaaaaaaaaaaa)", "the handler has 2 (/new, sha256 bbbbbbbbbbbb)", "install that version"}},
		"other flags":              {func(to *Target) { to.Handler.Flags = nil }, []string{`flags ["--debug"]`}},
		"another image":            {func(to *Target) { to.Images["main"] = Image{ID: "sha256:2"} }, []string{`container "main" ran image busybox (sha256:1)`, "is to run sha256:2"}},
		"another command":          {func(to *Target) { to.Containers[0].Command = []string{"ash"} }, []string{`container "main": command differs`}},
		"another argument":         {func(to *Target) { to.Containers[0].Args[1] = "y" }, []string{"args differs"}},
		"another environment":      {func(to *Target) { to.Containers[0].Envs[1].Value = []byte("3") }, []string{"envs differs"}},
		"another user":             {func(to *Target) { to.Containers[0].Linux.SecurityContext.RunAsUser.Value = 0 }, []string{"linux.security_context.run_as_user.value differs"}},
		"no user":                  {func(to *Target) { to.Containers[0].Linux.SecurityContext.RunAsUser = nil }, []string{"linux.security_context.run_as_user differs"}},
		"a writable mount":         {func(to *Target) { to.Containers[0].Mounts[0].Readonly = false }, []string{"mounts differs"}},
		"a terminal":               {func(to *Target) { to.Containers[0].Tty = true }, []string{"tty differs"}},
		"another sysctl":           {func(to *Target) { to.Pod.Linux.Sysctls["kernel.x"] = "2" }, []string{"the pod's linux.sysctls differs"}},
		"an annotation for gVisor": {func(to *Target) { to.Pod.Annotations = map[string]string{"dev.gvisor.spec.mount.x.type": "tmpfs"} }, []string{"the pod's annotations differs"}},
		"a missing container":      {func(to *Target) { to.Containers = nil }, []string{`the container "main" is missing`}},
		"an additional container": {func(to *Target) {
			more := containerConfig()
			more.Metadata.Name = "more"
			to.Containers = append(to.Containers, more)
		}, []string{`the checkpoint has no container "more"`}},
		"everything": {func(to *Target) {
			to.Node.Architecture, to.Handler.Flags, to.Containers[0].Tty = "aarch64", nil, true
		}, []string{"aarch64", "flags", "tty"}},
	} {
		m, to := made(t)
		c.change(to)
		asked := proto.CloneOf(to.Pod)
		err := m.Fits(to)
		if !proto.Equal(asked, to.Pod) {
			t.Errorf("%s: Fits changed the pod to %v", name, to.Pod)
		}
		if len(c.says) == 0 {
			test.Checkf(t, err, "%s", name)
			continue
		}
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		test.Says(t, err, c.says...)
	}
}

func TestValidName(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "a.tar.gz": true, "": false, ".": false, "..": false, "/a": false, "a/": false, "a/b": false, ".a": false, "a\xff": false,
	} {
		test.Equal(t, fmt.Sprintf("%q", name), ValidName(name), want)
	}
}

// written returns the directory and the manifest of a checkpoint with two files.
func written(t *testing.T) (string, *Manifest) {
	t.Helper()
	dir := t.TempDir()
	test.Must(t, os.Chmod(dir, 0o700))
	test.Must(t, os.Mkdir(filepath.Join(dir, ImagesDir), 0o700))
	for name, text := range map[string]string{"checkpoint.img": "state", "pages.img": "memory"} {
		test.Must(t, os.WriteFile(filepath.Join(dir, ImagesDir, name), []byte(text), 0o644))
	}
	m, _ := made(t)
	test.Must(t, Seal(t.Context(), dir, m))
	return dir, m
}

func TestSealedIsRead(t *testing.T) {
	dir, m := written(t)
	again := test.Value(Read(dir))(t)
	if len(again.Files) != 2 || again.Handler.Binaries[0] != m.Handler.Binaries[0] {
		t.Errorf("Read returned %+v", again)
	}
	test.Must(t, again.Verify(t.Context(), dir, Thoroughly))
	for _, name := range []string{Name, "images/checkpoint.img", "images/pages.img"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	test.ErrorIs(t, again.Verify(cancelled, dir, Quickly), context.Canceled, "Verify with an ended context")
	test.Must(t, Remove(dir))
	test.Must(t, Empty(dir))
}

// TestHostileCheckpoints has damaged checkpoints and those that an attacker may prepare.
func TestHostileCheckpoints(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	test.Must(t, os.WriteFile(secret, []byte("memory"), 0o600))
	edit := func(change func(m map[string]any)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			text := test.Value(os.ReadFile(filepath.Join(dir, Name)))(t)
			m := map[string]any{}
			test.Must(t, json.Unmarshal(text, &m))
			change(m)
			text = test.Value(json.Marshal(m))(t)
			test.Must(t, os.WriteFile(filepath.Join(dir, Name), text, 0o600))
		}
	}
	image := func(do func(path string) error) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) { test.Must(t, do(filepath.Join(dir, ImagesDir, "pages.img"))) }
	}
	instead := func(do func(path string) error) func(t *testing.T, dir string) {
		return image(func(path string) error { return errors.Join(os.Remove(path), do(path)) })
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string)
		says   string
	}{
		"no manifest": {func(t *testing.T, dir string) { test.Must(t, os.Remove(filepath.Join(dir, Name))) }, "has no checkpoint of a pod"},
		"not JSON": {func(t *testing.T, dir string) {
			test.Must(t, os.WriteFile(filepath.Join(dir, Name), []byte("{"), 0o600))
		}, "cannot be decoded"},
		"a long manifest": {func(t *testing.T, dir string) { test.Must(t, os.Truncate(filepath.Join(dir, Name), maxSize+1)) }, "more than"},
		"a linked manifest": {func(t *testing.T, dir string) {
			test.Must(t, os.Remove(filepath.Join(dir, Name)))
			test.Must(t, os.Symlink(secret, filepath.Join(dir, Name)))
		}, "has no checkpoint of a pod"},
		"a newer manifest": {edit(func(m map[string]any) { m["format"] = 2 }), "with the version of berth that made it"},
		"no containers":    {edit(func(m map[string]any) { m["containers"] = nil }), "names no containers"},
		"a container twice": {edit(func(m map[string]any) {
			all := m["containers"].([]any)
			m["containers"] = append(all, all[0])
		}), `"main" twice`},
		"a name that leads out": {edit(func(m map[string]any) { m["files"].([]any)[0].(map[string]any)["name"] = "../" + Name }), "names the file"},
		"no files":              {edit(func(m map[string]any) { m["files"] = nil }), "names 0 files"},
		"a negative size":       {edit(func(m map[string]any) { m["files"].([]any)[0].(map[string]any)["size"] = -1 }), "names the file"},
		"another name of a container": {func(t *testing.T, dir string) {
			text := test.Value(os.ReadFile(filepath.Join(dir, Name)))(t)
			test.Must(t, os.WriteFile(filepath.Join(dir, Name), bytes.Replace(text, []byte("main"), []byte("many"), 1), 0o600))
		}, "its manifest was changed"},
		"a truncated file":            {image(func(path string) error { return os.Truncate(path, 3) }), "has 3 bytes instead of 6"},
		"an altered file":             {image(func(path string) error { return os.WriteFile(path, []byte("memorx"), 0o600) }), "was changed"},
		"a missing file":              {image(os.Remove), "is missing"},
		"an additional file":          {image(func(path string) error { return os.WriteFile(path+".x", nil, 0o600) }), "another file"},
		"a link":                      {instead(func(path string) error { return os.Symlink(secret, path) }), "damaged"},
		"a hard link":                 {instead(func(path string) error { return os.Link(secret, path) }), "damaged"},
		"a FIFO":                      {instead(func(path string) error { return unix.Mkfifo(path, 0o600) }), "damaged"},
		"an additional directory":     {image(func(path string) error { return os.Mkdir(path+".x", 0o700) }), "another file"},
		"a directory":                 {instead(func(path string) error { return os.Mkdir(path, 0o700) }), "damaged"},
		"a file of another user":      {image(func(path string) error { return os.Chown(path, 1000, 0) }), "give it to root"},
		"a file writable by all":      {image(func(path string) error { return os.Chmod(path, 0o666) }), "others than root can change it"},
		"a directory writable by all": {func(t *testing.T, dir string) { test.Must(t, os.Chmod(filepath.Join(dir, ImagesDir), 0o777)) }, "others than root can change it"},
		"linked images": {func(t *testing.T, dir string) {
			test.Must(t, os.Rename(filepath.Join(dir, ImagesDir), filepath.Join(dir, "moved")))
			test.Must(t, os.Symlink("moved", filepath.Join(dir, ImagesDir)))
		}, "damaged"},
	} {
		for _, how := range []Thoroughness{Quickly, Thoroughly} {
			dir, _ := written(t)
			c.change(t, dir)
			m, err := Read(dir)
			if err == nil {
				err = m.Verify(t.Context(), dir, how)
			}
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", name, err, c.says)
			}
		}
	}
}

func TestEmptyDirectories(t *testing.T) {
	dir := t.TempDir()
	test.Must(t, os.Chmod(dir, 0o700))
	test.Must(t, Empty(dir))
	link := filepath.Join(t.TempDir(), "link")
	test.Must(t, os.Symlink(dir, link))
	full := t.TempDir()
	test.Must(t, os.WriteFile(filepath.Join(full, "x"), nil, 0o600))
	open := t.TempDir()
	test.Must(t, os.Chmod(open, 0o777))
	for path, says := range map[string]string{
		filepath.Join(dir, "none"): "create it first", link: "directory", filepath.Join(full, "x"): "directory", full: "is not empty", open: "others than root",
	} {
		if err := Empty(path); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", path, err, says)
		}
	}
}
