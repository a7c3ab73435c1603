package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
	engineshim "github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// script writes an executable shell script and returns its path.
func script(t *testing.T, dir, name, body string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	// Renamed into place: a file that any process holds open for writing cannot be run.
	test.Must(t, os.WriteFile(path+".new", []byte("#!/bin/sh\n"+body), 0o755))
	test.Must(t, os.Rename(path+".new", path))
	return path
}

// replay writes a script that prints the recorded output of a runtime, and records its runs in
// the file counter.
func replay(t *testing.T, dir, recording string) (path, counter string) {
	t.Helper()
	from := test.Value(filepath.Abs(filepath.Join("testdata", recording)))(t)
	counter = filepath.Join(dir, "runs")
	return script(t, dir, "runtime", fmt.Sprintf(`echo "$1" >>%s
case "$1" in
--version) exec cat %s/version.txt ;;
features) exec cat %s/features.json ;;
esac
exit 1
`, counter, from, from)), counter
}

func runs(t *testing.T, counter string) int {
	t.Helper()
	b := test.Value(os.ReadFile(counter))(t)
	return strings.Count(string(b), "--version\n")
}

func oci(path string) *handler.Definition {
	return &handler.Definition{Name: "test", Type: handler.OCI, Path: path}
}

func TestProbeAsksOncePerIdentity(t *testing.T) {
	dir := t.TempDir()
	path, counter := replay(t, dir, "runc-1.1.5")
	p := New(nil)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if rt, err := p.Probe(t.Context(), oci(path)); err != nil || rt.Version != "1.1.5+ds1" {
				t.Errorf("got %+v, %v", rt, err)
			}
		})
	}
	wg.Wait()
	if n := runs(t, counter); n != 1 {
		t.Fatalf("16 callers at once ran the binary %d times, want once", n)
	}
	replay(t, dir, "runc-1.5.2")
	rt, err := p.Probe(t.Context(), oci(path))
	if err != nil || rt.Version != "1.5.2" || rt.Path != path {
		t.Fatalf("after the binary was replaced: got %+v, %v", rt, err)
	}
	if n := runs(t, counter); n != 2 {
		t.Fatalf("a replaced binary was run %d times in all, want twice", n)
	}
}

func TestProbeWithoutFeatures(t *testing.T) {
	path, _ := replay(t, t.TempDir(), "crun-1.8.1")
	rt := test.Value(New(nil).Probe(t.Context(), oci(path)))(t)
	if rt.Features != nil || rt.OCIVersion() != "1.0.2" {
		t.Errorf("got features %v and ociVersion %s of a runtime without features", rt.Features, rt.OCIVersion())
	}
}

func TestProbeFailures(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	test.Must(t, os.WriteFile(plain, nil, 0o644))
	for name, c := range map[string]struct{ path, says string }{
		"missing":                   {filepath.Join(dir, "none"), "install it"},
		"not executable":            {plain, "not an executable file"},
		"directory":                 {dir, "not an executable file"},
		"fails":                     {script(t, dir, "fails", "echo no such luck >&2; exit 3\n"), "no such luck"},
		"no output":                 {script(t, dir, "silent", "exit 0\n"), "not an OCI runtime"},
		"any program":               {"/bin/true", "not an OCI runtime"},
		"another program's version": {script(t, dir, "git", "echo git version 2.39.5\n"), `"git version 2.39.5"`},
		"no interpreter":            {badInterpreter(t, dir), "runtime_path"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(nil).Probe(t.Context(), oci(c.path))
			if !errdefs.IsUnavailable(err) {
				t.Fatalf("got %v, want an Unavailable", err)
			}
			test.Says(t, err, c.path, c.says)
			if len(err.Error()) > 1024 {
				t.Errorf("the text has %d bytes", len(err.Error()))
			}
		})
	}
}

func badInterpreter(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "interp")
	test.Must(t, os.WriteFile(path, []byte("#!/nonexistent/interpreter\n"), 0o755))
	return path
}

