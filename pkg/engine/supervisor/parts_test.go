package supervisor_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

// ociRuntime is a runtime that the tests run with.
type ociRuntime struct {
	name, path string
	ownKernel  bool
}

// missing skips a test, or fails it if BERTH_TEST_REQUIRE is 1.
func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("BERTH_TEST_REQUIRE") == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

func findRuntime(t testing.TB, name string) ociRuntime {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "containers need root")
	}
	path := os.Getenv("BERTH_TEST_" + strings.ToUpper(name))
	if path == "" {
		path = name
	}
	path, err := exec.LookPath(path)
	if err != nil {
		missing(t, "%s is missing: %v", name, err)
	}
	path = test.Value(filepath.Abs(path))(t)
	if name == "crun" {
		mountHugetlb(t)
	}
	return ociRuntime{name: name, path: path, ownKernel: name == "runsc"}
}

// mountHugetlb mounts the hugetlb controller, without which crun refuses hosts with both versions
// of cgroups. It stays mounted after the test.
func mountHugetlb(t testing.TB) {
	controllers, err := os.ReadFile("/sys/fs/cgroup/unified/cgroup.controllers")
	if err != nil || !strings.Contains(string(controllers), "hugetlb") {
		return
	}
	const dir = "/sys/fs/cgroup/hugetlb"
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	if err := unix.Mount("cgroup", dir, "cgroup", 0, "hugetlb"); err != nil && !errors.Is(err, unix.EBUSY) {
		t.Fatal(err)
	}
}

// forEachRuntime runs a test with each of the named runtimes.
func forEachRuntime(t *testing.T, names []string, test func(t *testing.T, r ociRuntime)) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) { test(t, findRuntime(t, name)) })
	}
}

var (
	allRuntimes  = []string{"runc", "crun", "runsc"}
	hostRuntimes = []string{"runc", "crun"}
)

// binary builds berth-shim as it is released, or with the race detector if the tests have it too.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "berth-shim")
	const shim = "github.com/berth-cri/berth/cmd/berth-shim"
	build := exec.Command("go", "build", "-tags", "no_grpc", "-ldflags", "-s -w", "-o", path, shim)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if raceDetector {
		build = exec.Command("go", "build", "-race", "-tags", "no_grpc", "-o", path, shim)
	}
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// scratch is a directory for the files of all tests.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if scratch, err = os.MkdirTemp("", "berth-supervisor-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(scratch)
		return m.Run()
	}())
}

// rootfs is a root filesystem with busybox, shared read-only by all containers.
var rootfs = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(scratch, "rootfs")
	for _, d := range []string{"bin", "proc", "dev", "sys", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return "", err
		}
	}
	busybox := filepath.Join(dir, "bin", "busybox")
	b, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(busybox, b, 0o755); err != nil {
		return "", err
	}
	out, err := exec.Command(busybox, "--install", "-s", filepath.Join(dir, "bin")).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	// The installed links have the host's path of busybox as target.
	entries, err := os.ReadDir(filepath.Dir(busybox))
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		link := filepath.Join(dir, "bin", e.Name())
		if e.Name() == "busybox" {
			continue
		}
		if err := errors.Join(os.Remove(link), os.Symlink("busybox", link)); err != nil {
			return "", err
		}
	}
	return dir, nil
})
