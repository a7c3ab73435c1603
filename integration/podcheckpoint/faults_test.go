package podcheckpoint

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

// sandboxes returns the ids of all sandboxes that the daemon lists.
func (b *bed) sandboxes(t *testing.T) (ids []string) {
	t.Helper()
	r := value(b.Client.ListPodSandbox(testbed.Within(t, patience), &runtimeapi.ListPodSandboxRequest{}))(t)
	for _, s := range r.GetItems() {
		ids = append(ids, s.GetId())
	}
	return ids
}

// TestKilledAtEveryStep kills the daemon at each step of a checkpoint and of a restore.
// Afterwards no partial checkpoint or pod exists, and the checkpointed pod runs on.
func TestKilledAtEveryStep(t *testing.T) {
	b := newBed(t, testbed.Options{Tags: []string{"berth_failpoints"}})
	atRest := b.Rest(t)
	p := b.run(t, "one", "two")
	p.reaches(t, 2)
	dir := p.checkpointed(t)
	for _, place := range []string{
		failpoint.PodCheckpointNoted, failpoint.PodCheckpointWritten,
		failpoint.PodRestoreChecked, failpoint.PodRestoredSandbox, failpoint.PodRestoredContainer,
	} {
		t.Run(place, func(t *testing.T) {
			b.Stop(t)
			b.SetEnvironment("BERTH_FAILPOINT=" + place)
			b.Start(t)
			fresh := t.TempDir()
			var err error
			if strings.HasPrefix(place, "pod-restore") {
				_, _, err = b.Client.TryRestore(t, b.request(p, dir))
			} else {
				err = p.TryCheckpoint(t, fresh, p.containers()...)
			}
			if status.Code(err) != codes.Unavailable {
				t.Errorf("the call returned %v, want Unavailable because the daemon was killed", err)
			}
			b.Wait(t, patience)
			b.SetEnvironment()
			b.Start(t)
			if got := b.sandboxes(t); len(got) != 1 || got[0] != p.ID {
				t.Errorf("sandboxes: %q, want only %s", got, p.ID)
			}
			nothingIn(t, fresh)
			p.reaches(t, p.members[0].count(t)+2)
			again := p.checkpointed(t)
			b.restored(t, p, again).Remove(t)
		})
	}
	p.Remove(t)
	b.NothingLeft(t, atRest)
}

// TestDiskIsFull: a checkpoint for which the disk is too small leaves no file, and the pod runs on.
func TestDiskIsFull(t *testing.T) {
	b := newBed(t, testbed.Options{})
	p := b.run(t, "one", "two")
	p.reaches(t, 2)
	for _, size := range []string{"4k", "64k", "512k"} {
		disk := t.TempDir()
		testbed.Must(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "mode=0700,size="+size))
		t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
		err := p.TryCheckpoint(t, disk, p.containers()...)
		testbed.Refused(t, err, codes.ResourceExhausted, "no space left")
		if left := files(t, disk); len(left) > 0 {
			t.Errorf("the failed checkpoint left files on the disk of %s: %q", size, left)
		}
		p.reaches(t, p.members[0].count(t)+2)
	}
	p.checkpointed(t)
}

// TestRuntimeIsReplaced: a checkpoint is restored with the binary that made it, which is kept as
// long as a pod runs on it. Afterwards the restore is refused until that binary is installed again.
func TestRuntimeIsReplaced(t *testing.T) {
	bin := t.TempDir()
	runsc := testbed.InstallRunsc(t, testbed.Runsc, bin)
	b := newBedOf(t, runsc, testbed.Options{})
	p := b.run(t, "one")
	p.reaches(t, 2)
	dir := p.checkpointed(t)
	testbed.InstallRunsc(t, testbed.RunscOther, bin)
	b.restored(t, p, dir).reaches(t, 4)
	// A new pod runs on the new binary.
	fresh := b.run(t, "one")
	fresh.reaches(t, 2)
	later := fresh.checkpointed(t)
	b.restored(t, fresh, later).reaches(t, 4)
	testbed.Must(t, b.Client.RemoveAllPods(t.Context()))
	b.Restart(t)
	testbed.Eventually(t, patience, func() error {
		_, _, err := b.Client.TryRestore(t, b.request(p, dir))
		if err == nil {
			t.Fatal("the pod was restored with another binary")
		}
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "install that version") || !strings.Contains(err.Error(), ".other") {
			return err
		}
		return nil
	})
	b.restored(t, fresh, later).reaches(t, 4)
	testbed.InstallRunsc(t, testbed.Runsc, bin)
	b.restored(t, p, dir).reaches(t, 4)
}

