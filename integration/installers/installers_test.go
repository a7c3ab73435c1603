package installers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// bed is a berth that imports handlers from the files of installers.
type bed struct {
	*testbed.Bed
	// crio and containerd are the directories of drop-ins for the two daemons.
	crio, containerd string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	dir := t.TempDir()
	b := &bed{crio: filepath.Join(dir, "crio.conf.d"), containerd: filepath.Join(dir, "containerd.conf.d")}
	b.toolkit(t, dir)
	b.kata(t)
	b.Bed = testbed.StartBed(t, "installers/busybox:1", testbed.Options{
		Runtimes: map[string]string{"crun": testbed.Part(t, testbed.Crun)},
		Config:   fmt.Sprintf("[import]\ncrio = [%q]\ncontainerd = [%q]\n[server]\nruntime_name = \"cri-o\"\n", b.crio, b.containerd),
	})
	return b
}

// toolkit installs what NVIDIA's toolkit installs for containerd: an OCI runtime that calls another
// one, and a drop-in with a handler for it.
func (b *bed) toolkit(t *testing.T, dir string) {
	t.Helper()
	program := filepath.Join(dir, "toolkit", "nvidia-container-runtime")
	write(t, program, "#!/bin/sh\nexec "+testbed.Part(t, testbed.Crun)+" \"$@\"\n", 0o755)
	write(t, filepath.Join(b.containerd, "99-nvidia.toml"), `version = 2

[plugins]

  [plugins."io.containerd.grpc.v1.cri"]

    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "nvidia"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes]

        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
          privileged_without_host_devices = false
          runtime_engine = ""
          runtime_root = ""
          runtime_type = "io.containerd.runc.v2"

          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
            BinaryName = "`+program+`"
`, 0o644)
}

// kata writes what Kata's installer writes for CRI-O. The shim that it names does not exist.
func (b *bed) kata(t *testing.T) {
	t.Helper()
	write(t, filepath.Join(b.crio, "99-kata-deploy"), `[crio]
  storage_option = [
	"overlay.skip_mount_home=true",
  ]

[crio.runtime.runtimes.kata-qemu]
	runtime_path = "/nowhere/kata/bin/containerd-shim-kata-v2"
	runtime_type = "vm"
	runtime_root = "/run/vc"
	runtime_config_path = "/nowhere/kata/configuration-qemu.toml"
	privileged_without_host_devices = true
`, 0o644)
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	testbed.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testbed.Must(t, os.WriteFile(path, []byte(text), mode))
}

// TestInstallersFindTheirWay uses a real daemon as the installers of runtimes do.
func TestInstallersFindTheirWay(t *testing.T) {
	testbed.NeedRoot(t)
	testbed.NeedNetwork(t)
	b := newBed(t)

	version, err := b.Client.Version(t.Context(), &runtimeapi.VersionRequest{})
	if err != nil || version.GetRuntimeName() != "cri-o" {
		t.Errorf("the runtime's name is %q: %v", version.GetRuntimeName(), err)
	}
	// Kata's installer reads this list, which must not have a handler that cannot run pods.
	if got := b.handlers(t); !slices.Equal(got, []string{"", "crun", "nvidia"}) {
		t.Errorf("the handlers are %q, want crun and nvidia", got)
	}
	_, err = b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{
		Config: b.Client.SandboxConfig(""), RuntimeHandler: "kata-qemu",
	})
	for _, want := range []string{"kata-qemu", "99-kata-deploy:", "/nowhere/kata"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a pod of kata-qemu is refused with %v, which lacks %q", err, want)
		}
	}
	pod := b.Client.RunPod(t, testbed.PodSpec{Handler: "nvidia", Image: b.Image, Command: []string{"sleep", "3600"}})

	t.Run("SIGHUP", func(t *testing.T) { b.hangUp(t, pod) })
}

func (b *bed) handlers(t *testing.T) []string {
	t.Helper()
	status, err := b.Client.Status(t.Context(), &runtimeapi.StatusRequest{})
	testbed.Must(t, err)
	var names []string
	for _, h := range status.GetRuntimeHandlers() {
		names = append(names, h.GetName())
	}
	slices.Sort(names)
	return names
}

// hangUp sends SIGHUP to the process that the toolkit's method finds, which must be the daemon.
func (b *bed) hangUp(t *testing.T, pod *testbed.Pod) {
	pid := b.PID()
	write(t, filepath.Join(b.crio, "99-nvidia.toml"), `[crio.runtime.runtimes.nvidia-cdi]
  runtime_path = "`+testbed.Part(t, testbed.Crun)+`"
  runtime_type = "oci"
`, 0o644)
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		got, err := peerByMessage(ctx, b.Socket, i%2 == 0)
		cancel()
		if err != nil || got != pid {
			t.Fatalf("the toolkit's method finds process %d, the daemon is %d: %v", got, pid, err)
		}
		testbed.Must(t, syscall.Kill(got, unix.SIGHUP))
	}
	b.alive(t, pod)
	if !b.Running() || b.PID() != pid {
		t.Error("SIGHUP ended the daemon")
	}
	b.eventually(t, "nvidia-cdi")
	b.Client.RunPod(t, testbed.PodSpec{Handler: "nvidia-cdi", Image: b.Image, Command: []string{"sleep", "3600"}})
}

func (b *bed) eventually(t *testing.T, handler string) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		if got := b.handlers(t); !slices.Contains(got, handler) {
			return fmt.Errorf("the handlers are %q", got)
		}
		return nil
	})
}

// alive fails unless the daemon serves and the pod runs.
func (b *bed) alive(t *testing.T, pod *testbed.Pod) {
	t.Helper()
	resp, err := b.Client.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: pod.Container.ID, Cmd: []string{"echo", "well"}, Timeout: 60})
	if err != nil || string(resp.GetStdout()) != "well\n" {
		t.Errorf("exec in the pod: %q, %v", resp.GetStdout(), err)
	}
}
