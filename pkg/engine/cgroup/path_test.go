package cgroup

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestPath(t *testing.T) {
	const parent = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"
	tests := []struct {
		driver               Driver
		prefix, parent, want string
		inside               string // the path below a hierarchy's root
	}{
		{Cgroupfs, "berth", "", "/berth/" + id, "/berth/" + id},
		{Cgroupfs, "berth", "/kubepods/burstable/pod1", "/kubepods/burstable/pod1/" + id, "/kubepods/burstable/pod1/" + id},
		{Cgroupfs, "berth", "kubepods/pod1/", "/kubepods/pod1/" + id, "/kubepods/pod1/" + id},
		{Cgroupfs, "berth", "/", "/" + id, "/" + id},
		{Cgroupfs, "cri-containerd", "", "/cri-containerd/" + id, "/cri-containerd/" + id},
		{Cgroupfs, "cri-containerd", "/kubepods/burstable/pod1", "/kubepods/burstable/pod1/" + id, "/kubepods/burstable/pod1/" + id},
		{Systemd, "berth", "", "system.slice:berth:" + id, "/system.slice/berth-" + id + ".scope"},
		{Systemd, "berth", parent, "kubepods-burstable-pod1_2.slice:berth:" + id, parent + "/berth-" + id + ".scope"},
		{Systemd, "berth", "test.slice", "test.slice:berth:" + id, "/test.slice/berth-" + id + ".scope"},
		{Systemd, "berth", "-.slice", "-.slice:berth:" + id, "/berth-" + id + ".scope"},
		{Systemd, "cri-containerd", "", "system.slice:cri-containerd:" + id, "/system.slice/cri-containerd-" + id + ".scope"},
		{Systemd, "cri-containerd", parent, "kubepods-burstable-pod1_2.slice:cri-containerd:" + id, parent + "/cri-containerd-" + id + ".scope"},
	}
	for _, tc := range tests {
		got, err := Path(tc.driver, tc.prefix, tc.parent, id)
		if err != nil || got != tc.want {
			t.Errorf("Path(%s, %q, %q) = %q, %v, want %q", tc.driver, tc.prefix, tc.parent, got, err, tc.want)
			continue
		}
		test.Equal(t, fmt.Sprintf("%q is at", got), Inside(got), tc.inside)
	}
}

// Agents written for containerd find a container's ID in the path of its cgroup.
func TestAgentsFindContainers(t *testing.T) {
	cadvisor := regexp.MustCompile(`([a-z0-9]{64})`) // container/containerd/factory.go of cAdvisor
	// CRI_CGROUP_LAYOUT of Falco's libs, for containerd.
	falco := map[Driver]*regexp.Regexp{
		Cgroupfs: regexp.MustCompile(`/([0-9a-f]{64})$`),
		Systemd:  regexp.MustCompile(`/cri-containerd-([0-9a-f]{64})\.scope$`),
	}
	for driver, parent := range map[Driver]string{Cgroupfs: "/kubepods/pod1", Systemd: "/kubepods.slice/kubepods-pod1.slice"} {
		spec := test.Value(Path(driver, "cri-containerd", parent, id))(t)
		inside := Inside(spec)
		if found := cadvisor.FindStringSubmatch(path.Base(inside)); !slices.Contains(found, id) {
			t.Errorf("%s: cAdvisor finds %v in %s", driver, found, inside)
		}
		if found := falco[driver].FindStringSubmatch(inside); !slices.Contains(found, id) {
			t.Errorf("%s: Falco finds %v in %s", driver, found, inside)
		}
	}
}

