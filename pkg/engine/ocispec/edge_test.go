package ocispec

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/berth-cri/berth/internal/test"
)

// mountTmpfs mounts a tmpfs with a propagation, until the test ends.
func mountTmpfs(t *testing.T, propagation uintptr) string {
	t.Helper()
	dir := t.TempDir()
	test.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() {
		test.Checkf(t, unix.Unmount(dir, unix.MNT_DETACH), "unmount %s", dir)
	})
	test.Must(t, unix.Mount("", dir, "", propagation, ""))
	return dir
}

func TestCheckMounts(t *testing.T) {
	private, shared := mountTmpfs(t, unix.MS_PRIVATE), mountTmpfs(t, unix.MS_SHARED)
	slave := filepath.Join(private, "slave")
	test.Must(t, os.MkdirAll(filepath.Join(shared, "deep", "er"), 0o755))
	test.Must(t, os.Mkdir(slave, 0o755))
	test.Must(t, unix.Mount(shared, slave, "", unix.MS_BIND, ""))
	t.Cleanup(func() {
		test.Checkf(t, unix.Unmount(slave, unix.MNT_DETACH), "unmount %s", slave)
	})
	test.Must(t, unix.Mount("", slave, "", unix.MS_SLAVE, ""))
	test.Must(t, os.Symlink(shared, filepath.Join(private, "link")))

	const (
		no   = runtimeapi.MountPropagation_PROPAGATION_PRIVATE
		in   = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		both = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	)
	for _, c := range []struct {
		path string
		prop runtimeapi.MountPropagation
		ok   bool
	}{
		{private, no, true},
		{private, in, false},
		{private, both, false},
		{shared, in, true},
		{shared, both, true},
		{filepath.Join(shared, "deep", "er"), both, true},
		{filepath.Join(private, "link"), both, true},
		{slave, in, true},
		{slave, both, false},
		{filepath.Join(private, "gone"), in, false},
		{filepath.Join(private, "gone"), no, true},
	} {
		err := CheckMounts([]*runtimeapi.Mount{{ContainerPath: "/c", HostPath: c.path, Propagation: c.prop}})
		if c.ok && err != nil || !c.ok && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s %s: got %v, want ok %v", c.path, c.prop, err, c.ok)
		}
	}
	test.Checkf(t, CheckMounts([]*runtimeapi.Mount{{ContainerPath: "/c", Propagation: both, Image: &runtimeapi.ImageSpec{Image: "x"}}}), "an image, which has no host path to check")
}

func TestDetectNode(t *testing.T) {
	n := test.Value(DetectNode())(t)
	if !slices.Contains(n.Capabilities, "CAP_SETUID") {
		t.Errorf("capabilities of root: %v", n.Capabilities)
	}
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	test.Equal(t, "CgroupUnified", n.CgroupUnified, err == nil)
	host, err := os.Hostname()
	if err != nil || n.Hostname != host {
		t.Errorf("hostname %q, want %q (%v)", n.Hostname, host, err)
	}
	// The test changes this value of its own process, and restores it at the end.
	old := test.Value(os.ReadFile("/proc/self/oom_score_adj"))(t)
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0); err == nil {
		defer os.WriteFile("/proc/self/oom_score_adj", old, 0) //nolint:errcheck // Best effort in a test process.
	}
	all, err := n.HostDevices()
	if err != nil || !slices.ContainsFunc(all, func(d specs.LinuxDevice) bool { return d.Path == "/dev/null" && d.Major == 1 && d.Minor == 3 }) {
		t.Errorf("host devices without /dev/null: %v, %v", all, err)
	}
	one, err := n.Devices("/dev/null", "/dev/void")
	if err != nil || len(one) != 1 || one[0].Path != "/dev/void" || one[0].Minor != 3 {
		t.Errorf("got %+v, %v", one, err)
	}
	test.Fails(t, test.Err(n.Devices("/dev/none-such", "/x")), "a device that does not exist was found")
	if loaded, err := n.AppArmorLoaded("berth-no-such-profile"); loaded {
		t.Errorf("a profile that does not exist is loaded (%v)", err)
	}
}

