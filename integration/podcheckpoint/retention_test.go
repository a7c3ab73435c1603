package podcheckpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

// keeping is a bed whose daemon keeps checkpoints, and tells of them by metrics.
type keeping struct {
	*bed
	directory, metrics string
}

func newKeeping(t *testing.T, handler, bounds string, tags ...string) *keeping {
	t.Helper()
	k := &keeping{metrics: filepath.Join(t.TempDir(), "m")}
	k.bed = newBed(t, handler, testbed.Options{Tags: tags, Config: fmt.Sprintf("[metrics]\naddress = %q\n[pod_checkpoints]\n%s\n", "unix://"+k.metrics, bounds)})
	k.directory = filepath.Join(k.Root, "pod-checkpoints")
	return k
}

// keep has the daemon keep one more checkpoint.
func (k *keeping) keep(t *testing.T, p *pod) listed {
	t.Helper()
	var l listed
	out := k.must(t, "pod", "checkpoint", p.ID, "-o", "json")
	if err := json.Unmarshal([]byte(out), &l); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	return l
}

// listed is a checkpoint as the command line shows it.
type listed struct {
	Directory string
	Created   time.Time
	Size      int64
}

// kept are the names in the daemon's directory.
func (k *keeping) kept(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(k.directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// keeps waits until these checkpoints are in the daemon's directory, and nothing else.
func (k *keeping) keeps(t *testing.T, all ...listed) {
	t.Helper()
	var want []string
	for _, l := range all {
		want = append(want, filepath.Base(l.Directory))
	}
	slices.Sort(want)
	testbed.Eventually(t, patience, func() error {
		if got := k.kept(t); !slices.Equal(got, want) {
			return fmt.Errorf("kept are %q, want %q", got, want)
		}
		return nil
	})
}

// reads waits until the metrics say all of that.
func (k *keeping) reads(t *testing.T, lines ...string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", k.metrics)
	}}}
	testbed.Eventually(t, patience, func() error {
		r, err := client.Get("http://berth/metrics")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		for _, line := range lines {
			if !strings.Contains(string(text), "\n"+line+"\n") {
				got := regexp.MustCompile(`(?m)^berth_pod_checkpoint.*$`).FindAllString(string(text), -1)
				err = errors.Join(err, fmt.Errorf("it lacks %s: %q", line, got))
			}
		}
		return err
	})
}

// status is what the daemon says of checkpoints, and what is wrong.
func (k *keeping) status(t *testing.T) (exit int, s told) {
	t.Helper()
	exit, out, mistakes := k.berth(t, "status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("%s%s: %v", out, mistakes, err)
	}
	return exit, s
}

type told struct {
	PodCheckpoints struct {
		Directory      string
		Count, Damaged int
		Bytes          int64 `json:",string"`
		Oldest         time.Time
	}
	Degraded []string
}

// bounds puts others in force.
func (k *keeping) bounds(t *testing.T, text string) {
	t.Helper()
	k.DropIn(t, "60-bounds", "[pod_checkpoints]\n"+text+"\n")
	k.must(t, "reload", "--wait")
}