func TestFailureIsNotRemembered(t *testing.T) {
	dir := t.TempDir()
	path := script(t, dir, "runtime", fmt.Sprintf("test -e %s/healed || exit 1\necho runc version 9.9.9\n", dir))
	p := New(nil)
	if _, err := p.Probe(t.Context(), oci(path)); err == nil {
		t.Fatal("a failing binary passed")
	}
	test.Must(t, os.WriteFile(filepath.Join(dir, "healed"), nil, 0o600))
	if rt, err := p.Probe(t.Context(), oci(path)); err != nil || rt.Version != "9.9.9" {
		t.Fatalf("got %v, %v after the cause was removed", rt, err)
	}
}

// TestProbeOfABinaryThatWasReplaced: a call that joins a probe of the old binary gets the result
// of the new one.
func TestProbeOfABinaryThatWasReplaced(t *testing.T) {
	dir := t.TempDir()
	asked, goOn := filepath.Join(dir, "asked"), filepath.Join(dir, "go-on")
	path := script(t, dir, "runtime", `[ "$1" = --version ] || exit 1
: >`+asked+`
while [ ! -e `+goOn+` ]; do sleep 0.01; done
echo "runc version 1.0.0"; echo "spec: 1.0.2"`)
	p := New(nil)
	first := make(chan error, 1)
	go func() {
		_, err := p.Probe(t.Context(), oci(path))
		first <- err
	}()
	test.Eventually(t, "the binary runs", func() bool { return test.Err(os.Stat(asked)) == nil })
	now := script(t, t.TempDir(), "runtime", `[ "$1" = --version ] || exit 1
echo "runc version 2.0.0"; echo "spec: 1.0.2"`)
	test.Must(t, os.Rename(now, path))
	second := make(chan *Runtime, 1)
	go func() {
		rt, err := p.Probe(t.Context(), oci(path))
		test.Check(t, err)
		second <- rt
	}()
	test.Eventually(t, "the second caller joins", func() bool { return inside("ask") == 2 })
	test.Must(t, os.WriteFile(goOn, nil, 0o600))
	test.Check(t, <-first)
	if rt := <-second; rt != nil && rt.Version != "2.0.0" {
		t.Errorf("the binary was replaced by 2.0.0 before the call, but the result is of %s", rt.Version)
	}
}

// A binary that hangs is killed, with the children that hold its pipes.
func TestProbeKillsHangingBinary(t *testing.T) {
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	path := script(t, dir, "runtime", fmt.Sprintf("echo $$ >%s\nsleep 1000 &\necho $! >>%s\nwait\n", pids, pids))
	p := New(nil)
	p.timeout = 2 * time.Second
	begin := time.Now()
	test.Refused(t, test.Err(p.Probe(t.Context(), oci(path))), errdefs.IsUnavailable, "timed out")
	if d := time.Since(begin); d > 20*time.Second {
		t.Errorf("it took %s to give up", d)
	}
	b := test.Value(os.ReadFile(pids))(t)
	for _, pid := range strings.Fields(string(b)) {
		waitGone(t, pid)
	}
}

func waitGone(t *testing.T, pid string) {
	t.Helper()
	test.Eventually(t, "process "+pid+" is gone", func() bool {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		return errors.Is(err, os.ErrNotExist) || strings.Contains(string(b), ") Z ")
	})
}

// A child process that keeps the pipes open does not delay the result, and is killed.
func TestProbeLeavesNoChildBehind(t *testing.T) {
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	path := script(t, dir, "runtime", fmt.Sprintf("sleep 1000 &\necho $! >>%s\necho runc version 1.0.0\n", pids))
	rt, err := New(nil).Probe(t.Context(), oci(path))
	if err != nil || rt.Version != "1.0.0" {
		t.Fatalf("got %v, %v", rt, err)
	}
	b := test.Value(os.ReadFile(pids))(t)
	for _, pid := range strings.Fields(string(b)) {
		waitGone(t, pid)
	}
}