func TestDevicesOfADirectory(t *testing.T) {
	dir := t.TempDir()
	for name, minor := range map[string]uint32{"null": 3, "zero": 5} {
		test.Must(t, unix.Mknod(filepath.Join(dir, name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))))
	}
	write(t, filepath.Join(dir, "plain"), "")
	got, err := devicesAt(dir, "/dev/set")
	if err != nil || len(got) != 2 || got[0].Path != "/dev/set/null" || got[1].Path != "/dev/set/zero" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParseBase(t *testing.T) {
	s, err := ParseBase("good", `{"ociVersion":"1.0.2","process":{"rlimits":[{"type":"RLIMIT_CORE","soft":1,"hard":2}]}}`)
	if err != nil || s.Process.Rlimits[0].Hard != 2 {
		t.Errorf("got %+v, %v", s, err)
	}
	for content, says := range map[string]string{`{"proces":{}}`: "proces", "{": "/etc/base.json is not an OCI spec", "": "/etc/base.json"} {
		if _, err := ParseBase("/etc/base.json", content); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v", content, err)
		}
	}
}

func TestApplyCDI(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "vendor.json"), `{
  "cdiVersion": "0.6.0", "kind": "vendor.com/device",
  "devices": [{"name": "null", "containerEdits": {
    "env": ["CDI=1"],
    "deviceNodes": [{"path": "/dev/vendor0", "hostPath": "/dev/null"}],
    "mounts": [{"hostPath": "/usr/lib", "containerPath": "/vendor", "options": ["ro", "rbind"]}],
    "hooks": [{"hookName": "createContainer", "path": "/usr/bin/hook"}]
  }}]
}`)
	registry := test.Value(cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false)))(t)
	c := testContainer(t)
	c.Config.CDIDevices = []*runtimeapi.CDIDevice{{Name: "vendor.com/device=null"}}
	c.Config.Annotations = map[string]string{cdi.AnnotationPrefix + "old_way": "vendor.com/device=null"}
	devices, err := CDIDevices(c.Config)
	if err != nil || !slices.Equal(devices, []string{"vendor.com/device=null"}) {
		t.Fatalf("got %v, %v", devices, err)
	}
	s := test.Value(Build(c, modernNode()))(t)
	test.Must(t, ApplyCDI(s, devices, registry))
	test.Must(t, Fit(s, c.Runtime))
	mounted := slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/vendor" })
	allowed := slices.ContainsFunc(s.Linux.Resources.Devices, func(d specs.LinuxDeviceCgroup) bool { return d.Allow && deref(d.Major) == 1 && deref(d.Minor) == 3 })
	if !slices.Contains(s.Process.Env, "CDI=1") || len(s.Linux.Devices) != 1 || !mounted || !allowed || s.Hooks == nil || len(s.Hooks.CreateContainer) != 1 {
		t.Errorf("edits of the device are missing: env %v, devices %v, mounted %v, allowed %v, hooks %v", s.Process.Env, s.Linux.Devices, mounted, allowed, s.Hooks)
	}

	write(t, filepath.Join(dir, "broken.json"), "{")
	if err := registry.Refresh(); err == nil {
		t.Fatal("the registry does not notice a broken spec")
	}
	test.Refused(t, ApplyCDI(&specs.Spec{}, []string{"vendor.com/device=absent"}, registry), errdefs.IsFailedPrecondition, "vendor.com/device=absent", "in "+dir+" ", filepath.Join(dir, "broken.json")+" cannot be used: ")
	test.Checkf(t, ApplyCDI(&specs.Spec{}, nil, nil), "no devices and no registry")
	test.Is(t, test.Err(CDIDevices(&runtimeapi.ContainerConfig{Annotations: map[string]string{cdi.AnnotationPrefix + "x": "nonsense"}})), errdefs.IsInvalidArgument, "a malformed annotation")
}