// TestStoppedWhileItIsWritten: the stop of a pod aborts its checkpoint, even one that would never
// finish, and no file of the checkpoint is left.
func TestStoppedWhileItIsWritten(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	p := b.run(t, "one", "two")
	p.reaches(t, 2)
	sandbox := b.sandboxProcess(t, p.ID)
	// The checkpoint begins, but cannot finish.
	testbed.Must(t, unix.Kill(sandbox, unix.SIGSTOP))
	dir, written := p.writing(t)
	testbed.Eventually(t, patience, func() error {
		_, err := os.Stat(filepath.Join(dir, "images"))
		return err
	})
	time.Sleep(time.Second) // until the runtime was called
	p.Stop(t)
	if err := <-written; status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "was stopped meanwhile") {
		t.Errorf("the checkpoint returned %v", err)
	}
	if left := files(t, dir); len(left) > 0 {
		t.Errorf("the aborted checkpoint left %q", left)
	}
	p.Remove(t)
	b.NothingLeft(t, atRest)
}

// sandboxProcess is the pid of the gVisor process in which the whole pod runs.
func (b *bed) sandboxProcess(t *testing.T, pod string) int {
	t.Helper()
	r := value(b.Client.PodSandboxStatus(testbed.Within(t, patience), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod, Verbose: true}))(t)
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(r.GetInfo()["info"]), &info); err != nil || info.PID == 0 {
		t.Fatalf("the verbose status has no pid: %v, %v", r.GetInfo(), err)
	}
	return info.PID
}

// supervisors returns the pids of this berth's supervisors.
func (b *bed) supervisors(t *testing.T) (pids []int) {
	t.Helper()
	lines := value(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	for _, line := range lines {
		text, _ := os.ReadFile(line) // the process may have exited
		args := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
		if len(args) == 4 && args[1] == "serve" && strings.HasPrefix(args[3], b.State+"/") {
			pid := value(strconv.Atoi(filepath.Base(filepath.Dir(line))))(t)
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestSupervisorsKilled kills the supervisors before the last container of a restored pod is
// started, and again afterwards. New supervisors take the pods over.
func TestSupervisorsKilled(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	p := b.run(t, "one", "two")
	p.reaches(t, 3)
	dir := p.checkpointed(t)
	kill := func() {
		t.Helper()
		pids := b.supervisors(t)
		if len(pids) == 0 {
			t.Fatal("no supervisor runs")
		}
		for _, pid := range pids {
			testbed.Must(t, unix.Kill(pid, unix.SIGKILL))
		}
	}
	again := b.created(t, p, b.request(p, dir))
	again.members[0].Start(t)
	kill()
	// A start of any container fails until the new supervisor runs.
	testbed.Eventually(t, patience, func() error {
		_, err := b.Client.ContainerStats(testbed.Within(t, patience), &runtimeapi.ContainerStatsRequest{ContainerId: p.members[0].ID})
		if err == nil && len(b.supervisors(t)) == 0 {
			err = errors.New("no new supervisor runs")
		}
		return err
	})
	again.members[1].Start(t)
	again.reaches(t, 5)
	kill()
	again.reaches(t, again.members[0].count(t)+3)
	if got := again.members[1].Exec(t, "echo", "there"); got != "there\n" {
		t.Errorf("exec prints %q", got)
	}
	later := again.checkpointed(t)
	b.restored(t, again, later).reaches(t, 8)
	again.members[0].Stop(t, 0)
	if got := again.members[0].WaitExit(t).GetExitCode(); got != 137 {
		t.Errorf("the stopped container exited with %d, want 137", got)
	}
	b.NothingLeft(t, atRest)
}