// The end of a caller's context does not end the probe.
func TestProbeOutlivesItsFirstCaller(t *testing.T) {
	dir := t.TempDir()
	path := script(t, dir, "runtime", "sleep 0.5\necho runc version 1.2.3\n")
	p := New(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Probe(ctx, oci(path)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want the caller's deadline", err)
	}
	if rt, err := p.Probe(t.Context(), oci(path)); err != nil || rt.Version != "1.2.3" {
		t.Fatalf("got %v, %v", rt, err)
	}
}

func TestProbeHugeOutput(t *testing.T) {
	path := script(t, t.TempDir(), "runtime", "echo runc version 1.0.0\nhead -c 4000000 /dev/zero\n")
	p := New(nil)
	p.timeout = time.Minute // only the amount of output matters here
	rt, err := p.Probe(t.Context(), oci(path))
	if err != nil || rt.Version != "1.0.0" || rt.Features != nil {
		t.Fatalf("got %v, %v", rt, err)
	}
}

func shim(path, binary string) *handler.Definition {
	return &handler.Definition{Name: "test", Type: handler.Shim, Path: path, ShimOptions: map[string]any{"BinaryName": binary}}
}

func TestProbeShimThatDrivesARuntime(t *testing.T) {
	dir := t.TempDir()
	path := script(t, dir, "containerd-shim-runc-v2", "test $1 = -v || exit 1\necho 'containerd-shim-runc-v2:'; echo '  Version:  v2.4.2'; echo '  Go version: go1.26'\n")
	driven, counter := replay(t, dir, "crun-1.24")
	p := New(nil)
	rt, err := p.Probe(t.Context(), shim(path, driven))
	test.Must(t, err)
	if rt.Path != path || rt.Name != Crun || rt.Version != "1.24" || rt.ShimVersion != "v2.4.2" || !rt.Kernel().HostProcesses || !rt.SupportsIDMap() {
		t.Errorf("got %+v", rt)
	}
	replay(t, dir, "crun-1.8.1")
	if rt, err = p.Probe(t.Context(), shim(path, driven)); err != nil || rt.Version != "1.8.1" {
		t.Errorf("after the driven runtime was replaced: got %v, %v", rt, err)
	}
	if n := runs(t, counter); n != 2 {
		t.Errorf("the driven runtime was run %d times, want twice", n)
	}
	test.Refused(t, test.Err(p.Probe(t.Context(), shim(path, filepath.Join(dir, "gone")))), errdefs.IsUnavailable, "BinaryName")
}

// The runtime of a shim without BinaryName does not depend on the PATH of this process.
func TestDrivenRuntimeIsFoundWithoutAPath(t *testing.T) {
	there, other := t.TempDir(), t.TempDir()
	for _, dir := range []string{there, other} {
		test.Must(t, os.WriteFile(filepath.Join(dir, Runc), nil, 0o755))
	}
	t.Setenv(hostfiles.SearchPathEnv, there)
	t.Setenv("PATH", other)
	for name, want := range map[string]string{"": filepath.Join(there, Runc), filepath.Join(other, Runc): filepath.Join(other, Runc), Crun: ""} {
		if got, err := drivenRuntime("shim", name, nil); got != want || (err == nil) != (want != "") {
			t.Errorf("drivenRuntime(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
	if got, err := drivenRuntime("shim", "", []string{other}); got != filepath.Join(other, Runc) {
		t.Errorf("with a search path: %q, %v", got, err)
	}
}

// A build of containerd's runc shim under another file name is probed like the shim: its pods
// share the node's kernel.
func TestProbeShimForRuncOfAnotherName(t *testing.T) {
	dir := t.TempDir()
	path := script(t, dir, "containerd-shim-runc-fips", "test $1 = -v || exit 1\necho '  Version:  v2.4.2'\n")
	driven, _ := replay(t, dir, "crun-1.24")
	rt, err := New(nil).Probe(t.Context(), shim(path, driven))
	if err != nil || rt.Name != Crun || !rt.Kernel().HostProcesses {
		t.Errorf("got %+v, %v", rt, err)
	}
}

func TestProbeForeignShim(t *testing.T) {
	dir := t.TempDir()
	kata := script(t, dir, "containerd-shim-kata-v2", `test "$1" = -info && exit 2
echo 'Kata Containers containerd shim (Golang): id: "io.containerd.kata.v2", version: 3.2.0, commit: abc'
`)
	rt, err := New(nil).Probe(t.Context(), shim(kata, ""))
	if err != nil || rt.Version != "3.2.0" || rt.Kernel().HostProcesses || rt.Name != "" {
		t.Errorf("got %+v, %v", rt, err)
	}
	dumb := script(t, dir, "containerd-shim-dumb-v1", "exit 64\n")
	rt, err = New(nil).Probe(t.Context(), shim(dumb, ""))
	if err != nil || rt.Version != "" || rt.Kernel().HostProcesses || rt.Identity.Inode == 0 {
		t.Errorf("got %+v, %v: a shim without any output must have an identity", rt, err)
	}
}

// TestRunsWasm: a shim that runs modules in host processes is recognized by its file name, by
// the name that it reports, or by the platform of its images.
func TestRunsWasm(t *testing.T) {
	type answer struct{ runs, declared, byFile bool }
	for _, tc := range []struct {
		file, name string
		wasmImages bool
		want       answer
	}{
		{"containerd-shim-spin-v2", "", false, answer{runs: true, byFile: true}},
		{"containerd-shim-wasmtime-v1", "", false, answer{runs: true, byFile: true}},
		{"containerd-shim-wasmedge-v1", "", true, answer{runs: true, byFile: true}},
		{"containerd-shim-wasmer-v1", "", false, answer{runs: true, byFile: true}},
		{"containerd-shim-wamr-v1", "", false, answer{runs: true, byFile: true}},
		{"containerd-shim-slight-v1", "", false, answer{runs: true, byFile: true}},
		{"containerd-shim-wws-v1", "", false, answer{runs: true, byFile: true}},
		{"containerd-shim-lunatic-v1", "", false, answer{runs: true, byFile: true}},
		{"containerd-shim-wasmtime-v1", "wasmtime", false, answer{runs: true, declared: true, byFile: true}},
		{"renamed", "io.containerd.spin.v2", false, answer{runs: true, declared: true}},
		{"containerd-shim-spin-v2", "io.containerd.kata.v2", true, answer{byFile: true}},
		{"containerd-shim-spin", "", false, answer{}},
		{"containerd-shim-spinner-v2", "", false, answer{}},
		{"containerd-shim-unknown-v1", "", false, answer{}},
		{"containerd-shim-unknown-v1", "", true, answer{runs: true}},
		{"containerd-shim-unknown-v1", "io.containerd.unknown.v1", true, answer{runs: true}},
		{"unknown", "", true, answer{runs: true}},
		{"containerd-shim-kata-qemu-v2", "", true, answer{}},
		{"containerd-shim-kata-v2", "", true, answer{}},
		{"containerd-shim-runsc-v1", "", true, answer{}},
		{"renamed", "io.containerd.kata-qemu.v2", true, answer{}},
	} {
		path := filepath.Join("/opt/bin", tc.file)
		got := answer{byFile: RunsWasm(path)}
		if got.runs, got.declared = runsWasm(path, tc.name, tc.wasmImages); got != tc.want {
			t.Errorf("%s that reports the name %q, Wasm images %v: %+v", tc.file, tc.name, tc.wasmImages, got)
		}
	}
}

// TestProbeShimByItsImages probes one file for two handlers, one of which has only images of
// WebAssembly.
func TestProbeShimByItsImages(t *testing.T) {
	dir := t.TempDir()
	plain := shim(script(t, dir, "containerd-shim-unknown-v1", "exit 64\n"), "")
	wasm := *plain
	wasm.Platform = handler.PlatformWasm
	p := New(nil)
	for range 2 {
		if rt, err := p.Probe(t.Context(), plain); err != nil || rt.Kernel().HostProcesses || rt.Wasm {
			t.Errorf("for other images it is %+v, %v", rt, err)
		}
		if rt, err := p.Probe(t.Context(), &wasm); err != nil || !rt.Kernel().HostProcesses || !rt.Wasm {
			t.Errorf("for Wasm images it is %+v, %v", rt, err)
		}
	}
}

// realBinary finds a runtime by the environment or PATH, or skips the test.
func realBinary(t *testing.T, env, name string) string {
	t.Helper()
	if p := os.Getenv(env); p != "" {
		return p
	}
	p, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not in PATH and %s does not name it", name, env)
	}
	return p
}

func TestRealRuntimes(t *testing.T) {
	for _, c := range []struct {
		env, name string
		check     func(*Runtime) string
	}{
		{"BERTH_TEST_RUNC", Runc, func(rt *Runtime) string {
			if rt.Features == nil || !rt.Kernel().HostProcesses {
				return "runc has features and shares the host's kernel"
			}
			return ""
		}},
		{"BERTH_TEST_CRUN", Crun, func(rt *Runtime) string {
			if !rt.Kernel().HostProcesses || rt.Seccomp() != capability.Yes {
				return "crun shares the host's kernel and has seccomp"
			}
			return ""
		}},
		{"BERTH_TEST_RUNSC", Runsc, func(rt *Runtime) string {
			if rt.Kernel().HostProcesses {
				return "gVisor has a kernel of its own"
			}
			return ""
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := realBinary(t, c.env, c.name)
			rt := test.Value(New(nil).Probe(t.Context(), oci(path)))(t)
			if rt.Name != c.name || rt.Version == "" {
				t.Errorf("%s reports the name %q and the version %q", path, rt.Name, rt.Version)
			}
			test.Equal(t, fmt.Sprintf("%+v: the check", rt), c.check(rt), "")
			major, _, _ := strings.Cut(rt.OCIVersion(), ".")
			if n, err := strconv.Atoi(major); err != nil || n != 1 {
				t.Errorf("ociVersion %q", rt.OCIVersion())
			}
		})
	}
}

func TestRealShim(t *testing.T) {
	path := realBinary(t, "BERTH_TEST_SHIM", "containerd-shim-runc-v2")
	driven := realBinary(t, "BERTH_TEST_RUNC", Runc)
	rt := test.Value(New(engineshim.Protocol{}).Probe(t.Context(), shim(path, driven)))(t)
	if rt.ShimVersion == "" || rt.Name != Runc || rt.Features == nil || !rt.Kernel().HostProcesses {
		t.Errorf("got %+v", rt)
	}
}

// deadMount mounts a file system on dir that does not respond, until end is
// called.
func deadMount(t *testing.T, dir string) (end func()) {
	t.Helper()
	fuse := test.Value(os.OpenFile("/dev/fuse", os.O_RDWR, 0))(t)
	test.Must(t, unix.Mount("dead", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd())))
	end = sync.OnceFunc(func() {
		fuse.Close()
		test.Check(t, unix.Unmount(dir, unix.MNT_DETACH))
	})
	t.Cleanup(end)
	return end
}

// inside counts the goroutines that are in a method of a Prober.
func inside(method string) int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return strings.Count(string(stacks), "probe.(*Prober)."+method+"(")
}

// On an unresponsive file system, each caller waits until its own deadline, and
// all callers share one goroutine.
func TestProbeOnADeadMount(t *testing.T) {
	dir := t.TempDir()
	path, _ := replay(t, dir, "runc-1.5.2")
	end := deadMount(t, dir)
	p := New(engineshim.Protocol{})
	p.timeout = 100 * time.Millisecond
	before := inside("run")
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if _, err := p.Probe(ctx, oci(path)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want the caller's deadline", err)
		}
		cancel()
	}
	if n := inside("run"); n > before+1 {
		t.Errorf("20 calls left %d probes", n-before)
	}
	test.Refused(t, test.Err(p.Probe(t.Context(), oci(path))), errdefs.IsUnavailable, "network file system")
	end()
	// A probe that was waiting may still return an older result.
	test.Eventually(t, "the binary is found when its mount is back", func() bool {
		rt, err := p.Probe(t.Context(), oci(path))
		return err == nil && rt.Version == "1.5.2"
	})
}
