package machine

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/berth-cri/berth/integration/testbed"
)

// Kind is a node as scripts/vm-image builds it.
type Kind string

// The kinds of nodes.
const (
	// Node is a Debian with AppArmor.
	Node Kind = "node"
	// SELinux is a node with an SELinux policy.
	SELinux Kind = "selinux"
	// ARM64 is a node with an ARM processor.
	ARM64 Kind = "arm64"
)

// architecture is the GOARCH of the node's agent.
func (k Kind) architecture() string {
	if k == ARM64 {
		return "arm64"
	}
	return runtime.GOARCH
}

func (k Kind) emulator() string {
	if k == ARM64 {
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

// image is a built node.
type image struct {
	kind Kind
	dir  string // of the image that scripts/vm-image built last
}

// directory is BERTH_TEST_VM, or the directory in which the Makefile builds images.
func directory() (string, error) {
	if dir := os.Getenv("BERTH_TEST_VM"); dir != "" {
		return dir, nil
	}
	root, err := testbed.Repository()
	return filepath.Join(root, "bin", "vm"), err
}

// find returns the image of a kind. If QEMU or the image is missing, it calls testbed.Missing.
func find(t testbed.T, kind Kind) image {
	t.Helper()
	testbed.NeedRoot(t)
	for _, tool := range []string{kind.emulator(), "qemu-img"} {
		if _, err := exec.LookPath(tool); err != nil {
			testbed.Missing(t, "%s is missing: run `make deps`", tool)
		}
	}
	dir, err := directory()
	testbed.Mustf(t, err, "look for the disks of virtual machines")
	dir, err = filepath.EvalSymlinks(filepath.Join(dir, string(kind)))
	if err != nil {
		testbed.Missing(t, "the disk of a node is missing: run `make vm-image`: %v", err)
	}
	return image{kind, dir}
}

func (i image) path(name string) string { return filepath.Join(i.dir, name) }

// builds has a function for each program and architecture, which builds it once.
var builds sync.Map

// Built builds a static program into bin/vm-tests; the empty architecture is the host's.
func Built(name, pkg, architecture string) (string, error) {
	once, _ := builds.LoadOrStore(name+architecture, sync.OnceValues(func() (string, error) {
		root, err := testbed.Repository()
		if err != nil {
			return "", err
		}
		dir := filepath.Join(root, "bin", "vm-tests", architecture)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
		path := filepath.Join(dir, name)
		// To another name first, because another test run may build the same program.
		fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
		command := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", fresh, pkg)
		command.Dir = root
		command.Env = append(os.Environ(), "CGO_ENABLED=0")
		if architecture != "" {
			command.Env = append(command.Env, "GOARCH="+architecture)
		}
		if out, err := command.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
		return path, os.Rename(fresh, path)
	}))
	return once.(func() (string, error))()
}

// key is a hash of the agent and of QEMU's version and arguments: a booted machine depends on
// these.
func (i image) key(agent string, o Options) (string, error) {
	program, err := os.ReadFile(agent)
	if err != nil {
		return "", err
	}
	version, err := exec.Command(i.kind.emulator(), "--version").Output()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	sum.Write(program)
	sum.Write(version)
	fmt.Fprint(sum, strings.Join(arguments(i, o, "run"), " "), bootedVersion)
	return hex.EncodeToString(sum.Sum(nil))[:12], nil
}

// arguments returns QEMU's arguments for a machine whose files are in dir.
func arguments(i image, o Options, dir string) []string {
	at := func(name string) string { return filepath.Join(dir, name) }
	machine, console, fs, serial, disk := []string{"-M", "q35"}, "ttyS0", "virtio-9p-pci", "virtio-serial-pci", "virtio-blk-pci"
	if i.kind == ARM64 {
		machine, console = []string{"-M", "virt"}, "ttyAMA0"
		fs, serial, disk = "virtio-9p-device", "virtio-serial-device", "virtio-blk-device"
	}
	// On a busy host the emulated timer would fail the kernel's timer check.
	kernel := "root=/dev/vda rw console=" + console + " quiet systemd.show_status=0 mitigations=off random.trust_cpu=on no_timer_check panic=-1 " +
		cmp.Or(o.Kernel, "apparmor=1 security=apparmor")
	return append(machine,
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", fmt.Sprint(cmp.Or(o.Memory, 4096)),
		"-global", "migration.store-global-state=off", // a restored machine runs at once
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none",
		"-serial", "file:"+at("console"),
		"-qmp", "unix:"+at("qmp")+",server=on,wait=off",
		"-kernel", i.path("vmlinuz"), "-initrd", i.path("initrd.img"), "-append", kernel,
		"-drive", "if=none,id=disk,format=qcow2,cache=unsafe,file="+at("disk.qcow2"),
		"-device", disk+",drive=disk",
		"-fsdev", "local,id=host,security_model=none,path="+at("share"),
		"-device", fs+",fsdev=host,mount_tag=host",
		"-device", serial,
		"-chardev", "socket,id=agent,server=on,wait=off,path="+at("agent"),
		"-device", "virtserialport,chardev=agent,name=berth",
	)
}