func TestPathRefuses(t *testing.T) {
	tests := []struct {
		driver       Driver
		parent, says string
	}{
		{Cgroupfs, "/kubepods.slice/kubepods-pod1.slice", "cgroupDriver"},
		{Cgroupfs, "system.slice", "cgroupfs"},
		{Cgroupfs, "/kubepods/../..", ".."},
		{Cgroupfs, "/a:b", "a:b"},
		{Systemd, "/kubepods/burstable/pod1", "cgroupDriver"},
		{Systemd, "/", "systemd"},
		{Systemd, "a--b.slice", "a--b.slice"},
		{Systemd, ".slice", "slice"},
		{Systemd, "x.slice:y", "x.slice:y"},
		{Systemd, strings.Repeat("x", 5000), "xxx"},
	}
	for _, tc := range tests {
		_, err := Path(tc.driver, DefaultPrefix, tc.parent, id)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("Path(%s, %.50q): %v, want %q", tc.driver, tc.parent, err, tc.says)
			continue
		}
		if n := len(err.Error()); n >= 1024 {
			t.Errorf("the error has %d bytes", n)
		}
	}
}

// HostPaths returns no directory for a path that could name a hierarchy's root or a
// parent, because Remove deletes the directories of Paths.
func TestHostPathsOfNothing(t *testing.T) {
	for _, path := range []string{"", "/", "/..", "//", ".", "a", "a.slice:berth:", "a.slice", "a:b:c", "a.slice/../..:berth:c"} {
		p := HostPaths(path)
		if dirs := p.directories(); len(dirs) > 0 {
			t.Errorf("%q has the directories %v", path, dirs)
		}
		test.Check(t, p.Remove(t.Context()))
		if pids, err := p.Processes(); err != nil || len(pids) > 0 {
			t.Errorf("processes %v, %v", pids, err)
		}
		test.Is(t, test.Err(ReadStats(p)), errdefs.IsNotFound, "statistics")
	}
}

func TestParentInHierarchy(t *testing.T) {
	for _, tc := range []struct {
		driver       Driver
		parent, want string
	}{
		{Cgroupfs, "", ""},
		{Cgroupfs, "/", ""},
		{Cgroupfs, "kubepods/pod1", "/kubepods/pod1"},
		{Cgroupfs, "/kubepods/burstable/pod1/", "/kubepods/burstable/pod1"},
		{Systemd, "", ""},
		{Systemd, "-.slice", ""},
		{Systemd, "/not/a/slice-at-all", ""},
		{Systemd, "/kubepods.slice/kubepods-pod1.slice", "/kubepods.slice/kubepods-pod1.slice"},
		{Systemd, "kubepods-pod1.slice", "/kubepods.slice/kubepods-pod1.slice"},
	} {
		test.Equal(t, fmt.Sprintf("%s, %q", tc.driver, tc.parent), parentInside(tc.parent, tc.driver), tc.want)
	}
}

func FuzzPathStaysInside(f *testing.F) {
	for _, parent := range []string{"", "/", "/a/b", "a.slice", "../..", "a-b.slice", "/x/./y//z"} {
		f.Add(parent)
	}
	f.Fuzz(func(t *testing.T, parent string) {
		for _, driver := range []Driver{Cgroupfs, Systemd} {
			spec, err := Path(driver, DefaultPrefix, parent, id)
			if err != nil {
				continue
			}
			inside := Inside(spec)
			if !strings.Contains(path.Base(inside), id) || inside != path.Clean(inside) || !strings.HasPrefix(inside, "/") {
				t.Errorf("%s, %q: %q is at %q", driver, parent, spec, inside)
			}
		}
	})
}

func TestDetect(t *testing.T) {
	if d, err := Detect("cgroupfs"); d != Cgroupfs || err != nil {
		t.Errorf("Detect(cgroupfs) = %q, %v", d, err)
	}
	test.Refused(t, test.Err(Detect("cgroupsfs")), errdefs.IsInvalidArgument, "cgroupsfs")
	answers := systemdAnswers() == nil
	for _, want := range []string{"auto", ""} {
		if d, err := Detect(want); err != nil || (d == Systemd) != answers {
			t.Errorf("Detect(%q) = %q, %v; systemd answers: %v", want, d, err, answers)
		}
	}
	if d, err := Detect("systemd"); answers != (err == nil && d == Systemd) || (!answers && !errdefs.IsFailedPrecondition(err)) {
		t.Errorf("Detect(systemd) = %q, %v; systemd answers: %v", d, err, answers)
	}
}
