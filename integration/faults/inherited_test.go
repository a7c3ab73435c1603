package faults

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/shims"
	"github.com/berth-cri/berth/integration/testbed"
)

// TestSecretsOfTheEnvironment gives the daemon a password in its environment. Neither the
// processes of a pod nor calls of a runtime or a shim may have the password.
func TestSecretsOfTheEnvironment(t *testing.T) {
	t.Parallel()
	secret := fmt.Sprintf("hunter%d", os.Getpid())
	dir := t.TempDir()
	seen := filepath.Join(dir, "environments")
	wrapped := map[string]string{}
	for _, name := range []string{testbed.Runc, testbed.Crun, testbed.Runsc, testbed.RuncShim} {
		wrapped[name] = filepath.Join(dir, name)
		script := fmt.Sprintf("#!/bin/sh\n{ echo \"%s $*\"; env; } >>%s\nexec %s \"$@\"\n", name, seen, testbed.Part(t, name))
		testbed.Must(t, os.WriteFile(wrapped[name], []byte(script), 0o755))
	}
	kata := testbed.NewKata(t, shims.Kata{Memory: 8})
	b := newBed(t, testbed.Options{
		DefaultRuntime: "runc",
		Runtimes:       map[string]string{"runc": wrapped[testbed.Runc], "crun": wrapped[testbed.Crun], "runsc": wrapped[testbed.Runsc]},
		Config: kata.TOML("kata", "") + fmt.Sprintf("[runtimes.shim]\nruntime_type = \"shim\"\nruntime_path = %q\n[runtimes.shim.options]\nBinaryName = %q\n",
			wrapped[testbed.RuncShim], wrapped[testbed.Runc]),
		Environment: []string{"HTTPS_PROXY=http://user:" + secret + "@127.0.0.1:1", "NO_PROXY=*", "REGISTRY_TOKEN=" + secret, "LC_BERTH_TEST=kept"},
	})
	for _, handler := range []string{"runc", "crun", "runsc", "shim", "kata"} {
		t.Run(handler, func(t *testing.T) {
			p := b.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: b.Image, Command: []string{"sleep", "3600"}})
			p.Container.Exec(t, "true")
			for pid := range withEnvironment(t, secret) {
				if pid != b.PID() {
					line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
					t.Errorf("process %d has the secret: %q", pid, line)
				}
			}
			if !withEnvironment(t, secret)[b.PID()] {
				t.Error("the daemon does not have the secret: the test is broken")
			}
			p.Remove(t)
		})
	}
	said, err := os.ReadFile(seen)
	testbed.Must(t, err)
	call, calls := "", map[string]int{}
	for line := range strings.Lines(string(said)) {
		name, _, _ := strings.Cut(line, " ")
		if wrapped[name] != "" {
			call = strings.TrimSpace(line)
		}
		if strings.Contains(line, secret) {
			t.Errorf("%s was called with the secret: %s", call, line)
		}
		if strings.TrimSpace(line) == "LC_BERTH_TEST=kept" {
			name, _, _ := strings.Cut(call, " ")
			calls[name]++
		}
	}
	for name := range wrapped {
		if calls[name] == 0 {
			t.Errorf("%s was never called with LC_BERTH_TEST, which it must have", name)
		}
	}
}

// withEnvironment returns the processes that were started with some text in a variable.
func withEnvironment(t *testing.T, text string) map[int]bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	testbed.Must(t, err)
	found := map[int]bool{}
	for _, path := range files {
		if environ, err := os.ReadFile(path); err == nil && bytes.Contains(environ, []byte(text)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			found[pid] = true
		}
	}
	return found
}

// TestOOMScores sets the oom_score_adj of the daemon. Its supervisors have a score one higher.
// Containers and their execs have the score of their configuration, or 0 if it has none.
func TestOOMScores(t *testing.T) {
	t.Parallel()
	const daemon = 123
	b := newBed(t, testbed.Options{
		DefaultRuntime: "runc",
		Runtimes:       map[string]string{"runc": testbed.Part(t, testbed.Runc), "crun": testbed.Part(t, testbed.Crun)},
	})
	testbed.Must(t, os.WriteFile(filepath.Join("/proc", strconv.Itoa(b.PID()), "oom_score_adj"), []byte(strconv.Itoa(daemon)), 0))
	for _, handler := range []string{"runc", "crun"} {
		for name, c := range map[string]struct {
			resources *runtimeapi.LinuxContainerResources
			want      int
		}{
			"with a score":      {&runtimeapi.LinuxContainerResources{OomScoreAdj: 321}, 321},
			"without a score":   {&runtimeapi.LinuxContainerResources{CpuShares: 2}, 0},
			"without resources": {nil, 0},
		} {
			t.Run(handler+" "+name, func(t *testing.T) {
				p := b.Client.RunPod(t, testbed.PodSpec{
					Handler: handler, Image: b.Image, Command: []string{"sleep", "3600"},
					Container: func(config *runtimeapi.ContainerConfig) { config.Linux.Resources = c.resources },
				})
				for _, process := range []string{"1", "self"} {
					if got := strings.TrimSpace(p.Container.Exec(t, "cat", "/proc/"+process+"/oom_score_adj")); got != strconv.Itoa(c.want) {
						t.Errorf("the score of process %s is %s, want %d", process, got, c.want)
					}
				}
				p.Remove(t)
			})
		}
	}
	supervisors := b.supervisors(t)
	testbed.Same(t, len(supervisors), 2, "the number of supervisors is")
	for _, pid := range supervisors {
		if got, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "oom_score_adj")); strings.TrimSpace(string(got)) != strconv.Itoa(daemon+1) {
			t.Errorf("a supervisor's score is %q, %v, want %d", got, err, daemon+1)
		}
	}
}

