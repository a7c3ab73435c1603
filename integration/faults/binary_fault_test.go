package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

// newRuncBed starts berth with a copy of runc, at path, that a test can replace.
func newRuncBed(t *testing.T, options testbed.Options) (b *bed, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "runc")
	put(t, path, read(t, testbed.Part(t, testbed.Runc)))
	options.Config = fmt.Sprintf("default_runtime = \"mine\"\n[runtimes.mine]\nruntime_path = %q\n", path)
	return newBed(t, options), path
}

func (b *bed) sleeping(t *testing.T) (*testbed.Pod, string) {
	t.Helper()
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	return pod, b.podInfo(t, pod).Binaries[0].Runs
}

// TestDamagedCopyOfARuntime damages a pod's kept binary while the daemon is up and
// while it is down. The daemon replaces the damaged binary by the installed one. If
// another version was installed before, the damaged binary is not run, and the pod can
// be removed.
func TestDamagedCopyOfARuntime(t *testing.T) {
	b, installed := newRuncBed(t, testbed.Options{})
	atRest := b.Rest(t)
	old, copied := b.sleeping(t)
	want := digest(t, copied)
	damage := func() {
		t.Helper()
		overwrite(t, copied, []byte("#!/bin/sh\nexit 0\n"))
	}

	damage()
	testbed.Same(t, old.Container.Exec(t, "echo", "alive"), "alive\n", "exec printed")
	b.Stop(t)
	damage()
	b.Start(t)
	testbed.Eventually(t, time.Minute, func() error {
		if is := digest(t, copied); is != want {
			return fmt.Errorf("%s has sha256 %s", copied, is)
		}
		return nil
	})

	supervisor := b.podInfo(t, old).Supervisor
	put(t, installed, append(read(t, installed), "upgraded"...))
	fresh, _ := b.sleeping(t)
	if other := b.podInfo(t, fresh).Supervisor; other == supervisor {
		t.Errorf("pods on two versions of a runtime share supervisor %s", other)
	}
	damage()
	_, err := b.tryExec(t, old.Container, "echo", "alive")
	testbed.Refused(t, err, codes.FailedPrecondition, installed, want, "recreate the pod")
	_, err = old.TryCreate(t, b.Client.ContainerConfig("second", b.Image, "true"))
	testbed.Refused(t, err, codes.FailedPrecondition, installed, want)
	old.Remove(t)
	testbed.Same(t, fresh.Container.Exec(t, "echo", "alive"), "alive\n", "exec in the new pod printed")
	b.NothingLeft(t, atRest)
}

// TestRootWithoutExec has engine.root on a noexec file system. Pods run on the
// installed binary, and the log has the reason.
func TestRootWithoutExec(t *testing.T) {
	b, installed := newRuncBed(t, testbed.Options{})
	b.smallRoot(t, 512<<20)
	b.Stop(t)
	testbed.Must(t, unix.Mount("", b.Root, "", unix.MS_REMOUNT|unix.MS_NOEXEC, ""))
	b.Start(t)
	atRest := b.Rest(t)
	pod := b.Client.RunSandbox(t, testbed.PodSpec{Sandbox: func(c *runtimeapi.PodSandboxConfig) { // with a sandbox process
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	}})
	spec := testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}, Container: func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	}}
	b.Client.Pull(t, "", b.Image)
	first := pod.RunContainer(t, "first", spec)
	is := b.podInfo(t, pod).Binaries
	if len(is) != 1 || is[0].Runs != installed || is[0].SHA256 != digest(t, installed) {
		t.Errorf("the pod runs on %+v", is)
	}
	testbed.Same(t, first.Exec(t, "echo", "alive"), "alive\n", "exec printed")
	put(t, installed, append(read(t, installed), "upgraded"...))
	second := pod.RunContainer(t, "second", spec)
	second.WaitState(t, runtimeapi.ContainerState_CONTAINER_RUNNING)
	b.Restart(t)
	testbed.Same(t, second.Exec(t, "echo", "alive"), "alive\n", "exec printed")
	for _, want := range []string{"mounted noexec", "no kept binary exists"} {
		testbed.Contains(t, b.Log(), want, "the log")
	}
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}

