package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var logChecks = []check{
	{name: "lines of both streams", run: logStreams},
	{name: "time stamps", run: logTimes},
	{name: "file mode", run: logMode},
	{name: "no log path is no log", run: noLog},
	{name: "a line over the limit is split", run: longLine},
	{name: "an end without newline", run: unterminated},
	{name: "bytes that are no text", run: binaryOutput},
	{name: "big output is whole", run: bigOutput},
	{name: "streams do not mix within a line", run: streamsDoNotMix},
	{name: "an existing log is appended to", run: logAppends},
	{name: "reopen after rename", run: reopenLog},
	{name: "reopen under load loses nothing", run: reopenUnderLoad},
	{name: "reopen of an ended container makes no file", run: reopenExited},
	{name: "reopen of a log that was removed", run: reopenRemoved},
	{name: "a terminal's output", run: ttyLog},
	{name: "a log that cannot be written does not stop the program", run: fullLogDisk},
}

func readFile(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

func logStreams(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh("echo one; echo two >&2; echo; printf 'three words here\\n'; echo '  spaces  '"))
	c.waitExit(t)
	l := c.logged(t)
	testbed.Same(t, l.stdout, "one\n\nthree words here\n  spaces  \n", "stdout is")
	testbed.Same(t, l.stderr, "two\n", "stderr is")
}

func logTimes(t *testing.T, n *node) {
	dir := t.TempDir()
	began := time.Now().Add(-time.Second)
	c := n.pod(t).start(t, sh("echo a; while [ ! -e /in/go ]; do sleep 0.1; done; echo b"),
		mount(&runtimeapi.Mount{ContainerPath: "/in", HostPath: dir}))
	c.waitLog(t, "a\n")
	between := time.Now()
	touch(t, dir+"/go")
	c.waitExit(t)
	e := c.logged(t).entries
	if len(e) != 2 {
		t.Fatalf("%d entries", len(e))
	}
	if e[0].Time.Before(began) || e[0].Time.After(between) || e[1].Time.Before(between) || e[1].Time.After(time.Now().Add(time.Second)) {
		t.Errorf("times %v and %v are not those of the lines: the first was there at %v", e[0].Time, e[1].Time, between)
	}
}

func logMode(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh("echo x"))
	c.waitExit(t)
	fi, err := os.Stat(c.logFile())
	must(t, err, "log file")
	if fi.Mode().Perm()&0o007 != 0 {
		t.Errorf("log file mode is %v: others must not be able to read it", fi.Mode())
	}
}

func noLog(t *testing.T, n *node) {
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.LogDirectory = "" })
	c := p.start(t, sh("echo unseen; exit 3"), func(c *runtimeapi.ContainerConfig) { c.LogPath = "" })
	testbed.Same(t, c.waitExit(t).GetExitCode(), 3, "exit code")
	dir := t.TempDir()
	p = n.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.LogDirectory = dir })
	c = p.start(t, sh("echo unseen"), func(c *runtimeapi.ContainerConfig) { c.LogPath = "" })
	c.waitExit(t)
	if m, _ := filepath.Glob(dir + "/*"); len(m) != 0 {
		t.Errorf("files in the log directory: %v", m)
	}
}

// longLine does not check where the line is split: the runtime chooses the limit.
func longLine(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh("head -c 100000 /dev/zero | tr '\\0' x; echo; echo after"))
	c.waitExit(t)
	l := c.logged(t)
	if want := strings.Repeat("x", 100000) + "\nafter\n"; l.stdout != want {
		t.Errorf("the log has %d bytes, want %d", len(l.stdout), len(want))
	}
	partial := 0
	for _, e := range l.entries {
		if e.Partial {
			partial++
		}
	}
	if partial == 0 {
		t.Error("no entry is tagged P: a reader that limits its lines would fail")
	}
}

func unterminated(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh("printf 'no newline'"))
	c.waitExit(t)
	testbed.Same(t, strings.TrimSuffix(c.logged(t).stdout, "\n"), "no newline", "logged")
}

func binaryOutput(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh(`printf 'a\0b\377\001c\n'`))
	c.waitExit(t)
	testbed.Same(t, c.logged(t).stdout, "a\x00b\xff\x01c\n", "logged")
}

func bigOutput(t *testing.T, n *node) {
	const lines = 50000
	c := n.pod(t).start(t, sh(fmt.Sprintf("seq 1 %d", lines)))
	c.waitExit(t)
	wantNumbers(t, c.logged(t), lines)
}

// wantNumbers fails unless the log has the numbers from 1 to last in order.
func wantNumbers(t *testing.T, l logged, last int) {
	t.Helper()
	if want := numbers(last); l.stdout != string(want) {
		t.Errorf("the log has %d entries and %d bytes, want the numbers up to %d (%d bytes)", len(l.entries), len(l.stdout), last, len(want))
	}
}

func streamsDoNotMix(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh("(for i in $(seq 2000); do echo out-$i-out; done) & (for i in $(seq 2000); do echo err-$i-err >&2; done); wait"))
	c.waitExit(t)
	for i, e := range c.logged(t).entries {
		want := map[string]string{"stdout": "out", "stderr": "err"}[e.Stream]
		if s := e.Text; !strings.HasPrefix(s, want+"-") || !strings.HasSuffix(s, "-"+want) {
			t.Fatalf("entry %d of %s is %q", i, e.Stream, s)
		}
	}
}

