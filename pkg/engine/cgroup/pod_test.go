package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestOfPod(t *testing.T) {
	const id = "0123abcd"
	top := t.TempDir()
	for _, dir := range []string{
		"memory/pods/a/0123abcd", "memory/pods/a/kata_0123abcd", "memory/pods/a/other", "memory/pods/b/kata_0123abcd",
		"freezer/pods/a/berth-0123abcd.scope/inner", "memory/kata_overhead/0123abcd", "memory/kata_overhead/pods/a/x0123abcd",
	} {
		test.Must(t, os.MkdirAll(filepath.Join(top, dir), 0o755))
	}
	test.Must(t, os.WriteFile(filepath.Join(top, "memory/pods/a", "file-"+id), nil, 0o600))
	names := func(all []Paths) (out []string) {
		for _, p := range all {
			out = append(out, strings.TrimPrefix(p.Dir("memory"), top))
		}
		slices.Sort(out)
		return out
	}
	v1 := hierarchies{v1: map[string]string{"memory": top + "/memory", "freezer": top + "/freezer"}}
	v2 := hierarchies{unified: top + "/memory"}
	for _, c := range []struct {
		h      hierarchies
		inside string
		want   []string
	}{
		{v1, "/pods/a/" + id, []string{
			"/memory/kata_overhead/0123abcd", "/memory/kata_overhead/pods/a/x0123abcd",
			"/memory/pods/a/0123abcd", "/memory/pods/a/berth-0123abcd.scope", "/memory/pods/a/kata_0123abcd",
		}},
		{v2, "/pods/b/" + id, []string{"/memory/kata_overhead/0123abcd", "/memory/pods/b/kata_0123abcd"}},
		{v2, "/pods/none/" + id, []string{"/memory/kata_overhead/0123abcd"}},
		{v2, "", nil},
		{hierarchies{}, "/pods/a/" + id, nil},
	} {
		got, err := c.h.ofPod(c.inside, id)
		if err != nil || !slices.Equal(names(got), c.want) {
			t.Errorf("%s: %q, %v, want %q", c.inside, names(got), err, c.want)
		}
	}
}
