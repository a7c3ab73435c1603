package conformance

import (
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var exitChecks = []check{
	{name: "exit codes and reasons", run: exitCodes},
	{name: "a short program's code is not lost", run: shortPrograms},
	{name: "exit by signal is 128+n", run: exitBySignal},
	{name: "a missing program fails the start", needs: []Ability{StartErrors}, run: missingProgram},
	{name: "a program that is a directory or not executable", needs: []Ability{StartErrors}, run: unusablePrograms},
	{name: "a missing program whose start cannot tell ends", berth: true, run: missingProgramEnds},
	{name: "an exit is seen without any call that causes it", run: exitSeenByItself},
	{name: "OOM kill is OOMKilled", needs: []Ability{OOMReport}, run: oomKilled},
	{name: "OOM kill of a child is seen", needs: []Ability{OOMReport}, run: oomKilledChild},
	{name: "a child that outlives the program does not keep the container", run: orphanDoesNotKeep},
}

func exitCodes(t *testing.T, n *node) {
	p := n.pod(t)
	for code, reason := range map[int32]string{0: "Completed", 1: "Error", 3: "Error", 42: "Error", 126: "Error", 255: "Error"} {
		st := p.start(t, []string{"/bin/sh", "-c", "exit " + itoa(code)}).waitExit(t)
		if st.GetExitCode() != code || st.GetReason() != reason {
			t.Errorf("exit %d: code %d, reason %q (%s)", code, st.GetExitCode(), st.GetReason(), st.GetMessage())
		}
		if st.GetStartedAt() == 0 || st.GetFinishedAt() < st.GetStartedAt() {
			t.Errorf("exit %d: started at %d, finished at %d", code, st.GetStartedAt(), st.GetFinishedAt())
		}
	}
}

func shortPrograms(t *testing.T, n *node) {
	p := n.pod(t)
	for range 8 {
		if st := p.start(t, []string{"/bin/false"}).waitExit(t); st.GetExitCode() != 1 {
			t.Errorf("/bin/false exited with %d (%s)", st.GetExitCode(), st.GetReason())
		}
	}
}

func exitBySignal(t *testing.T, n *node) {
	p := n.pod(t)
	for _, s := range []struct {
		name string
		code int32
	}{{"KILL", 137}, {"TERM", 143}, {"USR1", 138}} {
		// The signal goes to a child of the shell, because process 1 ignores signals that it does
		// not handle.
		c := p.start(t, sh("sh -c 'kill -"+s.name+" $$'; exit $?"))
		testbed.Same(t, c.waitExit(t).GetExitCode(), s.code, "SIG%s: exit code", s.name)
	}
	c := p.start(t, sh("trap '' TERM; while :; do sleep 1; done"))
	c.stop(t, 0)
	testbed.Same(t, c.status(t).GetExitCode(), 137, "killed by StopContainer: exit code")
}

func missingProgram(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.create(t, []string{"/no/such/program"})
	err := c.tryStart(t)
	mustFail(t, err, "StartContainer of a missing program")
	if !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("the error does not name the program: %v", err)
	}
	st := c.status(t)
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 128 || st.GetReason() != "StartError" {
		t.Errorf("state %v, exit code %d, reason %q, want EXITED, 128, StartError", st.GetState(), st.GetExitCode(), st.GetReason())
	}
	if st.GetMessage() == "" || st.GetFinishedAt() == 0 {
		t.Errorf("message %q, finished at %d", st.GetMessage(), st.GetFinishedAt())
	}
	c.stop(t, time.Second)
	c.remove(t)
	p.output(t, sh("true")) // the pod still works
}

func unusablePrograms(t *testing.T, n *node) {
	p := n.pod(t)
	for _, program := range []string{"/etc", "/etc/passwd"} {
		c := p.create(t, []string{program})
		mustFail(t, c.tryStart(t), "StartContainer of "+program)
		if st := c.status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() == 0 {
			t.Errorf("%s: %v with code %d", program, st.GetState(), st.GetExitCode())
		}
	}
}

// missingProgramEnds is for runtimes, such as gVisor, that answer the start before they look for
// the program.
func missingProgramEnds(t *testing.T, n *node) {
	c := n.pod(t).create(t, []string{"/no/such/program"})
	_ = c.tryStart(t)
	if st := c.waitExit(t); st.GetExitCode() == 0 {
		t.Error("a missing program ended with code 0")
	}
}

func exitSeenByItself(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, sh("sleep 1; exit 9"))
	n.eventually(t, "the list says EXITED", func() bool {
		l := n.listContainers(t, &runtimeapi.ContainerFilter{Id: c.ID})
		return len(l) == 1 && l[0].GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	testbed.Same(t, c.status(t).GetExitCode(), 9, "exit code")
}

// eat uses ever more memory.
const eat = "tail /dev/zero"

func oomKilled(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh("exec "+eat), resources(&runtimeapi.LinuxContainerResources{
		MemoryLimitInBytes: 20 << 20, MemorySwapLimitInBytes: 20 << 20,
	}))
	st := c.waitExit(t)
	if st.GetReason() != "OOMKilled" || st.GetExitCode() != 137 {
		t.Errorf("reason %q, exit code %d, want OOMKilled and 137", st.GetReason(), st.GetExitCode())
	}
}

// oomKilledChild has the kernel kill a child of the container's program: the reason must not depend
// on which process the kernel kills.
func oomKilledChild(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh(eat+"; exit 5"), resources(&runtimeapi.LinuxContainerResources{
		MemoryLimitInBytes: 20 << 20, MemorySwapLimitInBytes: 20 << 20,
	}))
	st := c.waitExit(t)
	if st.GetReason() != "OOMKilled" || st.GetExitCode() != 5 {
		t.Errorf("reason %q, exit code %d, want OOMKilled and 5", st.GetReason(), st.GetExitCode())
	}
}

func orphanDoesNotKeep(t *testing.T, n *node) {
	for _, mode := range []runtimeapi.NamespaceMode{runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_POD} {
		p := n.pod(t, pidMode(mode))
		c := p.start(t, sh("sleep 600 & exit 6"))
		testbed.Same(t, c.waitExit(t).GetExitCode(), 6, "pid %v: exit code", mode)
	}
}
