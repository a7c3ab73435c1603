package podcheckpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

// kept writes one more checkpoint in the default directory, and returns its path.
func (b *bed) kept(t *testing.T, p *pod) string {
	t.Helper()
	var l struct{ Directory string }
	out := b.must(t, "pod", "checkpoint", p.ID, "-o", "json")
	testbed.Mustf(t, json.Unmarshal([]byte(out), &l), "%s", out)
	return l.Directory
}

// names returns the files in the default directory, without the directory of names.
func (b *bed) names(t *testing.T) (names []string) {
	t.Helper()
	entries := value(os.ReadDir(b.directory()))(t)
	for _, e := range entries {
		if e.Name() != "names" {
			names = append(names, e.Name())
		}
	}
	return names
}

// directory is the default directory of checkpoints.
func (b *bed) directory() string { return filepath.Join(b.Root, "pod-checkpoints") }

// prunes runs `berth checkpoint prune` with a bound. Exactly the directories left must then exist.
func (b *bed) prunes(t *testing.T, bound string, left ...string) {
	t.Helper()
	b.must(t, "checkpoint", "prune", bound)
	var want []string
	for _, dir := range left {
		want = append(want, filepath.Base(dir))
	}
	slices.Sort(want)
	if got := b.names(t); !slices.Equal(got, want) {
		t.Errorf("prune %s: left %q, want %q", bound, got, want)
	}
}

// TestOldCheckpointsAreRemoved: prune keeps the newest checkpoints of each pod (--keep), or those
// that are not too old (--older-than). Incomplete checkpoints stay.
func TestOldCheckpointsAreRemoved(t *testing.T) {
	b := newBed(t, testbed.Options{})
	b.prunesNothing(t)
	p, other := b.run(t, "one"), b.run(t, "one")
	p.reaches(t, 2)
	other.reaches(t, 2)
	var all []string
	for range 3 {
		all = append(all, b.kept(t, p))
	}
	others := b.kept(t, other)
	name := p.Config.GetMetadata()
	if got := filepath.Base(all[2]); !strings.HasPrefix(got, name.GetNamespace()+"_"+name.GetName()+"_2") {
		t.Errorf("the directory of the checkpoint is called %s", got)
	}
	for _, dir := range []string{b.directory(), all[2]} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: mode is not 0700: %v, %v", dir, info, err)
		}
	}
	b.prunes(t, "--keep=2", all[1], all[2], others)
	testbed.Must(t, os.Remove(filepath.Join(all[1], "manifest.json")))
	b.prunes(t, "--keep=1", all[1], all[2], others)
	b.restored(t, other, others).reaches(t, 3)
	b.must(t, "pod", "checkpoint", p.ID, "--as", "shop/kept")
	b.prunes(t, "--older-than=1ms", all[1], b.named(t, "shop/kept"))
	b.must(t, "checkpoint", "rm", "shop/kept")
	if left := files(t, all[1]); len(left) != 4 {
		t.Errorf("the incomplete checkpoint has the files %q, want 4", left)
	}
	testbed.Must(t, os.Chmod(b.directory(), 0o777))
	if exit, _, mistakes := b.berth(t, "checkpoint", "prune", "--keep=1"); exit == 0 || !strings.Contains(mistakes, "0700") {
		t.Errorf("prune in a directory of mode 0777: exit status %d, %s", exit, mistakes)
	}
}

// prunesNothing runs prune on a node without checkpoints.
func (b *bed) prunesNothing(t *testing.T) {
	t.Helper()
	if out := b.must(t, "checkpoint", "prune", "--keep=1"); !strings.Contains(out, "nothing to remove") {
		t.Errorf("prune without checkpoints prints %s", out)
	}
}

// TestCheckpointInUseStays: a checkpoint is not removed while it is pushed to a registry, or while
// a pod restored from it has containers to start, also after a restart of the daemon.
func TestCheckpointInUseStays(t *testing.T) {
	b := newBed(t, testbed.Options{})
	p := b.run(t, "one", "two")
	p.reaches(t, 2)
	first := b.kept(t, p)
	again := b.created(t, p, b.request(p, first))
	again.members[0].Start(t)
	refused := func(dir, when string) {
		t.Helper()
		if exit, _, mistakes := b.berth(t, "checkpoint", "rm", dir); exit == 0 || !strings.Contains(mistakes, "in use") {
			t.Errorf("rm of a checkpoint %s: exit status %d, %s", when, exit, mistakes)
		}
	}
	refused(first, "from which a pod is restored")
	second := b.kept(t, p)
	b.prunes(t, "--keep=1", first, second)
	b.Kill9(t)
	b.Start(t)
	third := b.kept(t, p)
	b.prunes(t, "--keep=1", first, third) // second is not in use
	again.members[1].Start(t)
	again.reaches(t, 3)
	b.prunes(t, "--keep=1", third)

	end := b.pushesForEver(t, third)
	last := b.kept(t, p)
	refused(third, "that is pushed")
	b.prunes(t, "--keep=1", third, last)
	end()
	b.prunes(t, "--keep=1", last)
	b.restored(t, p, last).reaches(t, 3)
}

