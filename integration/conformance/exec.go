package conformance

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/patience"
	"github.com/berth-cri/berth/integration/testbed"
)

var execChecks = []check{
	{name: "output and exit codes", run: execOutput},
	{name: "a missing program", run: execMissingProgram},
	{name: "an empty command", run: execEmpty},
	{name: "a container that does not run", run: execNotRunning},
	{name: "timeout is DeadlineExceeded and leaves no process", run: execTimeout},
	{name: "a timeout takes the command's children along", needs: []Ability{ExecDescendants}, berth: true, run: execTimeoutDescendants},
	{name: "a program that beats its timeout", run: execWithinTimeout},
	// containerd's server cannot send the answer: with 16 MiB of output it is above gRPC's limit.
	{name: "20 MiB of output become 16", berth: true, run: execBigOutput},
	{name: "20 MiB of output on stderr become 16", berth: true, run: execBigStderr},
	{name: "a background child that holds stdout", berth: true, run: execBackgroundChild},
	{name: "the caller gives up", berth: true, run: execCancelled},
	{name: "identity, environment and directory are the container's", run: execInherits},
	{name: "a terminal's container", run: execTty},
	{name: "many at once", run: execParallel},
	{name: "the container ends meanwhile", run: execContainerEnds},
	{name: "exec does not disturb the log", run: execNotLogged},
}

func execOutput(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	r, err := c.execSync(t, execBound, "sh", "-c", "echo out; echo err >&2; exit 3")
	must(t, err, "ExecSync")
	if string(r.GetStdout()) != "out\n" || string(r.GetStderr()) != "err\n" || r.GetExitCode() != 3 {
		t.Errorf("stdout %q, stderr %q, exit code %d", r.GetStdout(), r.GetStderr(), r.GetExitCode())
	}
	r, err = c.execSync(t, 0, "sh", "-c", "kill -KILL $$")
	must(t, err, "ExecSync without timeout")
	testbed.Same(t, r.GetExitCode(), 137, "a killed program has exit code")
	r, err = c.execSync(t, execBound, "cat")
	must(t, err, "ExecSync of cat")
	if len(r.GetStdout()) != 0 || r.GetExitCode() != 0 {
		t.Errorf("cat without stdin: %q, exit code %d", r.GetStdout(), r.GetExitCode())
	}
	r, err = c.execSync(t, execBound, "printf", `a\0b\377`)
	must(t, err, "ExecSync of printf")
	testbed.Same(t, string(r.GetStdout()), "a\x00b\xff", "bytes changed")
}

// execMissingProgram accepts both conventions: an error, or an exit code other than 0.
func execMissingProgram(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	r, err := c.execSync(t, execBound, "/no/such/program")
	if err == nil && r.GetExitCode() == 0 {
		t.Error("a missing program succeeded")
	}
	testbed.Same(t, c.status(t).GetState(), runtimeapi.ContainerState_CONTAINER_RUNNING, "after a failed exec: the container is")
}

func execEmpty(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	_, err := c.execSync(t, execBound)
	n.rejects(t, err, "ExecSync without a command", codes.InvalidArgument)
}

func execNotRunning(t *testing.T, n *node) {
	p := n.pod(t)
	created := p.create(t, forever())
	_, err := created.execSync(t, 5*time.Second, "true")
	n.rejects(t, err, "ExecSync in a CREATED container", codes.FailedPrecondition, codes.NotFound)
	ended := p.start(t, sh("exit 0"))
	ended.waitExit(t)
	_, err = ended.execSync(t, 5*time.Second, "true")
	n.rejects(t, err, "ExecSync in an EXITED container", codes.FailedPrecondition, codes.NotFound)
}

func execTimeout(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	began := time.Now()
	_, err := c.execSync(t, time.Second, "sh", "-c", "trap '' TERM; exec sleep 4321")
	mustFail(t, err, "ExecSync over its timeout", codes.DeadlineExceeded)
	if d := time.Since(began); d > patience.Of(execBound) {
		t.Errorf("a timeout of 1s took %v", d)
	}
	n.eventually(t, "nothing of the exec is left", func() bool {
		return !strings.Contains(c.exec(t, "ps", "-o", "args"), "sleep 4321")
	})
	testbed.Same(t, c.line(t, "echo", "next"), "next", "the next exec printed")
}

func execTimeoutDescendants(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	_, err := c.execSync(t, time.Second, "sh", "-c", "trap '' TERM; sleep 4321 & sleep 4321; true")
	mustFail(t, err, "ExecSync over its timeout", codes.DeadlineExceeded)
	n.eventually(t, "nothing of the exec is left", func() bool {
		return !strings.Contains(c.exec(t, "ps", "-o", "args"), "sleep 4321")
	})
}

func execWithinTimeout(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	r, err := c.execSync(t, 15*time.Second, "sh", "-c", "sleep 1; echo done")
	must(t, err, "ExecSync")
	testbed.Same(t, string(r.GetStdout()), "done\n", "stdout is")
}

// execLimit is the kubelet's limit for the whole answer: both streams and gRPC's own overhead.
const execLimit = 16 << 20

// execRoom is how much less than execLimit a stream may return, so that the answer stays below it.
const execRoom = 128