func logAppends(t *testing.T, n *node) {
	p := n.pod(t)
	cfg := p.containerConfig(sh("echo second"))
	path := filepath.Join(p.Config.LogDirectory, cfg.LogPath)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755), "log directory")
	first := "2024-01-02T03:04:05.678901234Z stdout F first\n"
	must(t, os.WriteFile(path, []byte(first), 0o640), "log file")
	c, err := p.tryCreate(t, cfg)
	must(t, err, "CreateContainer")
	must(t, c.tryStart(t), "StartContainer")
	c.waitExit(t)
	testbed.Same(t, c.logged(t).stdout, "first\nsecond\n", "logged")
}

func (c *container) tryReopen(t *testing.T) error {
	t.Helper()
	_, err := c.Runtime.ReopenContainerLog(call(t), &runtimeapi.ReopenContainerLogRequest{ContainerId: c.ID})
	return err
}

func reopenLog(t *testing.T, n *node) {
	dir := t.TempDir()
	c := n.pod(t).start(t, sh("echo before; while [ ! -e /in/go ]; do sleep 0.1; done; echo after"),
		mount(&runtimeapi.Mount{ContainerPath: "/in", HostPath: dir}))
	c.waitLog(t, "before\n")
	old := c.logFile() + ".old"
	must(t, os.Rename(c.logFile(), old), "rename")
	must(t, c.tryReopen(t), "ReopenContainerLog")
	if _, err := os.Stat(c.logFile()); err != nil {
		t.Errorf("the new file is not there when ReopenContainerLog returns: %v", err)
	}
	must(t, os.WriteFile(dir+"/go", nil, 0o644), "go")
	c.waitExit(t)
	testbed.Same(t, c.logged(t).stdout, "after\n", "the new file says")
	testbed.Same(t, readLog(t, old).stdout, "before\n", "the old file says")
}

func reopenUnderLoad(t *testing.T, n *node) {
	dir := t.TempDir()
	c := n.pod(t).start(t, sh("i=0; while [ $((i%100)) != 0 ] || [ ! -e /in/enough ]; do i=$((i+1)); echo $i; done"),
		mount(&runtimeapi.Mount{ContainerPath: "/in", HostPath: dir}))
	var files []string
	for i := range 12 {
		n.eventually(t, "there is something in the log", func() bool { return readFile(c.logFile()) != "" })
		rotated := fmt.Sprintf("%s.%02d", c.logFile(), i)
		must(t, os.Rename(c.logFile(), rotated), "rename")
		files = append(files, rotated)
		must(t, c.tryReopen(t), "ReopenContainerLog")
	}
	touch(t, dir+"/enough")
	c.waitExit(t)
	c.logged(t) // waits until the log is complete
	l := readLog(t, append(files, c.logFile())...)
	wantNumbers(t, l, l.lines())
}

func reopenExited(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh("echo x"))
	c.waitExit(t)
	c.logged(t)
	must(t, os.Remove(c.logFile()), "remove log")
	err := c.tryReopen(t)
	_, statErr := os.Stat(c.logFile())
	if err != nil && statErr == nil {
		t.Errorf("ReopenContainerLog failed (%v) and made a file", err)
	}
	if err == nil && statErr != nil {
		t.Errorf("ReopenContainerLog succeeded and made no file: %v", statErr)
	}
}

// reopenRemoved is what the kubelet does when a RUNNING container's log is gone.
func reopenRemoved(t *testing.T, n *node) {
	dir := t.TempDir()
	c := n.pod(t).start(t, sh("while [ ! -e /in/go ]; do sleep 0.1; done; echo after"),
		mount(&runtimeapi.Mount{ContainerPath: "/in", HostPath: dir}))
	must(t, os.Remove(c.logFile()), "remove log")
	must(t, c.tryReopen(t), "ReopenContainerLog")
	must(t, os.WriteFile(dir+"/go", nil, 0o644), "go")
	c.waitExit(t)
	testbed.Same(t, c.logged(t).stdout, "after\n", "logged")
}

func ttyLog(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh("echo to stdout; echo to stderr >&2; test -t 0 && test -t 1 && test -t 2"), func(c *runtimeapi.ContainerConfig) { c.Tty = true })
	if st := c.waitExit(t); st.GetExitCode() != 0 {
		t.Errorf("exit code %d: stdin, stdout or stderr is not a terminal", st.GetExitCode())
	}
	l := c.logged(t)
	testbed.Same(t, l.stderr, "", "a terminal has one stream, stderr is")
	if got := strings.ReplaceAll(l.stdout, "\r", ""); got != "to stdout\nto stderr\n" {
		t.Errorf("logged %q", l.stdout)
	}
}

// fullLogDisk logs to a small file system. When that is full, the container's output must still be
// read, so that its program does not block.
func fullLogDisk(t *testing.T, n *node) {
	p := n.pod(t)
	cfg := p.containerConfig(sh("head -c 3000000 /dev/zero | tr '\\0' '\\n'; exit 7"))
	tmpfs(t, filepath.Dir(filepath.Join(p.Config.LogDirectory, cfg.LogPath)))
	c, err := p.tryCreate(t, cfg)
	must(t, err, "CreateContainer")
	must(t, c.tryStart(t), "StartContainer")
	testbed.Same(t, c.waitExit(t).GetExitCode(), 7, "exit code")
}
