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

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// fleet has handlers of each kind, with copies of the runtimes that a test can replace.
type fleet struct {
	*bed
	dir string
	// files are the paths of each handler's binaries: the runtime, or the shim and
	// the runtime that it calls.
	files map[string][]string
	// good are the programs that belong at these paths.
	good map[string]string
}

// companions is the directory of gVisor's companion programs, beside runsc.
const companions = "gvisor-bin"

const byDefault, gVisor, shimmed = "a-runc", "a-runsc", "a-shim"

// newFleet installs the runtimes in dir, with runc of an old release.
func newFleet(t *testing.T, dir string) *fleet {
	t.Helper()
	f := &fleet{dir: dir, files: map[string][]string{}, good: map[string]string{}}
	for handler, parts := range map[string][]string{
		// These are not names under which berth finds runtimes without a configuration.
		byDefault: {testbed.RuncOld}, "a-crun": {testbed.Crun}, gVisor: {testbed.Runsc}, shimmed: {testbed.RuncShim, testbed.RuncOld},
	} {
		testbed.Must(t, os.MkdirAll(filepath.Join(dir, handler, companions), 0o755))
		for _, part := range parts {
			path := filepath.Join(dir, handler, part)
			if part == testbed.RuncOld {
				path = filepath.Join(dir, handler, testbed.Runc) // until it is upgraded
			}
			f.files[handler] = append(f.files[handler], path)
			f.good[path] = testbed.Part(t, part)
			if part == testbed.Runsc {
				for _, companion := range testbed.CompanionsOfRunsc(t, filepath.Dir(f.good[path])) {
					f.good[filepath.Join(dir, handler, companions, filepath.Base(companion))] = companion
				}
			}
		}
	}
	f.install(t)
	return f
}

// install copies the right program to each path that has a different file or none.
func (f *fleet) install(t *testing.T) {
	t.Helper()
	for path, good := range f.good {
		if digest(t, path) != digest(t, good) {
			put(t, path, read(t, good))
		}
	}
}

// table is the configuration of a handler with these binaries.
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

// preamble is the beginning of a configuration, by which the daemon probes runtimes
// every second.
func preamble(def string) string {
	return fmt.Sprintf("default_runtime = %q\n[handlers]\nprobe_interval = \"1s\"\n", def)
}

func (f *fleet) handlers() []string { return slices.Sorted(maps.Keys(f.files)) }

func (f *fleet) allFiles() []string { return slices.Sorted(maps.Keys(f.good)) }

func read(t *testing.T, path string) []byte {
	t.Helper()
	body, err := os.ReadFile(path)
	testbed.Must(t, err)
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
	testbed.Must(t, err)
}

// overwrite changes a program in place, as cp does. It waits while a process runs
// the program.
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

// program is the hash of a binary with its companions.
func program(t *testing.T, path string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(path), companions, "*"))
	if err != nil || len(files) == 0 {
		return digest(t, path)
	}
	list := digest(t, path) + "  \n"
	for _, file := range files {
		list += digest(t, file) + "  " + filepath.Join(companions, filepath.Base(file)) + "\n"
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(list)))
}

// digest is the SHA-256 of a file, or empty if the file does not exist.
func digest(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	testbed.Must(t, err)
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// podInfo has the fields about the runtime in a sandbox's verbose status.
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
	r, err := b.Client.PodSandboxStatus(testbed.Within(t, time.Minute), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.ID, Verbose: true})
	var i podInfo
	if err == nil {
		err = json.Unmarshal([]byte(r.GetInfo()["info"]), &i)
	}
	testbed.Mustf(t, err, "verbose status of %s", pod.ID)
	return i
}

// oldPod is a pod that was created before a change of the installed binaries.
type oldPod struct {
	*testbed.Pod
	waiting *testbed.Container // created, not started
	info    podInfo
}

func (f *fleet) spec(handler string) testbed.PodSpec {
	return testbed.PodSpec{Handler: handler, Image: f.Image, Command: []string{"sleep", "3600"}}
}

// busy is a pod that uses some CPU time, at least one of the ticks in which gVisor
// counts it.
func (f *fleet) busy(handler string) testbed.PodSpec {
	s := f.spec(handler)
	s.Command = []string{"sh", "-c", "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; exec sleep 3600"}
	return s
}

func (f *fleet) run(t *testing.T, handler string) *oldPod {
	t.Helper()
	pod := &oldPod{Pod: f.Client.RunPod(t, f.busy(handler))}
	pod.waiting = pod.CreateContainer(t, "waiting", f.spec(handler))
	pod.info = f.podInfo(t, pod.Pod)
	f.runsOn(t, pod.info, f.files[handler])
	return pod
}

// runsOn fails the test unless a pod runs on kept binaries of the installed files.
func (f *fleet) runsOn(t *testing.T, is podInfo, files []string) {
	t.Helper()
	if len(is.Binaries) != len(files) {
		t.Fatalf("handler %s: the pod runs on %v, want kept binaries of %v", is.Handler, is.Binaries, files)
	}
	for i, path := range files {
		b := is.Binaries[i]
		if b.Path != path || b.SHA256 != program(t, path) || b.Version == "" {
			t.Errorf("handler %s: the pod runs on %+v, want a kept binary of %s, sha256 %s", is.Handler, b, path, program(t, path))
		}
		if filepath.Base(b.Runs) != filepath.Base(path) || !strings.HasPrefix(b.Runs, filepath.Join(f.Root, "tools")+"/") {
			t.Errorf("handler %s: the kept binary of %s is at %s", is.Handler, path, b.Runs)
		}
	}
}

// each runs a parallel subtest for each handler.
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

// handlersInfo has the fields about handlers in the daemon's verbose status.
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
	r, err := b.Client.Status(testbed.Within(t, time.Minute), &runtimeapi.StatusRequest{Verbose: true})
	var i handlersInfo
	if err == nil {
		err = json.Unmarshal([]byte(r.GetInfo()["handlers"]), &i)
	}
	testbed.Mustf(t, err, "verbose status")
	return i
}

// reload replaces the drop-in and has the running daemon read it.
func (b *bed) reload(t *testing.T, config string) {
	t.Helper()
	before := b.handlersInfo(t).Digest
	put(t, filepath.Join(b.Dir, "conf.d", "50-test.toml"), []byte(config))
	testbed.Must(t, syscall.Kill(b.PID(), syscall.SIGHUP))
	testbed.Eventually(t, time.Minute, func() error {
		if b.handlersInfo(t).Digest == before {
			return errors.New("the new configuration is not in force")
		}
		return nil
	})
}

// onlyTodays fails the test if a kept binary is not a copy of a currently installed one.
func (f *fleet) onlyTodays(t *testing.T) {
	t.Helper()
	want := map[string]bool{}
	for path := range f.good {
		want["runtime-"+program(t, path)[:16]] = true
	}
	if crun, err := exec.LookPath("crun"); err == nil { // berth finds this crun without a configuration
		want["runtime-"+digest(t, crun)[:16]] = true
	}
	testbed.Eventually(t, time.Minute, func() error {
		for _, name := range f.kept(t) {
			if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "runtime-") && !want[name] {
				return fmt.Errorf("kept binaries: %q, want only %v", f.kept(t), want)
			}
		}
		return nil
	})
}
