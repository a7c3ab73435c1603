package supervisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

func (c *container) reopenLog() error {
	_, err := c.extra.ReopenLog(c.ctx(), &supervisorv1.ReopenLogRequest{Id: c.id})
	return errgrpc.ToNative(err)
}

// Both streams of several containers, as fast as they can: nothing is lost,
// doubled or out of order, and what was written last is there after Delete.
func TestLogsUnderLoad(t *testing.T) {
	const lines = 100_000
	forEachRuntime(t, allRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		n := 3
		if r.ownKernel {
			n = 1
		}
		var all []*container
		for i := range n {
			all = append(all, b.run(fmt.Sprint("c", i), shell(fmt.Sprintf("seq 1 %d & seq 1 %d >&2; wait", lines, lines))))
		}
		for _, c := range all {
			if exit := c.wait(); exit.Status != 0 {
				t.Errorf("%+v", exit)
			}
			c.mustDelete()
			streams := map[string][]logLine{}
			var last time.Time
			for _, l := range c.lines() {
				if l.at.Before(last) {
					t.Fatalf("%v comes after %v", l.at, last)
				}
				last = l.at
				streams[l.stream] = append(streams[l.stream], l)
			}
			expectSequence(t, lines, streams["stdout"])
			expectSequence(t, lines, streams["stderr"])
		}
	})
}

func TestRotationUnderLoad(t *testing.T) {
	const lines = 300_000
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("c", shell(fmt.Sprintf("seq 1 %d; exit 7", lines)))
		var files []string
		for {
			old := fmt.Sprintf("%s.%d", c.logPath, len(files))
			if err := os.Rename(c.logPath, old); err != nil {
				t.Fatal(err)
			}
			files = append(files, old)
			err := c.reopenLog()
			if errdefs.IsFailedPrecondition(err) {
				break // its output has ended
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(c.logPath); err != nil {
				t.Fatalf("after ReopenLog: %v", err)
			}
		}
		if exit := c.wait(); exit.Status != 7 {
			t.Errorf("%+v", exit)
		}
		c.mustDelete()
		var all []logLine
		for _, file := range files {
			all = append(all, readLog(t, file)...)
		}
		t.Logf("%d rotations", len(files))
		expectSequence(t, lines, all)
		if err := c.reopenLog(); !errdefs.IsNotFound(err) {
			t.Errorf("after Delete: %v", err)
		}
	})
}

func TestLongLinesAndLinesWithoutEnd(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("c", shell("head -c 40000 /dev/zero | tr '\\0' x; echo; printf 'no end'"))
	c.wait()
	c.mustDelete()
	var got []string
	for _, l := range c.lines() {
		got = append(got, fmt.Sprintf("%t %d", l.partial, len(l.content)))
	}
	if want := []string{"true 16384", "true 16384", "false 7232", "true 6"}; !slices.Equal(got, want) {
		t.Errorf("lines %v, want %v", got, want)
	}
}

func TestWithoutALogOutputIsDropped(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	cfg := shell("seq 1 100000; exit 4")
	cfg.noLog = true
	c := b.run("c", cfg)
	if exit := c.wait(); exit.Status != 4 {
		t.Errorf("%+v", exit)
	}
	c.mustDelete()
}

// A full disk costs lines, never the container.
func TestFullLogDisk(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	disk := filepath.Join(b.base, "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	cfg := shell("seq 1 60000; : >/tmp/said; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo after; exit 6")
	logPath := filepath.Join(disk, "0.log")
	cfg.options = func(o *supervisorv1.TaskOptions) { o.LogPath = logPath }
	c := b.run("c", cfg)
	eventually(t, "the supervisor says so", func() bool { return strings.Contains(b.log(), "Container output is lost") })
	eventually(t, "all was read", func() bool {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/tmp/said", c.pid)); err != nil {
			return false
		}
		waiting, err := unix.IoctlGetInt(int(c.keepOut.Fd()), unix.TIOCINQ)
		return err == nil && waiting == 0
	})
	if err := os.Remove(logPath); err != nil {
		t.Fatal(err)
	}
	if err := c.reopenLog(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/tmp/go", c.pid), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if exit := c.wait(); exit.Status != 6 {
		t.Errorf("%+v", exit)
	}
	c.mustDelete()
	lines := readLog(t, logPath)
	if len(lines) == 0 || lines[len(lines)-1].content != "after" {
		t.Errorf("the new file has %d lines, the last of which should say after", len(lines))
	}
	if n := strings.Count(b.log(), "Container output is lost"); n != 1 {
		t.Errorf("it was said %d times", n)
	}
}

// What a container leaves outside of itself must not keep Delete waiting for
// the end of its output.
func TestDeleteDoesNotWaitForWhoHoldsTheOutput(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("c", shell("echo said"))
	holder, err := os.OpenFile(c.bundle+"/io/stdout", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	c.wait()
	begin := time.Now()
	c.mustDelete()
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("Delete took %v", took)
	}
	expectContents(t, c.lines(), "said")
}

func expectContents(t testing.TB, lines []logLine, want ...string) {
	t.Helper()
	var got []string
	for _, l := range lines {
		got = append(got, l.content)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the log says %q, want %q", got, want)
	}
}
