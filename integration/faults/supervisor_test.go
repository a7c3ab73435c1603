package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/kernelversion"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// pipeSize is the capacity of a pipe, and at least the size of one read: the most
// output of a container that may be lost when its supervisor is killed.
const pipeSize = 64 << 10

// counter writes numbered lines in bursts until /end exists, then the last number,
// and exits with 7. With the argument "hot" it writes without pauses, so that its
// supervisor always has output to forward.
const counter = `i=0
until [ -e /end ]; do
	n=0
	while [ $n -lt 40 ]; do i=$((i+1)); n=$((n+1)); echo line $i; done
	[ "$0" = hot ] || sleep 0.1
done
echo last $i
exit 7`

// TestSupervisorKilled kills the common supervisor of twenty pods that write logs, twice.
func TestSupervisorKilled(t *testing.T) {
	t.Parallel()
	const pods = 20
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	containers := make([]*testbed.Container, pods)
	lives := map[string]string{}
	for i := range containers {
		command := []string{"sh", "-c", counter}
		if i == pods-1 {
			command = append(command, "hot")
		}
		containers[i] = b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: command}).Container
		lives[containers[i].ID] = life(t, b.info(t, containers[i].ID).PID)
	}
	for range 2 {
		b.killSupervisor(t, b.info(t, containers[0].ID).Supervisor)
		for _, c := range containers {
			testbed.Same(t, life(t, b.info(t, c.ID).PID), lives[c.ID], "container %s was process %s and is", c.ID, lives[c.ID])
			testbed.Same(t, c.Status(t).GetState(), runtimeapi.ContainerState_CONTAINER_RUNNING, "container %s is", c.ID)
			grows(t, c)
		}
	}
	// The first container is killed by a signal, the second by StopContainer. The others exit.
	killAs(t, b.info(t, containers[0].ID).PID, syscall.SIGKILL)
	containers[1].Stop(t, 0)
	end(t, containers[2:])

	lost := 0
	for i, c := range containers {
		want := int32(7)
		if i < 2 {
			want = 137
		}
		if st := c.WaitExit(t); st.GetExitCode() != want && (keepsExits() || !untold(st)) {
			t.Errorf("container %d exited with %d %s, want %d", i, st.GetExitCode(), st.GetReason(), want)
		}
		if i < 2 {
			continue
		}
		missing := missingBytes(t, c)
		if missing > 2*pipeSize { // for each of the two kills
			t.Errorf("%d bytes are missing from the log of container %d", missing, i)
		}
		lost += missing
	}
	t.Logf("bytes missing from %d logs after two kills: %d", pods-2, lost)
	b.NothingLeft(t, atRest)
}

// TestSupervisorOfOnePod kills one of two supervisors with one pod each.
func TestSupervisorOfOnePod(t *testing.T) {
	b := newBed(t, testbed.Options{Config: "[engine]\nsupervision = \"pod\"\n"})
	atRest := b.Rest(t)
	run := func() *testbed.Container {
		return b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", counter}}).Container
	}
	victim, other := run(), run()
	victims, others := b.info(t, victim.ID), b.info(t, other.ID)
	if victims.Supervisor == others.Supervisor {
		t.Fatalf("both pods have supervisor %s", victims.Supervisor)
	}
	untouched := life(t, b.supervisors(t)[others.Supervisor])
	lives := life(t, victims.PID) + life(t, others.PID)

	b.killSupervisor(t, victims.Supervisor)
	testbed.Same(t, life(t, b.supervisors(t)[others.Supervisor]), untouched, "the supervisor of the other pod was process %s and is", untouched)
	testbed.Same(t, life(t, b.info(t, victim.ID).PID)+life(t, b.info(t, other.ID).PID), lives, "the containers were processes %s and are", lives)
	end(t, []*testbed.Container{victim, other})
	for _, c := range []*testbed.Container{victim, other} {
		endedWith(t, c, 7)
	}
	if missing := missingBytes(t, victim); missing > pipeSize {
		t.Errorf("%d bytes are missing from the log of the victim", missing)
	}
	testbed.Same(t, missingBytes(t, other), 0, "the bytes missing from the log of the other pod are")
	b.NothingLeft(t, atRest)
}

// TestBothKilled kills the daemon and then the supervisor, so that no process of berth
// is left.
func TestBothKilled(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", counter}})
	ended := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}).Container
	is := b.info(t, pod.Container.ID)
	alive, endedPID := life(t, is.PID), b.info(t, ended.ID).PID
	b.Kill9(t)
	killAs(t, b.supervisors(t)[is.Supervisor], syscall.SIGKILL)
	killAs(t, endedPID, syscall.SIGTERM)
	killAs(t, endedPID, syscall.SIGKILL)
	b.Start(t)

	testbed.Same(t, life(t, b.info(t, pod.Container.ID).PID), alive, "the container was process %s and is", alive)
	// The container exited without a supervisor. The exit code is known only if the
	// kernel still has it; otherwise berth must not invent one.
	st := ended.WaitExit(t)
	if !untold(st) && st.GetExitCode() != 137 {
		t.Errorf("the container that exited without a supervisor has %d %s %q, want 137 or an unknown code", st.GetExitCode(), st.GetReason(), st.GetMessage())
	}
	end(t, []*testbed.Container{pod.Container})
	endedWith(t, pod.Container, 7)
	b.NothingLeft(t, atRest)
}

// keepsExits returns whether this kernel keeps the exit code of a process after process 1, which
// inherits the processes of a killed supervisor, has reaped it. Linux does since 6.15.
func keepsExits() bool {
	newer, err := kernelversion.GreaterEqualThan(kernelversion.KernelVersion{Kernel: 6, Major: 15})
	return err == nil && newer
}