// pushesForEver pushes a checkpoint to a registry that does not answer, until end is called.
func (b *bed) pushesForEver(t *testing.T, dir string) (end func()) {
	t.Helper()
	l := value(net.Listen("tcp", "127.0.0.1:0"))(t)
	push := exec.CommandContext(t.Context(), filepath.Join(b.Bin, "berth"), "checkpoint", "push", dir, l.Addr().String()+"/x:1", "--plain-http")
	testbed.Must(t, push.Start())
	conn := value(l.Accept())(t)
	return func() {
		t.Helper()
		testbed.Check(t, push.Process.Kill())
		_ = push.Wait() // it was killed
		testbed.Check(t, errors.Join(conn.Close(), l.Close()))
	}
}

// TestKilledWhileItRemoves: a prune finishes the removal in which an earlier prune was killed.
func TestKilledWhileItRemoves(t *testing.T) {
	b := newBed(t, testbed.Options{Tags: []string{"berth_failpoints"}})
	p := b.run(t, "one")
	p.reaches(t, 2)
	last := b.kept(t, p)
	for _, place := range []string{failpoint.PodCheckpointRenamed, failpoint.PodCheckpointEmptied} {
		old := last
		last = b.kept(t, p)
		t.Setenv("BERTH_FAILPOINT", place)
		if exit, _, _ := b.berth(t, "checkpoint", "prune", "--keep=1"); exit != -1 {
			t.Errorf("%s: prune was not killed: exit status %d", place, exit)
		}
		t.Setenv("BERTH_FAILPOINT", "")
		if got := b.names(t); len(got) != 2 || got[0] != ".removing-"+filepath.Base(old) {
			t.Errorf("%s: no renamed checkpoint is left by the killed prune: %q", place, got)
		}
		b.prunes(t, "--keep=1", last)
	}
	b.must(t, "checkpoint", "inspect", "--verify", last)
	b.restored(t, p, last).reaches(t, 3)
}

// TestKilledWhileItKeeps: what a killed daemon had written of a checkpoint in the default directory
// is gone after the next start of the daemon and a prune.
func TestKilledWhileItKeeps(t *testing.T) {
	b := newBed(t, testbed.Options{Tags: []string{"berth_failpoints"}})
	p := b.run(t, "one")
	p.reaches(t, 2)
	last := b.kept(t, p)
	for _, place := range []string{failpoint.PodCheckpointNoted, failpoint.PodCheckpointWritten} {
		b.Stop(t)
		b.SetEnvironment("BERTH_FAILPOINT=" + place)
		b.Start(t)
		_, _, _ = b.berth(t, "pod", "checkpoint", p.ID) // may succeed just before the daemon dies
		b.Wait(t, patience)
		b.SetEnvironment()
		b.Start(t)
		testbed.Eventually(t, patience, func() error {
			b.must(t, "checkpoint", "prune", "--keep=1")
			if got := b.names(t); len(got) != 1 || got[0] != filepath.Base(last) {
				return fmt.Errorf("%s: left %q, want only %s", place, got, filepath.Base(last))
			}
			return nil
		})
		p.reaches(t, p.members[0].count(t)+2)
	}
	b.restored(t, p, last).reaches(t, 3)
}

// TestKilledWhileItNames: after a kill before the checkpoint has its name, and in the removal of a
// name, the checkpoints that are left are removed as usual, and the name can be used again.
func TestKilledWhileItNames(t *testing.T) {
	b := newBed(t, testbed.Options{Tags: []string{"berth_failpoints"}})
	p := b.run(t, "one")
	p.reaches(t, 2)
	killed := func(place string, args ...string) {
		t.Helper()
		t.Setenv("BERTH_FAILPOINT", place)
		if exit, _, mistakes := b.berth(t, args...); exit != -1 {
			t.Errorf("%s: berth %q was not killed: exit status %d, %s", place, args, exit, mistakes)
		}
		t.Setenv("BERTH_FAILPOINT", "")
	}
	killed(failpoint.PodCheckpointUnnamed, "pod", "checkpoint", p.ID, "--as", "web")
	left := b.names(t)
	if len(left) != 1 || b.named(t, "web") != "" {
		t.Fatalf("left %q, named %q; want one checkpoint without a name", left, b.named(t, "web"))
	}
	b.must(t, "checkpoint", "inspect", "--verify", filepath.Join(b.directory(), left[0]))
	b.must(t, "pod", "checkpoint", p.ID, "--as", "web")
	web := b.named(t, "web")
	killed(failpoint.PodCheckpointUnnamed, "pod", "checkpoint", p.ID, "--as", "web", "--replace")
	if got := b.named(t, "web"); got != web {
		t.Errorf("the killed replacement moved the name to %q", got)
	}
	b.prunes(t, "--older-than=1ms", web)
	link := filepath.Join(b.directory(), "names", "web")
	for _, place := range []string{failpoint.PodCheckpointRenamed, failpoint.PodCheckpointEmptied} {
		killed(place, "checkpoint", "rm", "web")
		_ = value(os.Readlink(link))(t)
		if exit, _, mistakes := b.berth(t, "checkpoint", "inspect", "web"); exit == 0 || !strings.Contains(mistakes, "no checkpoint has the name") {
			t.Errorf("%s: inspect of the name: exit status %d, %s", place, exit, mistakes)
		}
		if place == failpoint.PodCheckpointRenamed {
			b.must(t, "pod", "checkpoint", p.ID, "--as", "web")
		}
	}
	b.prunes(t, "--older-than=1ms")
	if _, err := os.Lstat(link); !os.IsNotExist(err) {
		t.Errorf("prune left the name of the removed checkpoint: %v", err)
	}
	b.must(t, "pod", "checkpoint", p.ID, "--as", "web")
	b.restored(t, p, b.named(t, "web")).reaches(t, 3)
}
