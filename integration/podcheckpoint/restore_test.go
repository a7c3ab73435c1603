package podcheckpoint

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestPodGoesOn: a pod of two containers is checkpointed while it runs, and is restored twice. Both
// new pods continue to count, and have addresses of their own.
func TestPodGoesOn(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	p := b.run(t, "one", "two")
	p.reaches(t, 5)
	dir := p.checkpointed(t)
	want := []string{"images", "images/checkpoint.img", "images/pages.img", "images/pages_meta.img", "manifest.json"}
	if got := files(t, dir); !slices.Equal(got, want) {
		t.Errorf("the checkpoint has %q, want %q", got, want)
	}
	for _, name := range files(t, dir) {
		info := value(os.Stat(filepath.Join(dir, name)))(t)
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, readable by others", name, info.Mode())
		}
	}
	written := min(p.members[0].count(t), p.members[1].count(t))
	p.reaches(t, written+5) // the checkpointed pod runs on
	again, beside := b.restored(t, p, dir), b.restored(t, p, dir)
	for _, r := range []*pod{again, beside} {
		r.reaches(t, written)
		for _, m := range r.members {
			name := m.config.GetMetadata().GetName()
			first := m.Log(t)[0].Text
			if first == name+" 1" {
				t.Errorf("the restored container began anew: %q", first)
			}
			if got := strings.Count(m.Exec(t, "cat", "/tmp/open"), "\n"); got <= written {
				t.Errorf("%s has %d lines in its open file, not more than the %d of the checkpoint", name, got, written)
			}
		}
	}
	if a, c := p.IP(t), again.IP(t); a == c || c == "" || beside.IP(t) == c {
		t.Errorf("the addresses are %q, %q and %q", a, c, beside.IP(t))
	}
	again.members[0].Stop(t, 0)
	if got := again.members[0].WaitExit(t).GetExitCode(); got != 137 {
		t.Errorf("the stopped container exited with %d, want 137", got)
	}
	n := again.members[1].count(t)
	testbed.Eventually(t, patience, func() error {
		if again.members[1].count(t) <= n+2 {
			return errors.New("the other container does not count on")
		}
		return nil
	})
	b.Kill9(t)
	b.Start(t)
	beside.reaches(t, beside.members[0].count(t)+3)
	for _, r := range []*pod{p, again, beside} {
		r.Remove(t)
	}
	b.NothingLeft(t, atRest)
}
