package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// change is a change of runtimes that an operator or a package manager makes while
// pods run.
type change struct {
	name string
	// handlers are the handlers that the change is tested with; nil is all.
	handlers []string
	// binaries changes the installed files.
	binaries func(t *testing.T, f *fleet)
	// config returns the new configuration; nil means no change.
	config func(t *testing.T, f *fleet) string
	// fresh checks a new pod of a handler after the change.
	fresh func(t *testing.T, f *fleet, handler string)
	// old makes further checks of a pod from before the change, besides those that
	// outlives makes for every change.
	old func(t *testing.T, f *fleet, pod *oldPod)
}

var changes = []change{
	{
		name:     "default switched",
		handlers: []string{byDefault, "a-crun"}, // the change does not concern other handlers
		config:   func(_ *testing.T, f *fleet) string { return f.config("a-crun", f.handlers()...) },
		fresh: func(t *testing.T, f *fleet, handler string) {
			t.Helper()
			f.freshRunsOn(t, handler, f.files[handler])
			if handler == byDefault {
				pod := f.Client.RunPod(t, testbed.PodSpec{Image: f.Image, Command: []string{"true"}})
				testbed.Same(t, f.podInfo(t, pod).Handler, "a-crun", "the handler of a new pod without one is")
				pod.Remove(t)
			}
		},
	},
	{
		name: "handler edited",
		binaries: func(t *testing.T, f *fleet) {
			t.Helper()
			for _, path := range f.allFiles() {
				testbed.Must(t, os.MkdirAll(filepath.Dir(moved(path)), 0o755))
				put(t, moved(path), append(read(t, f.good[path]), "moved"...))
				testbed.Must(t, os.Remove(path))
			}
		},
		config: func(_ *testing.T, f *fleet) string {
			text := preamble(byDefault)
			for _, handler := range f.handlers() {
				text += f.table(handler, f.moved(handler))
			}
			return text
		},
		fresh: func(t *testing.T, f *fleet, handler string) {
			t.Helper()
			f.freshRunsOn(t, handler, f.moved(handler))
		},
	},
	{
		name: "handler removed",
		config: func(t *testing.T, _ *fleet) string {
			t.Helper()
			other := filepath.Join(t.TempDir(), "other")
			put(t, other, read(t, testbed.Part(t, testbed.Crun)))
			return preamble("other") + fmt.Sprintf("[runtimes.other]\nruntime_path = %q\n", other)
		},
		fresh: func(t *testing.T, f *fleet, handler string) {
			t.Helper()
			f.freshRefused(t, handler, codes.Unavailable, handler, "no longer configured")
		},
	},
	{
		name: "binary deleted or broken",
		binaries: func(t *testing.T, f *fleet) {
			t.Helper()
			for i, handler := range f.handlers() {
				for _, path := range f.files[handler] {
					if i%2 == 0 {
						testbed.Must(t, os.Remove(path))
					} else {
						put(t, path, read(t, "/bin/false"))
					}
				}
			}
		},
		fresh: func(t *testing.T, f *fleet, handler string) {
			t.Helper()
			f.freshRefused(t, handler, codes.Unavailable, f.files[handler][0], "install")
		},
	},
	{
		name: "binary overwritten in place",
		binaries: func(t *testing.T, f *fleet) {
			t.Helper()
			for _, path := range f.allFiles() {
				overwrite(t, path, append(read(t, f.good[path]), "overwritten"...))
			}
		},
		fresh: func(t *testing.T, f *fleet, handler string) {
			t.Helper()
			f.freshRunsOn(t, handler, f.files[handler])
		},
	},
	{
		// Only runc is available in two releases. The next change appends bytes to the
		// other runtimes, which does not change their version.
		name:     "binary upgraded to another version",
		handlers: []string{byDefault, shimmed},
		binaries: func(t *testing.T, f *fleet) {
			t.Helper()
			for _, handler := range []string{byDefault, shimmed} {
				put(t, f.runc(handler), read(t, testbed.Part(t, testbed.Runc)))
			}
		},
		fresh: func(t *testing.T, f *fleet, handler string) {
			t.Helper()
			info := f.freshRunsOn(t, handler, f.files[handler])
			f.versionOf(t, info, testbed.Part(t, testbed.Runc))
		},
		old: func(t *testing.T, f *fleet, pod *oldPod) {
			t.Helper()
			f.versionOf(t, f.podInfo(t, pod.Pod), testbed.Part(t, testbed.RuncOld))
		},
	},
	{
		// crun replaces runc and runc replaces crun: neither can handle a container of
		// the other.
		name: "binary is another program",
		binaries: func(t *testing.T, f *fleet) {
			t.Helper()
			for _, path := range f.allFiles() {
				switch good := f.good[path]; filepath.Base(path) {
				case testbed.Runc:
					put(t, path, read(t, testbed.Part(t, testbed.Crun)))
				case testbed.Crun:
					put(t, path, read(t, testbed.Part(t, testbed.Runc)))
				default:
					put(t, path, append(read(t, good), "upgraded"...))
				}
			}
		},
		fresh: func(t *testing.T, f *fleet, handler string) {
			t.Helper()
			f.freshRunsOn(t, handler, f.files[handler])
		},
	},
}

