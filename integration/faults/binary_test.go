package faults

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// fleet are handlers of each kind whose binaries are a test's own, to be replaced.
type fleet struct {
	*bed
	dir string
	// files are the binaries of each handler: that of the handler, then the one
	// that its shim drives.
	files map[string][]string
	// good are the programs to be installed there, by path.
	good map[string]string
}

const byDefault, gVisor, shimmed = "a-runc", "a-runsc", "a-shim"

// newFleet installs the runtimes in dir.
func newFleet(t *testing.T, dir string) *fleet {
	t.Helper()
	f := &fleet{dir: dir, files: map[string][]string{}, good: map[string]string{}}
	for handler, parts := range map[string][]string{
		// No names under which berth finds runtimes by itself.
		byDefault: {testbed.Runc}, "a-crun": {testbed.Crun}, gVisor: {testbed.Runsc}, shimmed: {testbed.RuncShim, testbed.Runc},
	} {
		if err := os.Mkdir(filepath.Join(dir, handler), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			path := filepath.Join(dir, handler, part)
			f.files[handler] = append(f.files[handler], path)
			f.good[path] = testbed.Part(t, part)
		}
	}
	f.install(t)
	return f
}

// install puts the right program at each place where something else is.
func (f *fleet) install(t *testing.T) {
	t.Helper()
	for path, good := range f.good {
		if digest(t, path) != digest(t, good) {
			put(t, path, read(t, good))
		}
	}
}

// table is the configuration of a handler on binaries in the fleet's places, or in
// others.
func (f *fleet) table(handler string, files []string) string {
	if handler == shimmed {
		return fmt.Sprintf("[runtimes.%s]\nruntime_type = \"shim\"\nruntime_path = %q\n[runtimes.%s.options]\nBinaryName = %q\n", handler, files[0], handler, files[1])
	}
	return fmt.Sprintf("[runtimes.%s]\nruntime_path = %q\n", handler, files[0])
}

func (f *fleet) config(def string, handlers ...string) string {
	text := preamble(def)
	for _, handler := range handlers {
		text += f.table(handler, f.files[handler])
	}
	return text
}

// preamble is the top of a configuration, which lets the daemon see soon that a
// runtime is well again.
func preamble(def string) string {
	return fmt.Sprintf("default_runtime = %q\n[handlers]\nprobe_interval = \"1s\"\n", def)
}

func (f *fleet) handlers() []string { return slices.Sorted(maps.Keys(f.files)) }

func read(t *testing.T, path string) []byte {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// put replaces a program as a package manager does.
func put(t *testing.T, path string, body []byte) {
	t.Helper()
	next := path + ".next"
	err := os.WriteFile(next, body, 0o755) //nolint:gosec // it is a program
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// overwrite changes a program in place, as a careless copy does. That waits while
// somebody runs it.
func overwrite(t *testing.T, path string, body []byte) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			return err
		}
		_, err = file.Write(body)
		return errors.Join(err, file.Close())
	})
}

// digest is the hash of a file; empty if there is none.
func digest(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// podInfo is what the verbose status of a sandbox says about its runtime.
type podInfo struct {
	Handler    string `json:"handler"`
	Supervisor string `json:"supervisor"`
	Binaries   []struct {
		Path    string `json:"path"`
		Runs    string `json:"runs"`
		SHA256  string `json:"sha256"`
		Version string `json:"version"`
	} `json:"binaries"`
}

func (b *bed) podInfo(t *testing.T, pod *testbed.Pod) podInfo {
	t.Helper()
	r, err := b.client.PodSandboxStatus(within(t, time.Minute), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.ID, Verbose: true})
	var i podInfo
	if err == nil {
		err = json.Unmarshal([]byte(r.GetInfo()["info"]), &i)
	}
	if err != nil {
		t.Fatalf("verbose status of %s: %v", pod.ID, err)
	}
	return i
}

// oldPod is a pod that was made before a change.
type oldPod struct {
	*testbed.Pod
	waiting *testbed.Container // created, not started
	info    podInfo
}

func (f *fleet) spec(handler string) testbed.PodSpec {
	return testbed.PodSpec{Handler: handler, Image: f.image, Command: []string{"sleep", "3600"}}
}

// busy is a pod that uses some time: gVisor counts it in ticks.
func (f *fleet) busy(handler string) testbed.PodSpec {
	s := f.spec(handler)
	s.Command = []string{"sh", "-c", "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; exec sleep 3600"}
	return s
}

func (f *fleet) run(t *testing.T, handler string) *oldPod {
	t.Helper()
	pod := &oldPod{Pod: f.client.RunPod(t, f.busy(handler))}
	pod.waiting = pod.CreateContainer(t, "waiting", f.spec(handler))
	pod.info = f.podInfo(t, pod.Pod)
	f.runsOn(t, pod.info, f.files[handler])
	return pod
}

