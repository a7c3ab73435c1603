package testbed

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Parts are programs of other projects that the tests need. An environment variable sets the path
// of each; without it, Part searches the repository's bin and then the PATH.
const (
	// Runc is BERTH_TEST_RUNC.
	Runc = "runc"
	// RuncOld is BERTH_TEST_RUNC_OLD, an earlier release of runc.
	RuncOld = "runc-old"
	// Crun is BERTH_TEST_CRUN.
	Crun = "crun"
	// Runsc is BERTH_TEST_RUNSC, and RunscOther is BERTH_TEST_RUNSC_OTHER, another release of
	// runsc.
	Runsc      = "runsc"
	RunscOther = "runsc-other"
	// RuncShim is BERTH_TEST_SHIM.
	RuncShim = "containerd-shim-runc-v2"
	// Containerd is BERTH_TEST_CONTAINERD.
	Containerd = "containerd"
	// Ctr is BERTH_TEST_CTR, containerd's client.
	Ctr = "ctr"
	// Stargz is BERTH_TEST_STARGZ, the snapshotter of integration/runtimes/stargz.
	Stargz = "stargz"
	// CRIO is BERTH_TEST_CRIO, and Pinns, which CRI-O runs, is BERTH_TEST_PINNS.
	CRIO  = "crio"
	Pinns = "pinns"
	// CoreDNS is BERTH_TEST_COREDNS.
	CoreDNS = "coredns"
	// Conmon is BERTH_TEST_CONMON, the monitor of CRI-O's containers.
	Conmon = "conmon"
	// CRIU is BERTH_TEST_CRIU.
	CRIU = "criu"
	// BusyboxBinary is BERTH_TEST_BUSYBOX, and must be static.
	BusyboxBinary = "busybox"
)

// Parts of a Kubernetes cluster. They are built together, so one variable, BERTH_TEST_KUBERNETES,
// is the directory of all of them.
const (
	Etcd                  = "etcd"
	KubeAPIServer         = "kube-apiserver"
	KubeControllerManager = "kube-controller-manager"
	KubeScheduler         = "kube-scheduler"
	KubeProxy             = "kube-proxy"
	Kubeadm               = "kubeadm"
	Kubectl               = "kubectl"
	Kubelet               = "kubelet"
	NFDMaster             = "nfd-master"
	NFDWorker             = "nfd-worker"
)

const kubernetesVariable = "BERTH_TEST_KUBERNETES"

var partVariables = map[string]string{
	Runc:          "BERTH_TEST_RUNC",
	RuncOld:       "BERTH_TEST_RUNC_OLD",
	Crun:          "BERTH_TEST_CRUN",
	Runsc:         "BERTH_TEST_RUNSC",
	RunscOther:    "BERTH_TEST_RUNSC_OTHER",
	RuncShim:      "BERTH_TEST_SHIM",
	Containerd:    "BERTH_TEST_CONTAINERD",
	Ctr:           "BERTH_TEST_CTR",
	Stargz:        "BERTH_TEST_STARGZ",
	CRIO:          "BERTH_TEST_CRIO",
	Pinns:         "BERTH_TEST_PINNS",
	CoreDNS:       "BERTH_TEST_COREDNS",
	Conmon:        "BERTH_TEST_CONMON",
	CRIU:          "BERTH_TEST_CRIU",
	BusyboxBinary: "BERTH_TEST_BUSYBOX",
}

// Part returns the absolute path of a part. If the part is missing, the test is skipped, or fails
// if BERTH_TEST_REQUIRE is set.
func Part(t T, name string) string {
	t.Helper()
	path, err := FindPart(name)
	if err != nil {
		Missing(t, "%v", err)
	}
	return path
}

// FindPart is Part, but returns an error if the part is missing.
func FindPart(name string) (string, error) {
	variable, how := partVariables[name], "make deps runtimes peers"
	path := os.Getenv(variable)
	if variable == "" {
		variable, how = kubernetesVariable, "make kubernetes"
		if dir := os.Getenv(variable); dir != "" {
			if err := awaitBuild(dir); err != nil {
				return "", err
			}
			path = filepath.Join(dir, name)
		}
	}
	if path != "" {
		if _, err := exec.LookPath(path); err != nil {
			return "", fmt.Errorf("the path in %s is not an executable: %w", variable, err)
		}
		return path, nil
	}
	if root, err := Repository(); err == nil {
		if variable == kubernetesVariable {
			if err := awaitBuild(filepath.Join(root, "bin")); err != nil {
				return "", err
			}
		}
		path := filepath.Join(root, "bin", name)
		if _, err := exec.LookPath(path); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is missing: run `%s`, or set %s", name, how, variable)
	}
	return filepath.Abs(path)
}

