package cgroup

import (
	"path"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestPath(t *testing.T) {
	tests := []struct {
		driver       Driver
		parent, want string
		inside       string // where it is below a hierarchy
	}{
		{Cgroupfs, "", "/berth/" + id, "/berth/" + id},
		{Cgroupfs, "/kubepods/burstable/pod1", "/kubepods/burstable/pod1/" + id, "/kubepods/burstable/pod1/" + id},
		{Cgroupfs, "kubepods/pod1/", "/kubepods/pod1/" + id, "/kubepods/pod1/" + id},
		{Cgroupfs, "/", "/" + id, "/" + id},
		{Systemd, "", "system.slice:berth:" + id, "/system.slice/berth-" + id + ".scope"},
		{Systemd, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice",
			"kubepods-burstable-pod1_2.slice:berth:" + id,
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/berth-" + id + ".scope"},
		{Systemd, "test.slice", "test.slice:berth:" + id, "/test.slice/berth-" + id + ".scope"},
		{Systemd, "-.slice", "-.slice:berth:" + id, "/berth-" + id + ".scope"},
	}
	for _, test := range tests {
		got, err := Path(test.driver, test.parent, id)
		if err != nil || got != test.want {
			t.Errorf("Path(%s, %q) = %q, %v, want %q", test.driver, test.parent, got, err, test.want)
			continue
		}
		if inside := inHierarchy(got); inside != test.inside {
			t.Errorf("%q is at %q, want %q", got, inside, test.inside)
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
	for _, test := range tests {
		_, err := Path(test.driver, test.parent, id)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("Path(%s, %.50q): %v, want %q", test.driver, test.parent, err, test.says)
			continue
		}
		if n := len(err.Error()); n >= 1024 {
			t.Errorf("the text has %d bytes", n)
		}
	}
}

// A path that could be the root or a parent must name no directory at all: what
// it names may be removed.
func TestHostPathsOfNothing(t *testing.T) {
	for _, path := range []string{"", "/", "/..", "//", ".", "a", "a.slice:berth:", "a.slice", "a:b:c", "a.slice/../..:berth:c"} {
		p := HostPaths(path)
		if dirs := p.directories(); len(dirs) > 0 {
			t.Errorf("%q is %v", path, dirs)
		}
		if err := p.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		if pids, err := p.Processes(); err != nil || len(pids) > 0 {
			t.Errorf("processes %v, %v", pids, err)
		}
		if _, err := ReadStats(p); !errdefs.IsNotFound(err) {
			t.Errorf("statistics: %v", err)
		}
	}
}

func TestParentInHierarchy(t *testing.T) {
	for _, test := range []struct {
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
		if got := parentInHierarchy(test.parent, test.driver); got != test.want {
			t.Errorf("%s, %q: %q, want %q", test.driver, test.parent, got, test.want)
		}
	}
}

func FuzzPathStaysInside(f *testing.F) {
	for _, parent := range []string{"", "/", "/a/b", "a.slice", "../..", "a-b.slice", "/x/./y//z"} {
		f.Add(parent)
	}
	f.Fuzz(func(t *testing.T, parent string) {
		for _, driver := range []Driver{Cgroupfs, Systemd} {
			spec, err := Path(driver, parent, id)
			if err != nil {
				continue
			}
			inside := inHierarchy(spec)
			if !strings.Contains(path.Base(inside), id) || inside != path.Clean(inside) || !strings.HasPrefix(inside, "/") {
				t.Errorf("%s, %q: %q is at %q", driver, parent, spec, inside)
			}
		}
	})
}

func TestDetect(t *testing.T) {
	if d, err := Detect("cgroupfs"); d != Cgroupfs || err != nil {
		t.Errorf("%q, %v", d, err)
	}
	if _, err := Detect("cgroupsfs"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "cgroupsfs") {
		t.Errorf("%v", err)
	}
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