// TestCoresOfPods sets the core limit of the daemon. Containers and their execs have this limit,
// although the daemon and its supervisors do not write cores.
func TestCoresOfPods(t *testing.T) {
	t.Parallel()
	const limit = 24_112 * 512 // bytes; shells count in blocks of 512
	b := newBed(t, testbed.Options{
		DefaultRuntime: "runc",
		Runtimes:       map[string]string{"runc": testbed.Part(t, testbed.Runc), "crun": testbed.Part(t, testbed.Crun)},
	})
	var cores unix.Rlimit
	testbed.Must(t, unix.Prlimit(b.PID(), unix.RLIMIT_CORE, nil, &cores))
	if cores.Max < limit {
		testbed.Missing(t, "the hard limit of cores is %d", cores.Max)
	}
	cores.Cur = limit
	testbed.Must(t, unix.Prlimit(b.PID(), unix.RLIMIT_CORE, &cores, nil))
	for _, handler := range []string{"runc", "crun"} {
		for name, users := range map[string]*runtimeapi.UserNamespace{
			"without a user namespace": nil,
			"with a user namespace":    userNS(),
		} {
			t.Run(handler+" "+name, func(t *testing.T) {
				p := b.Client.RunPod(t, testbed.PodSpec{
					Handler: handler, Image: b.Image, Command: []string{"sh", "-c", "ulimit -c; exec sleep 3600"},
					Sandbox:   func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = users },
					Container: func(c *runtimeapi.ContainerConfig) { c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = users },
				})
				want := strconv.Itoa(limit / 512)
				p.Container.WaitLog(t, want)
				testbed.Same(t, strings.TrimSpace(p.Container.Exec(t, "sh", "-c", "ulimit -c")), want, "the core limit of an exec is")
				p.Remove(t)
			})
		}
	}
}

// TestPodsArePrivate: an unprivileged user of the host cannot reach the files of a
// pod. Otherwise a setuid program in a pod would make the user root.
func TestPodsArePrivate(t *testing.T) {
	b := newBed(t, testbed.Options{})
	pods := map[string]*testbed.Pod{
		"ordinary":       b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}),
		"user namespace": b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}, Sandbox: withUserNS, Container: usersOfPod}),
	}
	for name, pod := range pods {
		pod.Container.Exec(t, "chmod", "4755", "/bin/busybox")
		container, sandbox := filepath.Join(b.State, "containers", pod.Container.ID), filepath.Join(b.State, "sandboxes", pod.ID)
		upper := filepath.Join(b.Root, "images", "rootfs", "overlayfs", pod.Container.ID, "fs")
		for _, path := range []string{filepath.Join(container, "rootfs", "bin", "busybox"), filepath.Join(upper, "bin", "busybox"), filepath.Join(sandbox, "shm")} {
			testbed.Mustf(t, exec.Command("/usr/bin/stat", path).Run(), "%s: stat %s as root", name, path)
		}
	}
	for name, pod := range pods {
		program := filepath.Join(b.State, "containers", pod.Container.ID, "rootfs", "bin", "busybox")
		upper := filepath.Join(b.Root, "images", "rootfs", "overlayfs", pod.Container.ID, "fs", "bin", "busybox")
		for _, path := range []string{program, upper} {
			if out, err := asNobody(path, "id", "-u"); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%s: an unprivileged user can run %s: %v, %s", name, path, err, out)
			}
		}
		mark := filepath.Join(b.State, "sandboxes", pod.ID, "shm", "mark")
		if out, err := asNobody("/usr/bin/touch", mark); err == nil {
			t.Errorf("%s: an unprivileged user can write to the pod's /dev/shm: %s", name, out)
		}
	}
	ordinary := filepath.Join(b.State, "containers", pods["ordinary"].Container.ID)
	testbed.Must(t, os.Chmod(ordinary, 0o711))
	if out, err := asNobody(filepath.Join(ordinary, "rootfs", "bin", "busybox"), "true"); err != nil {
		t.Fatalf("an unprivileged user cannot run the program even in an open directory: the test is broken: %v, %s", err, out)
	}
	testbed.Must(t, os.Chmod(ordinary, 0o700))
	b.Restart(t)
	pods["user namespace"].RunContainer(t, "second", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}, Sandbox: withUserNS, Container: usersOfPod})
	for _, pod := range pods {
		pod.Remove(t)
	}
}

// usersOfPod gives a container the user namespace of a pod that was made with withUserNS, as a
// kubelet does.
func usersOfPod(c *runtimeapi.ContainerConfig) {
	pod := &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: c.Linux.SecurityContext.NamespaceOptions,
	}}}
	withUserNS(pod)
}

// asNobody runs a program on the host as an unprivileged user.
func asNobody(program string, args ...string) ([]byte, error) {
	c := exec.Command(program, args...)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Pdeathsig: unix.SIGKILL}
	return c.CombinedOutput()
}