func (f *fleet) moved(handler string) []string {
	var files []string
	for _, path := range f.files[handler] {
		files = append(files, moved(path))
	}
	return files
}

func moved(path string) string {
	dir, name := filepath.Split(path)
	if filepath.Base(dir) == companions {
		return filepath.Join(filepath.Dir(filepath.Clean(dir)), "moved", companions, name)
	}
	return filepath.Join(dir, "moved", name)
}

func (f *fleet) freshRefused(t *testing.T, handler string, code codes.Code, texts ...string) {
	t.Helper()
	_, err := f.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{
		Config: f.Client.SandboxConfig(""), RuntimeHandler: handler,
	})
	testbed.Refused(t, err, code, texts...)
}

func (f *fleet) freshRunsOn(t *testing.T, handler string, files []string) podInfo {
	t.Helper()
	pod := f.Client.RunPod(t, f.spec(handler))
	info := f.podInfo(t, pod)
	f.runsOn(t, info, files)
	pod.Remove(t)
	return info
}

// runc is the path at which the runc of a handler is installed.
func (f *fleet) runc(handler string) string {
	files := f.files[handler]
	return files[len(files)-1]
}

// versionOf fails the test unless the runc of a pod, in its status and as a kept
// binary, has the version that the given binary prints.
func (f *fleet) versionOf(t *testing.T, of podInfo, binary string) {
	t.Helper()
	want := version(t, binary)
	runc := of.Binaries[len(of.Binaries)-1]
	testbed.Contains(t, runc.Version, want, "handler %s: the version in the pod's status", of.Handler)
	// If the pod was removed, its kept binary may have been removed too.
	if _, err := os.Stat(runc.Runs); err == nil && version(t, runc.Runs) != want {
		t.Errorf("handler %s: the kept binary %s has version %s, want %s", of.Handler, runc.Runs, version(t, runc.Runs), want)
	}
}

// version is the version that a runc prints.
func version(t *testing.T, runc string) string {
	t.Helper()
	out, err := exec.CommandContext(testbed.Within(t, time.Minute), runc, "--version").Output()
	testbed.Mustf(t, err, "%s --version", runc)
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimPrefix(first, "runc version ")
}

// crash kills the daemon and all supervisors, and starts the daemon again.
func (f *fleet) crash(t *testing.T) {
	t.Helper()
	supervisors := f.supervisors(t)
	f.Kill9(t)
	for _, pid := range supervisors {
		killAs(t, pid, syscall.SIGKILL)
	}
	f.Start(t)
}

// TestPodsOutliveChangesOfTheirRuntime changes runtimes in different ways while pods
// run. Existing pods keep the binary with which they were created. New pods run on the
// changed runtime, or fail with the reason. A subtest is called
// change/restart/all/handler/step.
func TestPodsOutliveChangesOfTheirRuntime(t *testing.T) {
	t.Parallel()
	f := newFleet(t, t.TempDir())
	config := f.config(byDefault, f.handlers()...)
	f.bed = newBed(t, testbed.Options{Config: config})
	atRest := f.Rest(t)
	for _, c := range changes {
		if c.handlers == nil {
			c.handlers = f.handlers()
		}
		t.Run(c.name, func(t *testing.T) { f.outlives(t, c, config) })
	}
	f.NothingLeft(t, atRest)
	f.onlyTodays(t)
}