// runsOn fails unless a pod has copies of its own of what is installed.
func (f *fleet) runsOn(t *testing.T, is podInfo, files []string) {
	t.Helper()
	if len(is.Binaries) != len(files) {
		t.Fatalf("handler %s: the pod runs on %v, want copies of %v", is.Handler, is.Binaries, files)
	}
	for i, path := range files {
		b := is.Binaries[i]
		if b.Path != path || b.SHA256 != digest(t, path) || b.Version == "" {
			t.Errorf("handler %s: the pod runs on %+v, want a copy of %s, sha256 %s", is.Handler, b, path, digest(t, path))
		}
		if filepath.Base(b.Runs) != filepath.Base(path) || !strings.HasPrefix(b.Runs, filepath.Join(f.Root, "tools")+"/") {
			t.Errorf("handler %s: %s is kept at %s", is.Handler, path, b.Runs)
		}
	}
}

// livesOn does with an old pod what a kubelet does, up to its removal.
func (f *fleet) livesOn(t *testing.T, pod *oldPod) {
	t.Helper()
	now := f.podInfo(t, pod.Pod)
	if fmt.Sprint(now) != fmt.Sprint(pod.info) {
		t.Errorf("the old pod ran under %+v and now under %+v", pod.info, now)
	}
	for _, b := range now.Binaries {
		if is := digest(t, b.Runs); is != b.SHA256 {
			t.Errorf("%s has sha256 %s, and was made from %s", b.Runs, is, b.SHA256)
		}
	}
	alive := func(what string, c *testbed.Container) {
		t.Helper()
		if out := c.Exec(t, "echo", "alive"); out != "alive\n" {
			t.Errorf("exec in the %s container said %q", what, out)
		}
	}
	alive("old", pod.Container)
	testbed.Eventually(t, time.Minute, func() error {
		r, err := f.client.ContainerStats(within(t, time.Minute), &runtimeapi.ContainerStatsRequest{ContainerId: pod.Container.ID})
		if err != nil {
			return err
		}
		if used(r.GetStats()) == 0 {
			return fmt.Errorf("statistics of the old pod are %v", r.GetStats())
		}
		return nil
	})
	if pod.Handler != gVisor { // which cannot
		_, err := f.client.UpdateContainerResources(within(t, time.Minute), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: pod.Container.ID, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 512},
		})
		if err != nil {
			t.Errorf("update the old container: %v", err)
		}
	}
	pod.waiting.Start(t)
	added := pod.RunContainer(t, "added", f.spec(pod.Handler))
	alive("new", added)
	added.Stop(t, 0)
	added.Remove(t)
	pod.Container.Stop(t, 0)
	if st := pod.Container.Status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 137 {
		t.Errorf("stopped, the old container is %s %d", st.GetState(), st.GetExitCode())
	}
	pod.Stop(t)
	pod.Remove(t)
}

// each does something with all handlers at the same time.
func (f *fleet) each(t *testing.T, handlers []string, do func(t *testing.T, handler string)) {
	t.Helper()
	t.Run("all", func(t *testing.T) {
		for _, handler := range handlers {
			t.Run(handler, func(t *testing.T) {
				t.Parallel()
				do(t, handler)
			})
		}
	})
}

// change is what an operator, or a package manager, does to runtimes under live
// pods.
type change struct {
	name string
	// binaries changes what is installed.
	binaries func(t *testing.T, f *fleet)
	// config is the new configuration; nil leaves it.
	config func(t *testing.T, f *fleet) string
	// fresh looks at a new pod of a handler.
	fresh func(t *testing.T, f *fleet, handler string)
}

func (f *fleet) allFiles() []string { return slices.Sorted(maps.Keys(f.good)) }

