package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/integration/shims"
)

// cgroupPrefix is the prefix of a pod's cgroup, which is next to the one of its spec:
// pkg/resourcecontrol/utils_linux.go, RenameCgroupPath. Kata's containers have no cgroups on the
// host; those of the imitation are below the pod's.
const cgroupPrefix = "kata_"

func machineCgroup(specPath string) (string, error) {
	if !strings.HasPrefix(specPath, "/") {
		return "", fmt.Errorf("cgroup %q: the imitation only supports cgroupfs", specPath)
	}
	return filepath.Join(filepath.Dir(specPath), cgroupPrefix+filepath.Base(specPath)), nil
}

// unified reports whether the host has cgroup v2.
func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// cgroupDirs returns the directories of a cgroup in every hierarchy.
func cgroupDirs(path string) ([]string, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "cgroup" && m.FSType != "cgroup2", false
	})
	if err != nil {
		return nil, err
	}
	seen, dirs := map[string]bool{}, []string{}
	for _, m := range mounts {
		if key := m.FSType + m.VFSOptions; !seen[key] {
			seen[key] = true
			dirs = append(dirs, filepath.Join(m.Mountpoint, path))
		}
	}
	return dirs, nil
}

func enterCgroup(path string) error {
	if unified() {
		path += "/machine" // the pod's cgroup has child cgroups, so it cannot have processes
	}
	dirs, err := cgroupDirs(path)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if cpus, err := os.ReadFile(filepath.Join(dir, "cpuset.cpus")); err == nil && len(bytes.TrimSpace(cpus)) == 0 && !unified() {
			continue // has no CPUs yet, so it cannot have processes
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroup removes a cgroup that is empty.
func removeCgroup(path string) {
	dirs, _ := cgroupDirs(path)
	for _, dir := range dirs {
		_ = unix.Rmdir(dir + "/machine")
		_ = unix.Rmdir(dir)
	}
}

// leaveCgroup moves this process to the parent, so that the cgroup can be removed: sandbox.go,
// resourceControllerDelete. With cgroup v2 this fails, because the parent cannot have processes.
func leaveCgroup(path string) {
	dirs, _ := cgroupDirs(filepath.Dir(path))
	for _, dir := range dirs {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
	}
}

// startMachine starts the imitation of the virtual machine: a process with memory in the cgroup of
// the pod. It is not a child of the shim, because QEMU makes itself a daemon
// (virtcontainers/qemu.go), and Kata's shim is not a subreaper
// (cmd/containerd-shim-kata-v2/main.go, NoSubreaper).
//
// The process has the shim's listening socket, as every program that a shim starts: the library
// leaves descriptor 3 open (containerd, pkg/shim/shim_unix.go, serveListener). So connections
// are not refused even after the shim is dead.
func startMachine(sandbox, bundle string, settings shims.Kata, listening *os.File) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
		return 0, err
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }()
	var said bytes.Buffer
	command := exec.Command(self, "boot", "-sandbox", sandbox, "-bundle", bundle, "-m", strconv.Itoa(settings.Memory),
		"-network="+strconv.FormatBool(settings.Network))
	command.Stdout, command.Stderr = &said, &said
	command.ExtraFiles = []*os.File{listening}
	exits, err := reaper.Default.Start(command)
	if err != nil {
		return 0, err
	}
	status, err := reaper.Default.Wait(command, exits)
	pid, perr := strconv.Atoi(strings.TrimSpace(said.String()))
	if err != nil || status != 0 || perr != nil {
		return 0, fmt.Errorf("the machine does not start: %s: %w", said.String(), errors.Join(err, perr))
	}
	return pid, nil
}

// boot starts the machine, prints its pid, and exits, so that the machine is an orphan.
func boot(args []string) error {
	flags := flag.NewFlagSet("boot", flag.ContinueOnError)
	sandbox, bundle := flags.String("sandbox", "", ""), flags.String("bundle", "", "")
	megabytes, network := flags.Int("m", 0, ""), flags.Bool("network", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ready, told, err := os.Pipe()
	if err != nil {
		return err
	}
	command := exec.Command(self, "machine", "-name", "sandbox-"+*sandbox, "-bundle", *bundle, "-m", strconv.Itoa(*megabytes))
	command.Args[0] = "qemu-system-imitation"
	command.Stdout = told
	command.ExtraFiles = []*os.File{os.NewFile(socketDescriptor, "socket")}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if *network {
		command.SysProcAttr.Cloneflags = unix.CLONE_NEWNET
	}
	if err := command.Start(); err != nil {
		return err
	}
	if err := told.Close(); err != nil {
		return err
	}
	if n, err := ready.Read(make([]byte, 1)); n != 1 {
		return fmt.Errorf("the machine has exited: %w", err)
	}
	_, err = fmt.Fprintln(os.Stdout, command.Process.Pid)
	return err
}

// machine uses memory until it is killed.
func machine(args []string) error {
	flags := flag.NewFlagSet("machine", flag.ContinueOnError)
	flags.String("name", "", "")
	flags.String("bundle", "", "")
	megabytes := flags.Int("m", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	memory := make([]byte, *megabytes<<20)
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	if _, err := os.Stdout.Write([]byte{1}); err != nil {
		return err
	}
	if err := os.Stdout.Close(); err != nil {
		return err
	}
	for {
		time.Sleep(time.Hour)
		memory[0]++ // keeps the memory in use
	}
}

// socketDescriptor is the descriptor of a shim's listening socket.
const socketDescriptor = 3

// awaitEnd waits until a process, which need not be a child, has exited.
func awaitEnd(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has exited
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