// TestOldCheckpointsAreRemoved: of each pod as many are left as the node keeps, until they are too
// old or too large, and what there is told truly.
func TestOldCheckpointsAreRemoved(t *testing.T) {
	k := newKeeping(t, gvisor, "keep = 2")
	p, other := k.run(t, "one"), k.run(t, "one")
	p.reaches(t, 2)
	other.reaches(t, 2)
	var all []listed
	for range 4 {
		all = append(all, k.keep(t, p))
	}
	others := k.keep(t, other)
	k.keeps(t, all[2], all[3], others)
	name := p.Config.GetMetadata()
	if got := filepath.Base(all[3].Directory); !strings.HasPrefix(got, name.GetNamespace()+"_"+name.GetName()+"_2") {
		t.Errorf("it is called %s", got)
	}
	for _, dir := range []string{k.directory, all[3].Directory} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s has %v, %v", dir, info, err)
		}
	}
	bytes := all[2].Size + all[3].Size + others.Size
	k.reads(t, "berth_pod_checkpoints 3", fmt.Sprintf("berth_pod_checkpoints_bytes %v", float64(bytes)), "berth_pod_checkpoints_damaged 0", "berth_pod_checkpoints_exceeded 0",
		`berth_pod_checkpoint_removals_total{limit="keep",outcome="ok"} 2`, `berth_pod_checkpoint_removals_total{limit="keep",outcome="failed"} 0`,
		`berth_pod_checkpoint_duration_seconds_count{operation="checkpoint",outcome="ok"} 5`)
	exit, s := k.status(t)
	if c := s.PodCheckpoints; exit != 0 || c.Directory != k.directory || c.Count != 3 || c.Bytes != bytes || c.Damaged != 0 || !c.Oldest.Equal(all[2].Created) {
		t.Errorf("exit status %d, %+v; want %d bytes, %s", exit, s, bytes, all[2].Created)
	}
	if out := k.must(t, "status"); !strings.Contains(out, "keeps 3 checkpoints of pods, ") || !strings.Contains(out, k.directory+", the oldest made ") {
		t.Errorf("status is %s", out)
	}

	k.bounds(t, fmt.Sprintf("max_total_size = %d", bytes-1))
	k.keeps(t, all[3], others)
	k.reads(t, `berth_pod_checkpoint_removals_total{limit="max_total_size",outcome="ok"} 1`)
	k.bounds(t, "max_total_size = 1")
	k.keeps(t, others) // the newest
	k.reads(t, "berth_pod_checkpoints 1", "berth_pod_checkpoints_exceeded 1")
	k.bounds(t, "max_total_size = 0")
	k.reads(t, "berth_pod_checkpoints_exceeded 0")
	k.restored(t, other, others.Directory).reaches(t, 3)
	k.reads(t, `berth_pod_checkpoint_duration_seconds_count{operation="restore",outcome="ok"} 1`)
	k.bounds(t, `max_age = "1ms"`)
	k.keeps(t)
	k.reads(t, "berth_pod_checkpoints 0", "berth_pod_checkpoints_bytes 0", `berth_pod_checkpoint_removals_total{limit="max_age",outcome="ok"} 1`)
	if out := k.must(t, "status"); strings.Contains(out, "keeps") {
		t.Errorf("without any, status is %s", out)
	}
	elsewhere := filepath.Join(k.Dir, "elsewhere")
	k.bounds(t, fmt.Sprintf("directory = %q", elsewhere))
	if l := k.keep(t, p); filepath.Dir(l.Directory) != elsewhere {
		t.Errorf("it is in %s, want %s", l.Directory, elsewhere)
	}
}

// TestOtherDirectories are told of, and never removed: half of a checkpoint, and a directory that
// others can write into is not even looked at.
func TestOtherDirectories(t *testing.T) {
	k := newKeeping(t, gvisor, "keep = 1")
	p := k.run(t, "one")
	p.reaches(t, 2)
	half, other := k.keep(t, p), k.keep(t, p)
	k.keeps(t, other)
	if err := os.Rename(other.Directory, half.Directory); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(half.Directory, "manifest.json")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		other = k.keep(t, p)
		k.keeps(t, half, other)
	}
	k.reads(t, "berth_pod_checkpoints 1", "berth_pod_checkpoints_damaged 1")
	exit, s := k.status(t)
	if exit != 3 || s.PodCheckpoints.Damaged != 1 || len(s.Degraded) != 1 || !strings.Contains(s.Degraded[0], half.Directory) {
		t.Errorf("exit status %d, %+v", exit, s)
	}
	k.Kill9(t)
	k.Start(t)
	k.keep(t, p)
	testbed.Eventually(t, patience, func() error {
		if _, err := os.Stat(other.Directory); err == nil {
			return fmt.Errorf("%s is there", other.Directory)
		}
		return nil
	})
	if left := files(t, half.Directory); len(left) != 4 {
		t.Errorf("of the half are left %q", left)
	}
	if err := os.RemoveAll(half.Directory); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(k.directory, 0o777); err != nil {
		t.Fatal(err)
	}
	k.bounds(t, `max_age = "1ns"`)
	if exit, s := k.status(t); exit != 3 || len(s.Degraded) != 1 || !strings.Contains(s.Degraded[0], "0700") {
		t.Errorf("exit status %d, %+v", exit, s)
	}
	if got := k.kept(t); len(got) != 1 {
		t.Errorf("kept are %q", got)
	}
	if err := os.Chmod(k.directory, 0o700); err != nil {
		t.Fatal(err)
	}
	if exit, s := k.status(t); exit != 0 || s.PodCheckpoints.Count != 1 {
		t.Errorf("exit status %d, %+v", exit, s)
	}
}

// TestCheckpointInUseStays while a pod waits to be restored from it, also over a restart of the
// daemon, and while it is sent to a registry.
func TestCheckpointInUseStays(t *testing.T) { everywhere(t, checkpointInUseStays) }