var changes = []change{
	{
		name:   "default switched",
		config: func(_ *testing.T, f *fleet) string { return f.config("a-crun", f.handlers()...) },
		fresh: func(t *testing.T, f *fleet, handler string) {
			t.Helper()
			f.freshRunsOn(t, handler, f.files[handler])
			if handler == byDefault {
				pod := f.client.RunPod(t, testbed.PodSpec{Image: f.image, Command: []string{"true"}})
				if is := f.podInfo(t, pod); is.Handler != "a-crun" {
					t.Errorf("a new pod of the default is under %s", is.Handler)
				}
				pod.Remove(t)
			}
		},
	},
	{
		name: "handler edited",
		binaries: func(t *testing.T, f *fleet) {
			t.Helper()
			for _, path := range f.allFiles() {
				if err := os.MkdirAll(filepath.Dir(moved(path)), 0o755); err != nil {
					t.Fatal(err)
				}
				put(t, moved(path), append(read(t, f.good[path]), "moved"...))
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
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
		name: "binary deleted",
		binaries: func(t *testing.T, f *fleet) {
			t.Helper()
			for _, path := range f.allFiles() {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
		},
		fresh: unavailable,
	},
	{
		name: "binary replaced by false",
		binaries: func(t *testing.T, f *fleet) {
			t.Helper()
			for _, path := range f.allFiles() {
				put(t, path, read(t, "/bin/false"))
			}
		},
		fresh: unavailable,
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
		// crun takes the place of runc and runc that of crun: neither could do
		// anything with a container of the other.
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
	return filepath.Join(filepath.Dir(path), "moved", filepath.Base(path))
}

func unavailable(t *testing.T, f *fleet, handler string) {
	t.Helper()
	f.freshRefused(t, handler, codes.Unavailable, f.files[handler][0], "install")
}

func (f *fleet) freshRefused(t *testing.T, handler string, code codes.Code, texts ...string) {
	t.Helper()
	_, err := f.client.RunPodSandbox(within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{
		Config: f.client.SandboxConfig(""), RuntimeHandler: handler,
	})
	refused(t, err, code, texts...)
}

func (f *fleet) freshRunsOn(t *testing.T, handler string, files []string) {
	t.Helper()
	pod := f.client.RunPod(t, f.spec(handler))
	f.runsOn(t, f.podInfo(t, pod), files)
	pod.Remove(t)
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

// TestPodsOutliveChangesOfTheirRuntime changes runtimes in every way under live
// pods. What runs goes on, under the very binary that it was made with; new pods
// get what is there now, or are told what is wrong with it.
func TestPodsOutliveChangesOfTheirRuntime(t *testing.T) {
	f := newFleet(t, t.TempDir())
	config := f.config(byDefault, f.handlers()...)
	f.bed = newBed(t, testbed.Options{Config: config})
	atRest := f.rest(t)
	for _, c := range changes {
		for _, restarted := range []bool{false, true} {
			name := c.name
			if restarted {
				name += ", all restarted"
			}
			t.Run(name, func(t *testing.T) {
				f.outlives(t, c, config, restarted)
			})
		}
	}
	f.nothingLeft(t, atRest)
	f.onlyTodays(t)
}

func (f *fleet) outlives(t *testing.T, c change, config string, restarted bool) {
	old := map[string]*oldPod{}
	for _, handler := range f.handlers() {
		old[handler] = f.run(t, handler)
	}
	if c.binaries != nil {
		c.binaries(t, f)
	}
	if c.config != nil {
		f.reload(t, c.config(t, f))
	}
	if restarted {
		f.crash(t)
	}
	f.each(t, f.handlers(), func(t *testing.T, handler string) {
		c.fresh(t, f, handler)
		f.livesOn(t, old[handler])
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

// handlersInfo is what the verbose status says of handlers.
type handlersInfo struct {
	Digest   string `json:"digest"`
	Handlers []struct {
		Name   string `json:"name"`
		State  string `json:"state"`
		Reason string `json:"reason"`
	} `json:"handlers"`
}

func (b *bed) handlersInfo(t *testing.T) handlersInfo {
	t.Helper()
	r, err := b.client.Status(within(t, time.Minute), &runtimeapi.StatusRequest{Verbose: true})
	var i handlersInfo
	if err == nil {
		err = json.Unmarshal([]byte(r.GetInfo()["handlers"]), &i)
	}
	if err != nil {
		t.Fatalf("verbose status: %v", err)
	}
	return i
}

// reload replaces the drop-in and has the running daemon read it.
func (b *bed) reload(t *testing.T, config string) {
	t.Helper()
	before := b.handlersInfo(t).Digest
	put(t, filepath.Join(b.Dir, "conf.d", "50-test.toml"), []byte(config))
	if err := syscall.Kill(b.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testbed.Eventually(t, time.Minute, func() error {
		if b.handlersInfo(t).Digest == before {
			return errors.New("the new configuration is not in force")
		}
		return nil
	})
}

// onlyTodays fails unless the copies that are kept are those of what is installed.
func (f *fleet) onlyTodays(t *testing.T) {
	t.Helper()
	want := map[string]bool{}
	for path := range f.good {
		want["runtime-"+digest(t, path)[:16]] = true
	}
	if crun, err := exec.LookPath("crun"); err == nil { // it is found by itself
		want["runtime-"+digest(t, crun)[:16]] = true
	}
	testbed.Eventually(t, time.Minute, func() error {
		for _, name := range f.kept(t) {
			if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "runtime-") && !want[name] {
				return fmt.Errorf("kept are %q, and needed only %v", f.kept(t), want)
			}
		}
		return nil
	})
}
