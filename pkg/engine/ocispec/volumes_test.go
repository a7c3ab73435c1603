package ocispec

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func imageWith(paths ...string) imagespec.ImageConfig {
	c := imagespec.ImageConfig{Volumes: map[string]struct{}{}}
	for _, p := range paths {
		c.Volumes[p] = struct{}{}
	}
	return c
}

func TestDefinedVolumes(t *testing.T) {
	for name, c := range map[string]struct {
		paths, want []string
		refused     string
	}{
		"none":                {},
		"parents first":       {paths: []string{"/a/b/c", "/z", "/a/b"}, want: []string{"/z", "/a/b", "/a/b/c"}},
		"not normalized":      {paths: []string{"a", "/a/", "//a", "/b/../a", "../a", "./a/."}, want: []string{"/a"}},
		"kernel's paths":      {paths: []string{"/proc", "/proc/sys", "/dev/x", "/sys/fs/cgroup", "/x/../proc", "/process"}, want: []string{"/process"}},
		"newline":             {paths: []string{"/a\nb"}, want: []string{"/a\nb"}},
		"the root":            {paths: []string{"/"}, refused: "cover its whole root"},
		"not normalized root": {paths: []string{"/a/.."}, refused: "cover its whole root"},
		"an empty path":       {paths: []string{""}, refused: "cover its whole root"},
		"a NUL":               {paths: []string{"/a\x00b"}, refused: "not a path"},
		"very long":           {paths: []string{"/" + strings.Repeat("x/", 3000)}, refused: "not a path"},
		"too many": {paths: slices.Collect(func(yield func(string) bool) {
			for i := range 101 {
				yield(fmt.Sprint(i))
			}
		}), refused: "more than 100"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := DefinedVolumes(imageWith(c.paths...))
			if c.refused != "" {
				if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("the error is %v", err)
				}
				return
			}
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestCheckProc(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		path, source string
		refused      bool
	}{
		{"/data", dir, false},
		{"/process", dir, false},
		{"/proc", "/proc", false}, // a proc file system
		{"/proc", dir, true},
		{"/proc", filepath.Join(dir, "missing"), true},
		{"/proc", "", true}, // an image
		{"//proc/", dir, true},
		{"/a/../proc", dir, true},
		{"/proc/uptime", dir, false},
		{"/proc/uptime/x", dir, true},
		{"/proc/sys/kernel/ns_last_pid", dir, false},
		{"/proc/sys/kernel", dir, true},
		{"/proc/sys", "/proc/sys", true},
		{"/proc/self/attr", dir, true},
	} {
		err := CheckProc([]*runtimeapi.Mount{{ContainerPath: c.path, HostPath: c.source}})
		if errdefs.IsInvalidArgument(err) != c.refused || err != nil != c.refused {
			t.Errorf("%s from %q: %v", c.path, c.source, err)
		}
	}
	test.Checkf(t, CheckProcOf(&specs.Spec{Mounts: []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/dev", Type: "tmpfs"}}}), "a usual spec")
	test.Is(t, CheckProcOf(&specs.Spec{Mounts: []specs.Mount{{Destination: "/proc", Type: "tmpfs", Source: "tmpfs"}}}), errdefs.IsInvalidArgument, "a tmpfs over /proc")
}

func TestResolveTargets(t *testing.T) {
	root, volume := t.TempDir(), t.TempDir()
	for link, to := range map[string]string{
		root + "/absolute": "/real", root + "/climbing": "../../../real", root + "/chain": "absolute/x", root + "/loop": "loop",
		root + "/kernel": "/proc/self", root + "/dots": "/proc/../real", volume + "/inner": "/real", volume + "/kernel": "../proc/1",
	} {
		test.Must(t, os.Symlink(to, link))
	}
	test.Must(t, os.Mkdir(root+"/real", 0o755))
	targets := test.Value(ResolveTargets(root, []*runtimeapi.Mount{
		{ContainerPath: "/data/inner/deep", HostPath: "/nowhere"}, {ContainerPath: "/data", HostPath: volume},
	}, nil))(t)
	for asked, want := range map[string]string{
		"/plain/missing": "/plain/missing", "/absolute": "/real", "/absolute/y": "/real/y", "/climbing": "/real", "/chain": "/real/x",
		"/kernel/attr": "/proc/self/attr", "/dots": "/real", "/data": "/data", "/data/inner": "/real", "/data/../absolute": "/real",
		"/data/kernel": "/proc/1", "/": "/",
	} {
		test.Equal(t, fmt.Sprintf("%s leads to", asked), test.Value(targets.Resolve(asked))(t), want)
	}
	for _, asked := range []string{"/loop", "/" + strings.Repeat("x", 300)} {
		if got, err := targets.Resolve(asked); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%.20s leads to %q, %v", asked, got, err)
		}
	}
	for path, want := range map[string]bool{"/data": true, "/data/x": true, "/database": false, "/": false, "/real/deep": true, "/real": false} {
		test.Equal(t, fmt.Sprintf("%s is covered", path), targets.Cover(path), want)
	}
	for _, hidden := range []string{"/kernel", "/data/kernel/attr"} {
		_, err := ResolveTargets(root, []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: volume}, {ContainerPath: hidden, HostPath: volume}}, nil)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "only allowed over "+strings.Join(procFiles, ", ")) {
			t.Errorf("a mount at %s: %v", hidden, err)
		}
	}
}

// A volume of an image is left out at or below the path of another mount of the container.
func TestDefinedVolumesGiveWay(t *testing.T) {
	c := Container{
		Config:  &runtimeapi.ContainerConfig{Mounts: []*runtimeapi.Mount{{ContainerPath: "/asked", HostPath: "/host"}}},
		Sandbox: Sandbox{HostsPath: "/pod/hosts", ShmPath: "/pod/shm"},
		Volumes: []DefinedVolume{{"/asked", "/v/0"}, {"/asked/below", "/v/1"}, {"/etc/hosts", "/v/2"}, {"/base", "/v/3"}, {"/etc", "/v/4"}, {"/own/deep", "/v/5"}},
	}
	s := &specs.Spec{Linux: &specs.Linux{}, Mounts: []specs.Mount{{Destination: "/base", Type: "tmpfs", Source: "tmpfs"}}}
	test.Must(t, setMounts(s, c, bareNode()))
	var got []string
	for _, m := range s.Mounts {
		if strings.HasPrefix(m.Source, "/v/") {
			got = append(got, m.Destination)
			test.EqualLists(t, fmt.Sprintf("%s is mounted with", m.Destination), m.Options, []string{"rbind", "rprivate", "rw"})
		}
	}
	test.EqualLists(t, "volumes at", got, []string{"/etc", "/own/deep"})
}