// TestKilledWhileABinaryIsKept kills the daemon while it makes the kept binary of a
// new runtime.
func TestKilledWhileABinaryIsKept(t *testing.T) {
	t.Parallel()
	b, installed := newRuncBed(t, testbed.Options{Tags: []string{"berth_failpoints"}})
	atRest := b.Rest(t)
	for i, place := range []string{failpoint.BinaryCopied, failpoint.BinaryKept} {
		t.Run(place, func(t *testing.T) {
			old, before := b.sleeping(t)
			b.Stop(t)
			put(t, installed, append(read(t, testbed.Part(t, testbed.Runc)), fmt.Sprint("version ", i)...))
			b.SetEnvironment("BERTH_FAILPOINT=" + place)
			if err := b.TryStart(t.Context()); err == nil {
				b.Wait(t, time.Minute)
			}
			b.SetEnvironment()
			b.Start(t)
			fresh, after := b.sleeping(t)
			if before == after {
				t.Errorf("a new pod runs on %s, the kept binary of the old pod", after)
			}
			if is, want := digest(t, after), digest(t, installed); is != want {
				t.Errorf("the kept binary has sha256 %s, the installed one %s", is, want)
			}
			testbed.Same(t, old.Container.Exec(t, "echo", "alive"), "alive\n", "exec in the old pod printed")
			old.Remove(t)
			fresh.Remove(t)
			testbed.Eventually(t, time.Minute, func() error {
				for _, name := range b.kept(t) {
					if name[0] == '.' || name == filepath.Base(filepath.Dir(before)) {
						return fmt.Errorf("old or partial binaries are kept: %q", b.kept(t))
					}
				}
				return nil
			})
		})
	}
	b.NothingLeft(t, atRest)
}

// TestCopyOfARemovedHandler removes a handler and then its last pod: the kept binary
// is removed without a restart.
func TestCopyOfARemovedHandler(t *testing.T) {
	t.Parallel()
	b, _ := newRuncBed(t, testbed.Options{})
	atRest := b.Rest(t)
	old, copied := b.sleeping(t)
	b.reload(t, fmt.Sprintf("default_runtime = \"other\"\n[runtimes.other]\nruntime_path = %q\n", testbed.Part(t, testbed.Crun)))
	testbed.Same(t, old.Container.Exec(t, "echo", "alive"), "alive\n", "exec printed")
	old.Remove(t)
	testbed.Eventually(t, time.Minute, func() error {
		if _, err := os.Stat(copied); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s is still there (%v)", copied, err)
		}
		return nil
	})
	b.NothingLeft(t, atRest)
}

// TestCopiesOfWhatMayBeNeeded: kept binaries of candidates, and of handlers that
// are not ready, stay when unreferenced ones are collected.
func TestCopiesOfWhatMayBeNeeded(t *testing.T) {
	runc := testbed.Part(t, testbed.Runc)
	next, idle, lame, gone := newScripted(t), newScripted(t), newScripted(t), newScripted(t)
	stay := fmt.Sprintf(`
default_runtime = "runc"
[runtimes.runc]
runtime_path = %[1]q
candidate = { runtime_path = %[2]q, percent = 1 }
[runtimes.idle]
runtime_path = %[1]q
candidate = { runtime_path = %[3]q, percent = 0 }
[runtimes.lame]
runtime_path = %[4]q
required_devices = ["/dev/no-such-device"]
`, runc, next.Path, idle.Path, lame.Path)
	b := newBed(t, testbed.Options{Config: stay + fmt.Sprintf("[runtimes.gone]\nruntime_path = %q\n", gone.Path)})
	atRest := b.Rest(t)
	look := func(what string, kept bool, runtimes ...string) {
		t.Helper()
		testbed.Eventually(t, time.Minute, func() error {
			all := b.kept(t)
			for _, path := range runtimes {
				if name := "runtime-" + digest(t, path)[:16]; contains(all, []string{name}) != kept {
					return fmt.Errorf("%s: kept binary %s of %s exists: %v, want %v", what, name, path, !kept, kept)
				}
			}
			return nil
		})
	}
	b.Restart(t) // the new daemon must find the kept binaries of the earlier one
	look("at first", true, runc, next.Path, idle.Path, lame.Path, gone.Path)
	b.Client.RunPod(t, testbed.PodSpec{Handler: "gone", Image: b.Image, Command: []string{"sleep", "1000"}})
	b.reload(t, stay)
	b.NothingLeft(t, atRest) // removes the last pod, and so the kept binary of its handler
	look("of the removed handler", false, gone.Path)
	look("of the other handlers", true, runc, next.Path, idle.Path, lame.Path)
}
