package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// victim is a file of the host that berth must not change. Its last line has no newline:
// if berth took the file for a log, it would treat that line as incomplete.
type victim struct{ dir, path string }

const victimText = "root:x:0:0\nlast line"

func newVictim(t *testing.T) victim {
	t.Helper()
	v := victim{dir: t.TempDir()}
	v.path = filepath.Join(v.dir, "0.log")
	testbed.Must(t, os.WriteFile(v.path, []byte(victimText), 0o600))
	return v
}

func (v victim) untouched(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(v.dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("want only the host's file in its directory: %v, %v", entries, err)
	}
	if text, err := os.ReadFile(v.path); err != nil || string(text) != victimText {
		t.Errorf("the host's file was changed to %q: %v", text, err)
	}
}

// TestLogDirectoryOfAPod has a pod replace its log or log directory by a link, as a pod
// can that mounts the host's /var/log. berth must not write through the link.
func TestLogDirectoryOfAPod(t *testing.T) {
	b := newBed(t, testbed.Options{Config: shimConfig(t, testbed.Part(t, testbed.RuncShim)) +
		fmt.Sprintf("[runtimes.runc]\nruntime_path = %q\n", testbed.Part(t, testbed.Runc))})
	for _, handler := range []string{"runc", "shim"} {
		t.Run(handler, func(t *testing.T) {
			t.Run("start", func(t *testing.T) { b.logElsewhereAtStart(t, handler) })
			t.Run("reopen", func(t *testing.T) { b.logElsewhereAtReopen(t, handler) })
			t.Run("new supervisor", func(t *testing.T) { b.logElsewhereAtTakeOver(t, handler) })
			t.Run("the kubelet's directory is a link", func(t *testing.T) { b.logByLink(t, handler) })
		})
	}
}

func (b *bed) logElsewhereAtStart(t *testing.T, handler string) {
	for _, c := range []struct {
		name string
		make func(log string, v victim) error
		says string
	}{
		{"link", func(log string, v victim) error { return os.Symlink(v.path, log) }, "symbolic link"},
		{"dangling link", func(log string, v victim) error { return os.Symlink(filepath.Join(v.dir, "new"), log) }, "symbolic link"},
		{"hard link", func(log string, v victim) error { return os.Link(v.path, log) }, "hard links"},
		{"FIFO", func(log string, _ victim) error { return unix.Mkfifo(log, 0o600) }, "regular file"},
		{"directory is a link", func(log string, v victim) error {
			return errors.Join(os.Remove(filepath.Dir(log)), os.Symlink(v.dir, filepath.Dir(log)))
		}, "symbolic link"},
		{"directory is a dangling link", func(log string, v victim) error {
			return errors.Join(os.Remove(filepath.Dir(log)), os.Symlink(filepath.Join(v.dir, "new"), filepath.Dir(log)))
		}, "symbolic link"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newVictim(t)
			pod := b.Client.RunSandbox(t, testbed.PodSpec{Handler: handler})
			config := b.Client.ContainerConfig("main", b.Image, "echo", "written by the pod")
			log := filepath.Join(pod.Config.GetLogDirectory(), config.GetLogPath())
			testbed.Must(t, errors.Join(os.MkdirAll(filepath.Dir(log), 0o755), c.make(log, v)))
			b.Client.Pull(t, handler, b.Image)
			_, err := b.createAndStart(t, pod, config)
			testbed.Refused(t, err, codes.FailedPrecondition, c.says, "remove it")
			pod.Remove(t)
			v.untouched(t)
		})
	}
}

// talking runs a container that writes lines without end.
func (b *bed) talking(t *testing.T, handler string, sandbox func(*runtimeapi.PodSandboxConfig)) *testbed.Pod {
	t.Helper()
	return b.Client.RunPod(t, testbed.PodSpec{
		Handler: handler, Image: b.Image, Sandbox: sandbox,
		Command: []string{"sh", "-c", "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done"},
	})
}

func (b *bed) reopen(t *testing.T, c *testbed.Container) error {
	t.Helper()
	_, err := b.Client.ReopenContainerLog(testbed.Within(t, time.Minute), &runtimeapi.ReopenContainerLogRequest{ContainerId: c.ID})
	return err
}

// logGrows waits until the file gets longer.
func logGrows(t *testing.T, path string) {
	t.Helper()
	var first int64 = -1
	testbed.Eventually(t, time.Minute, func() error {
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		if first < 0 {
			first = info.Size()
		}
		if info.Size() == first {
			return fmt.Errorf("%s still has %d bytes", path, first)
		}
		return nil
	})
}

func (b *bed) logElsewhereAtReopen(t *testing.T, handler string) {
	v, pod := newVictim(t), b.talking(t, handler, nil)
	log := pod.Container.LogPath
	pod.Container.WaitLog(t, "line 1")
	testbed.Must(t, errors.Join(os.Rename(log, log+".1"), os.Symlink(v.path, log)))
	testbed.Refused(t, b.reopen(t, pod.Container), codes.FailedPrecondition, "symbolic link")
	logGrows(t, log+".1")
	testbed.Must(t, os.Remove(log))
	testbed.Must(t, b.reopen(t, pod.Container))
	logGrows(t, log)
	pod.Remove(t)
	v.untouched(t)
}

// logElsewhereAtTakeOver kills the supervisor, whose successor finds a link in place of the log.
func (b *bed) logElsewhereAtTakeOver(t *testing.T, handler string) {
	v, pod := newVictim(t), b.talking(t, handler, nil)
	log := pod.Container.LogPath
	pod.Container.WaitLog(t, "line 1")
	supervisor := b.supervisors(t)[b.info(t, pod.Container.ID).Supervisor]
	testbed.Must(t, errors.Join(os.Rename(log, log+".1"), os.Symlink(v.path, log), syscall.Kill(supervisor, syscall.SIGKILL)))
	// The new supervisor has taken over once it refuses the link.
	testbed.Eventually(t, time.Minute, func() error {
		if err := b.reopen(t, pod.Container); err == nil || !strings.Contains(err.Error(), "symbolic link") {
			return fmt.Errorf("reopen returned %v, want a refusal by the new supervisor", err)
		}
		return nil
	})
	testbed.Must(t, os.Remove(log))
	testbed.Must(t, b.reopen(t, pod.Container))
	logGrows(t, log)
	pod.Remove(t)
	v.untouched(t)
}

// logByLink has a link above the pod's log directory, as if an administrator had moved
// /var/log/pods to another disk. Such a link must work.
func (b *bed) logByLink(t *testing.T, handler string) {
	disk := t.TempDir()
	link := filepath.Join(t.TempDir(), "pods")
	testbed.Must(t, os.Symlink(disk, link))
	pod := b.talking(t, handler, func(c *runtimeapi.PodSandboxConfig) { c.LogDirectory = filepath.Join(link, "pod") })
	pod.Container.WaitLog(t, "line 1")
	log := filepath.Join(disk, "pod", "main", "0.log")
	testbed.Must(t, os.Rename(log, log+".1"))
	testbed.Must(t, b.reopen(t, pod.Container))
	logGrows(t, log)
	pod.Remove(t)
}