// execBigOutput accepts a larger answer than the kubelet does, so that it can count the bytes.
func execBigOutput(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	r, err := c.bigExec(t, "head -c 20971520 /dev/zero; exit 4")
	must(t, err, "ExecSync with 20 MiB on stdout")
	if got := len(r.GetStdout()); got > execLimit || got < execLimit-execRoom {
		t.Errorf("%d bytes on stdout, want %d or up to %d less", got, execLimit, execRoom)
	}
	testbed.Same(t, r.GetExitCode(), 4, "exit code")
}

func execBigStderr(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	r, err := c.bigExec(t, "head -c 20971520 /dev/zero >&2; echo out; exit 5")
	must(t, err, "ExecSync with 20 MiB on stderr")
	if got := len(r.GetStderr()); got > execLimit || got < execLimit-execRoom {
		t.Errorf("%d bytes on stderr, want %d or up to %d less", got, execLimit, execRoom)
	}
	if string(r.GetStdout()) != "out\n" || r.GetExitCode() != 5 {
		t.Errorf("stdout %q, exit code %d, want 5", r.GetStdout(), r.GetExitCode())
	}
}

func (c *container) bigExec(t *testing.T, script string) (*runtimeapi.ExecSyncResponse, error) {
	t.Helper()
	return c.Runtime.ExecSync(call(t), &runtimeapi.ExecSyncRequest{
		ContainerId: c.ID, Cmd: sh(script), Timeout: 50,
	}, maxReceive(40<<20))
}

func execBackgroundChild(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	began := time.Now()
	r, err := c.execSync(t, patience.Of(40*time.Second), "sh", "-c", "sleep 4322 & echo parent; exit 6")
	if d := time.Since(began); d > patience.Of(30*time.Second) {
		t.Fatalf("the answer took %v: a child that holds stdout must not block it for ever", d)
	}
	must(t, err, "ExecSync")
	if string(r.GetStdout()) != "parent\n" || r.GetExitCode() != 6 {
		t.Errorf("stdout %q, exit code %d", r.GetStdout(), r.GetExitCode())
	}
}

func execCancelled(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := n.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"sleep", "4323"}})
	mustFail(t, err, "an exec that the caller gave up")
	n.eventually(t, "the program of a cancelled exec is gone", func() bool {
		return !strings.Contains(c.exec(t, "ps", "-o", "args"), "sleep 4323")
	})
}

func execInherits(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, forever(), env("SUITE", "conformance"), func(c *runtimeapi.ContainerConfig) {
		c.WorkingDir = "/tmp"
		s := c.Linux.SecurityContext
		s.RunAsUser, s.RunAsGroup = &runtimeapi.Int64Value{Value: 1000}, &runtimeapi.Int64Value{Value: 1000}
		s.SupplementalGroups = []int64{4444}
		s.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}}
	})
	testbed.Same(t, c.line(t, "sh", "-c", "echo $SUITE; pwd; id -u; id -g"), "conformance\n/tmp\n1000\n1000", "environment, directory, uid, gid")
	if got := strings.Fields(c.line(t, "id", "-G")); !contains(got, "4444") {
		t.Errorf("groups are %v, want 4444 among them", got)
	}
	if got := procStatus(t, c, "self", "CapBnd"); strings.Trim(got, "0") != "" {
		t.Errorf("capabilities of the exec are %s though all were dropped", got)
	}
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

// procStatus reads a field of /proc/<pid>/status.
func procStatus(t *testing.T, c *container, pid, field string) string {
	t.Helper()
	for _, l := range strings.Split(c.exec(t, "cat", "/proc/"+pid+"/status"), "\n") {
		if v, ok := strings.CutPrefix(l, field+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	t.Fatalf("/proc/%s/status has no %s", pid, field)
	return ""
}

func execTty(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), func(c *runtimeapi.ContainerConfig) { c.Tty = true })
	r, err := c.execSync(t, execBound, "sh", "-c", "echo out; echo err >&2")
	must(t, err, "ExecSync in a container with a terminal")
	if string(r.GetStdout()) != "out\n" || string(r.GetStderr()) != "err\n" {
		t.Errorf("stdout %q, stderr %q", r.GetStdout(), r.GetStderr())
	}
}

func execParallel(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	var wg sync.WaitGroup
	for i := range int32(12) {
		wg.Go(func() {
			r, err := c.execSync(t, execBound, "sh", "-c", "echo "+itoa(i)+"; exit "+itoa(i))
			if err != nil || string(r.GetStdout()) != itoa(i)+"\n" || r.GetExitCode() != i {
				t.Errorf("exec %d: %v, %v", i, r, err)
			}
		})
	}
	wg.Wait()
}

func execContainerEnds(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh("sleep 2; exit 8"))
	_, err := c.execSync(t, execBound, "sleep", "600")
	if status.Code(err) == codes.DeadlineExceeded {
		t.Errorf("the exec did not end with its container: %v", err)
	}
	testbed.Same(t, c.waitExit(t).GetExitCode(), 8, "exit code")
}

func execNotLogged(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh("trap 'exit 0' TERM; echo mine; while :; do sleep 3600 & wait $!; done"))
	c.waitLog(t, "mine\n")
	c.exec(t, "echo", "not-for-the-log")
	c.stop(t, longGrace)
	testbed.Same(t, c.logged(t).stdout, "mine\n", "logged")
}