// untold returns whether a container is reported with an unknown exit code.
func untold(st *runtimeapi.ContainerStatus) bool {
	return st.GetExitCode() == 255 && st.GetReason() == "Unknown" && st.GetMessage() != ""
}

// endedWith waits until a container exits, and fails the test unless its exit code is code. If its
// supervisor was killed, the code may be unknown on a kernel that does not keep exit codes.
func endedWith(t *testing.T, c *testbed.Container, code int32) {
	t.Helper()
	if st := c.WaitExit(t); st.GetExitCode() != code && (keepsExits() || !untold(st)) {
		t.Errorf("the container exited with %d %s, want %d", st.GetExitCode(), st.GetReason(), code)
	}
}

// killSupervisor kills a supervisor and waits for its successor.
func (b *bed) killSupervisor(t *testing.T, key string) {
	t.Helper()
	old := b.supervisors(t)[key]
	if old == 0 {
		t.Fatalf("supervisor %s does not run", key)
	}
	killed := time.Now()
	killAs(t, old, syscall.SIGKILL)
	testbed.Eventually(t, time.Minute, func() error {
		if now := b.supervisors(t)[key]; now == 0 || now == old {
			return fmt.Errorf("supervisor %s has no successor", key)
		}
		return nil
	})
	t.Logf("supervisor %s had a successor after %v", key, time.Since(killed).Round(time.Millisecond))
}

// grows waits until the log of a container has more entries than now.
func grows(t *testing.T, c *testbed.Container) {
	t.Helper()
	had := len(c.Log(t))
	testbed.Eventually(t, time.Minute, func() error {
		if has := len(c.Log(t)); has <= had {
			return fmt.Errorf("the log of %s still has %d entries", c.ID, has)
		}
		return nil
	})
}

func killAs(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("cannot send %[2]s: %[1]d is not the pid of a process", pid, signal)
	}
	testbed.Mustf(t, syscall.Kill(pid, signal), "send %s to %d", signal, pid)
}

// end makes counters exit, a few at a time. The exit of a counter may kill the exec
// that requested it, so errors of the exec are ignored. The log shows the exit.
func end(t *testing.T, containers []*testbed.Container) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(4)
	for _, c := range containers {
		g.Go(func() error {
			c.TryExec(t, "touch", "/end")
			return nil
		})
	}
	testbed.Must(t, g.Wait())
}

// missingBytes returns how many bytes of a counter's output are not in its log.
func missingBytes(t *testing.T, c *testbed.Container) int {
	t.Helper()
	c.WaitLog(t, "last ")
	missing, cut, err := countMissing(c.Log(t))
	testbed.Must(t, err)
	for _, entry := range cut {
		t.Logf("container %s: cut entry %q", c.ID[:12], entry)
	}
	return missing
}

// countMissing counts the bytes that are missing from the log of a counter. An entry
// that is not a whole line in order, such as one cut by the death of a supervisor, is
// returned in cut and counts as missing.
func countMissing(lines []testbed.LogLine) (missing int, cut []string, err error) {
	end := lines[len(lines)-1].Text
	last, err := strconv.Atoi(strings.TrimPrefix(end, "last "))
	if err != nil {
		return 0, nil, fmt.Errorf("the last entry is %q", end)
	}
	next := 1
	skipTo := func(n int) {
		for ; next < n; next++ {
			missing += len("line \n") + len(strconv.Itoa(next))
		}
	}
	for _, line := range lines[:len(lines)-1] {
		n, err := strconv.Atoi(strings.TrimPrefix(line.Text, "line "))
		if err != nil || !strings.HasPrefix(line.Text, "line ") || n < next || n > last {
			cut = append(cut, line.Text)
			continue
		}
		skipTo(n)
		next++
	}
	skipTo(last + 1)
	return missing, cut, nil
}

func TestCountMissing(t *testing.T) {
	for name, c := range map[string]struct {
		log          string
		missing, cut int
	}{
		"whole":                     {log: "line 1,line 2,last 2"},
		"gap":                       {log: "line 1,line 4,last 4", missing: len("line 2\nline 3\n")},
		"missing at the end":        {log: "line 1,last 2", missing: len("line 2\n")},
		"line cut at its beginning": {log: "line 1,e 2,line 3,last 3", missing: len("line 2\n"), cut: 1},
		"repeated line":             {log: "line 1,line 1,line 2,last 2", cut: 1},
		"only the last entry":       {log: "last 10", missing: 9*len("line 1\n") + len("line 10\n")},
	} {
		var lines []testbed.LogLine
		for text := range strings.SplitSeq(c.log, ",") {
			lines = append(lines, testbed.LogLine{Text: text})
		}
		missing, cut, err := countMissing(lines)
		if missing != c.missing || len(cut) != c.cut || err != nil {
			t.Errorf("%s: missing %d, cut %q, error %v; want %d and %d cut", name, missing, cut, err, c.missing, c.cut)
		}
	}
}

// TestJournalLost damages a supervisor's record of a running container. The exit of the
// container may be unknown, but it must be possible to remove the pod.
func TestJournalLost(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	is := b.info(t, pod.Container.ID)
	b.Kill9(t)
	killAs(t, b.supervisors(t)[is.Supervisor], syscall.SIGKILL)
	journal := filepath.Join(b.State, "supervisors", is.Supervisor, "tasks", pod.Container.ID, "task.json")
	testbed.Must(t, os.WriteFile(journal, []byte("{"), 0o600))
	b.Start(t)
	if st := pod.Container.Status(t); st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED && st.GetReason() != "Unknown" {
		t.Errorf("the container without a record is %s %d %s, want the reason Unknown if EXITED", st.GetState(), st.GetExitCode(), st.GetReason())
	}
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}