// awaitBuild waits while scripts/kubernetes builds in a directory.
func awaitBuild(dir string) error {
	lock, err := os.Open(filepath.Join(dir, ".kubernetes.lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close() // which also unlocks it
	for {
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Missing skips the test with this message, or fails it if BERTH_TEST_REQUIRE is set.
func Missing(t T, format string, args ...any) {
	t.Helper()
	if os.Getenv("BERTH_TEST_REQUIRE") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// NeedRoot skips or fails a test that is not run as root.
func NeedRoot(t T) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "needs root: it creates real namespaces, mounts and networks")
	}
}

// NeedNetwork skips or fails a test on a host without CNI plugins, iproute2, iptables or
// nftables.
func NeedNetwork(t T) {
	t.Helper()
	NeedRoot(t)
	if _, err := CNIBinDir(); err != nil {
		Missing(t, "%v", err)
	}
	for _, command := range []string{"ip", "iptables", "iptables-save", "nft"} {
		if _, err := exec.LookPath(command); err != nil {
			Missing(t, "%s is missing: run `make deps`", command)
		}
	}
}

// CNIBinDir returns the directory of the CNI plugins.
func CNIBinDir() (string, error) {
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"} {
		if _, err := exec.LookPath(filepath.Join(dir, "bridge")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the CNI plugins are missing: run `make deps`")
}

// staticBusybox returns the path of a statically linked busybox.
func staticBusybox(t T) string {
	t.Helper()
	path := Part(t, BusyboxBinary)
	file, err := elf.Open(path)
	Mustf(t, err, "read busybox")
	defer file.Close()
	for _, program := range file.Progs {
		if program.Type == elf.PT_INTERP {
			Missing(t, "%s is not static: run `make deps`, or set BERTH_TEST_BUSYBOX", path)
		}
	}
	return path
}

// Built returns the directory of berth's binaries: BERTH_TEST_BIN, which the Makefile sets after it
// has built them. Without that variable, or with tags, Built builds them, once per process, into a
// directory for these tags.
func Built(t T, tags ...string) string {
	t.Helper()
	if dir := os.Getenv("BERTH_TEST_BIN"); dir != "" && len(tags) == 0 {
		return dir
	}
	tag := strings.Join(tags, ",")
	once, _ := builds.LoadOrStore(tag, sync.OnceValues(func() (string, error) { return build(tag) }))
	dir, err := once.(func() (string, error))()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return dir
}

var builds sync.Map // tags → func() (string, error)

func build(tags string) (string, error) {
	dir := "bin"
	if tags != "" {
		dir = filepath.Join(dir, "tags-"+tags)
	}
	if _, err := buildInto(dir, tags, "./cmd/berth", "./cmd/berth-pause", "./contrib/cluster/cmd/..."); err != nil {
		return "", err
	}
	return buildInto(dir, tags+",no_grpc", "./cmd/berth-shim")
}

// buildInto builds packages as the Makefile does, into a directory of the repository, and returns
// the directory.
func buildInto(below, tags string, packages ...string) (string, error) {
	root, err := Repository()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, below)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// In a new directory, because the tests of another package may run the old binaries.
	fresh, err := os.MkdirTemp(dir, ".build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	command := exec.Command("go", append([]string{"build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace," + tags, "-o", fresh + "/"}, packages...)...)
	command.Dir = root
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", strings.Join(packages, " "), err, out)
	}
	built, err := os.ReadDir(fresh)
	if err != nil {
		return "", err
	}
	for _, binary := range built {
		if err := os.Rename(filepath.Join(fresh, binary.Name()), filepath.Join(dir, binary.Name())); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// Repository returns the root of the source tree that the process runs in.
var Repository = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if module, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil &&
			strings.HasPrefix(string(module), "module github.com/berth-cri/berth\n") {
			return dir, nil
		}
	}
	return "", fmt.Errorf("not inside the source tree of berth: set BERTH_TEST_BIN and the other BERTH_TEST variables")
})

// CompanionsOfRunsc returns the files in dir that a release of gVisor needs besides runsc.
func CompanionsOfRunsc(t T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "gvisor-bin", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no companions of runsc: %v", dir, err)
	}
	return files
}

// InstallRunsc copies a release, the part Runsc or RunscOther, to a directory, and returns the path
// of runsc there. It replaces files by a rename, as a package manager does.
func InstallRunsc(t T, part, dir string) string {
	t.Helper()
	from := filepath.Dir(Part(t, part))
	for _, file := range append(CompanionsOfRunsc(t, from), filepath.Join(from, Runsc)) {
		to := filepath.Join(dir, file[len(from):])
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to+".new", text, 0o755) //nolint:gosec // it is a program
		}
		if err == nil {
			err = os.Rename(to+".new", to)
		}
		Mustf(t, err, "install runsc")
	}
	return filepath.Join(dir, Runsc)
}