func checkpointInUseStays(t *testing.T, handler string) {
	k := newKeeping(t, handler, "keep = 1")
	p := k.run(t, "one", "two")
	p.reaches(t, 2)
	first := k.keep(t, p)
	made, containers, err := k.Client.TryRestore(t, k.request(p, first.Directory))
	if err != nil {
		t.Fatal(err)
	}
	containers[0].Start(t)
	if exit, _, mistakes := k.berth(t, "checkpoint", "rm", first.Directory); exit == 0 || !strings.Contains(mistakes, "in use") {
		t.Errorf("while a pod waits: exit status %d, %s", exit, mistakes)
	}
	k.keep(t, p)
	k.reads(t, "berth_pod_checkpoints 2", "berth_pod_checkpoints_exceeded 1")
	third := k.keep(t, p)
	k.keeps(t, first, third) // the one between them is needed by nobody
	k.Kill9(t)
	k.Start(t)
	fourth := k.keep(t, p)
	k.keeps(t, first, fourth)
	if exit, s := k.status(t); exit != 0 {
		t.Errorf("exit status %d, %+v", exit, s)
	}
	containers[1].Start(t)
	again := &pod{Pod: made}
	for i, c := range containers {
		again.members = append(again.members, &member{c, p.members[i].config})
	}
	again.reaches(t, 3)

	k.Restart(t)
	k.keeps(t, fourth) // the first is needed no more
	end := k.pushesForEver(t, fourth.Directory)
	last := k.keep(t, p)
	k.reads(t, "berth_pod_checkpoints 2", "berth_pod_checkpoints_exceeded 1")
	if exit, _, mistakes := k.berth(t, "checkpoint", "rm", fourth.Directory); exit == 0 || !strings.Contains(mistakes, "in use") {
		t.Errorf("while it is sent: exit status %d, %s", exit, mistakes)
	}
	k.Restart(t)
	k.keeps(t, fourth, last)
	end()
	k.Restart(t)
	k.keeps(t, last)
	k.restored(t, p, last.Directory).reaches(t, 3)
}

// pushesForEver sends a checkpoint to a registry that does not answer, until end is called.
func (k *keeping) pushesForEver(t *testing.T, dir string) (end func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	push := exec.CommandContext(t.Context(), filepath.Join(k.Bin, "berth"), "checkpoint", "push", dir, l.Addr().String()+"/x:1", "--plain-http")
	if err := push.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := push.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = push.Wait() // it was killed
		if err := errors.Join(conn.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestKilledWhileItRemoves kills the daemon in the middle of a removal, and of a checkpoint that it
// keeps. The next one finishes the former, and leaves nothing of the latter.
func TestKilledWhileItRemoves(t *testing.T) {
	k := newKeeping(t, gvisor, "keep = 1", "berth_failpoints")
	p := k.run(t, "one")
	p.reaches(t, 2)
	last := k.keep(t, p)
	for _, place := range append(slices.Clone(failpoint.AllOfRemovals), failpoint.PodCheckpointNoted, failpoint.PodCheckpointWritten) {
		t.Run(place, func(t *testing.T) {
			k.Stop(t)
			k.environment("BERTH_FAILPOINT=" + place)
			k.Start(t)
			_, _, _ = k.berth(t, "pod", "checkpoint", p.ID) // it may be answered just before the end
			k.Wait(t, patience)
			// The command line removes the directory that it made, if nothing is in it.
			if got := k.kept(t); len(got) != 2 && place != failpoint.PodCheckpointNoted {
				t.Errorf("it was not killed in the middle of something: %q", got)
			}
			k.environment()
			k.Start(t)
			testbed.Eventually(t, patience, func() error {
				if got := k.kept(t); len(got) != 1 || strings.HasPrefix(got[0], ".") {
					return fmt.Errorf("kept are %q", got)
				}
				return nil
			})
			last.Directory = filepath.Join(k.directory, k.kept(t)[0])
			k.must(t, "checkpoint", "inspect", "--verify", last.Directory)
			if exit, s := k.status(t); exit != 0 || s.PodCheckpoints.Count != 1 || s.PodCheckpoints.Damaged != 0 {
				t.Errorf("exit status %d, %+v", exit, s)
			}
			p.reaches(t, p.members[0].count(t)+2)
		})
	}
	k.restored(t, p, last.Directory).reaches(t, 3)
}