// outlives makes a change and checks new and old pods, and again after the daemon and all
// supervisors were killed.
func (f *fleet) outlives(t *testing.T, c change, config string) {
	old := map[string]*oldPod{}
	for _, handler := range c.handlers {
		old[handler] = f.run(t, handler)
	}
	if c.binaries != nil {
		c.binaries(t, f)
	}
	if c.config != nil {
		f.reload(t, c.config(t, f))
	}
	look := func(t *testing.T, handler string) {
		t.Helper()
		t.Run("new pod", func(t *testing.T) { c.fresh(t, f, handler) })
		t.Run("kept binary", func(t *testing.T) {
			f.isAsBefore(t, old[handler])
			if c.old != nil {
				c.old(t, f, old[handler])
			}
		})
		t.Run("exec", func(t *testing.T) { answers(t, old[handler].Container) })
	}
	t.Run("no restart", func(t *testing.T) {
		f.each(t, c.handlers, func(t *testing.T, handler string) {
			look(t, handler)
			for _, do := range whatKubeletsDo[:2] { // the steps that do not change the pod's containers
				t.Run(do.name, func(t *testing.T) { do.with(t, f, old[handler]) })
			}
			t.Run("new container", func(t *testing.T) { f.adds(t, old[handler]) })
		})
	})
	t.Run("all restarted", func(t *testing.T) {
		f.crash(t)
		f.each(t, c.handlers, func(t *testing.T, handler string) {
			look(t, handler)
			for _, do := range whatKubeletsDo {
				t.Run(do.name, func(t *testing.T) { do.with(t, f, old[handler]) })
			}
		})
	})
	f.install(t)
	if c.config != nil {
		f.reload(t, config)
	}
	testbed.Eventually(t, time.Minute, func() error {
		info := f.handlersInfo(t)
		for _, h := range info.Handlers {
			if h.State != "ready" {
				return fmt.Errorf("handler %s is %s: %s", h.Name, h.State, h.Reason)
			}
		}
		return nil
	})
}

// isAsBefore fails the test unless a pod still has its binaries, which must be unchanged.
func (f *fleet) isAsBefore(t *testing.T, pod *oldPod) {
	t.Helper()
	now := f.podInfo(t, pod.Pod)
	if fmt.Sprint(now) != fmt.Sprint(pod.info) {
		t.Errorf("the old pod ran on %+v, and now on %+v", pod.info, now)
	}
	for _, b := range now.Binaries {
		testbed.Same(t, program(t, b.Runs), b.SHA256, "the sha256 of %s is", b.Runs)
	}
}

// whatKubeletsDo are the steps made with a pod from before the change, in this order.
var whatKubeletsDo = []struct {
	name string
	with func(t *testing.T, f *fleet, pod *oldPod)
}{
	{"stats", func(t *testing.T, f *fleet, pod *oldPod) {
		t.Helper()
		testbed.Eventually(t, time.Minute, func() error {
			r, err := f.Client.ContainerStats(testbed.Within(t, time.Minute), &runtimeapi.ContainerStatsRequest{ContainerId: pod.Container.ID})
			if err != nil {
				return err
			}
			if used(r.GetStats()) == 0 {
				return fmt.Errorf("statistics of the old pod are %v", r.GetStats())
			}
			return nil
		})
	}},
	{"update", func(t *testing.T, f *fleet, pod *oldPod) {
		t.Helper()
		_, err := f.Client.UpdateContainerResources(testbed.Within(t, time.Minute), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: pod.Container.ID, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 512},
		})
		if pod.Handler == gVisor { // gVisor does not support updates
			testbed.Refused(t, err, codes.Unimplemented)
		} else if err != nil {
			t.Errorf("update the old container: %v", err)
		}
	}},
	{"new container", func(t *testing.T, f *fleet, pod *oldPod) {
		t.Helper()
		pod.waiting.Start(t)
		f.adds(t, pod)
	}},
	{"stop", func(t *testing.T, _ *fleet, pod *oldPod) {
		t.Helper()
		pod.Container.Stop(t, 0)
		exitedWith(t, pod.Container.Status(t), 137)
		pod.Stop(t)
	}},
	{"remove", func(t *testing.T, _ *fleet, pod *oldPod) { t.Helper(); pod.Remove(t) }},
}

// adds runs another container in a pod, and removes it.
func (f *fleet) adds(t *testing.T, pod *oldPod) {
	t.Helper()
	added := pod.RunContainer(t, "added", f.spec(pod.Handler))
	answers(t, added)
	added.Stop(t, 0)
	added.Remove(t)
}

func answers(t *testing.T, c *testbed.Container) {
	t.Helper()
	testbed.Same(t, c.Exec(t, "echo", "alive"), "alive\n", "exec printed")
}
