package testbed

import (
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// ContainerdOptions configure a containerd.
type ContainerdOptions struct {
	// Runtimes are handlers of its runc shim: name → path of the OCI runtime.
	Runtimes map[string]string
	// DefaultRuntime is one of them.
	DefaultRuntime string
	// CNI is the pods' network.
	CNI *CNI
	// Registry serves the sandbox image, which is pushed to it.
	Registry *Registry
	// SystemdCgroup has systemd create the pods' cgroups. Without systemd, containerd starts but
	// cannot run a pod.
	SystemdCgroup bool
	// Pause is the command of the sandbox process; the default is a long sleep.
	Pause []string
}

// ContainerdRuntimeRoot is the state directory of a handler's OCI runtime, if the daemon is a
// containerd.
func (d *Daemon) ContainerdRuntimeRoot(handler string) string {
	return filepath.Join(d.State, "runtimes", handler, "k8s.io")
}

// StartContainerd starts containerd, which berth is compared with. Its configuration has what it
// needs on a test machine, and defaults otherwise. Part finds the daemon and its shim.
func StartContainerd(t T, options ContainerdOptions) *Daemon {
	t.Helper()
	binary, shim := Part(t, Containerd), Part(t, RuncShim)
	d := newDaemon(t, options.CNI)
	d.binary = binary
	d.arguments = []string{"--config", d.ConfigFile}
	// containerd looks for its shim in the PATH.
	d.environment = []string{"PATH=" + filepath.Dir(shim) + string(os.PathListSeparator) + os.Getenv("PATH")}
	command := options.Pause
	if len(command) == 0 {
		command = []string{"sleep", "2147483647"}
	}
	pause := options.Registry.Push(t, "testbed/pause:1", Busybox(t, WithConfig(func(c *v1.Config) {
		c.Entrypoint, c.Cmd = command, nil
	})))
	config := fmt.Sprintf(`version = 3
root = %q
state = %q

[grpc]
address = %q

[ttrpc]
address = %q

[plugins."io.containerd.nri.v1.nri"]
socket_path = %q

[plugins."io.containerd.internal.v1.opt"]
path = %q

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = %q

[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
disable_hugetlb_controller = false
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [%q]
conf_dir = %q

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = %q
`, d.Root, d.State, d.Socket, d.Socket+".ttrpc", filepath.Join(d.Dir, "nri.sock"), filepath.Join(d.Dir, "opt"), pause, options.CNI.BinDir, options.CNI.ConfDir, options.DefaultRuntime)
	for name, path := range options.Runtimes {
		const table = `plugins."io.containerd.cri.v1.runtime".containerd.runtimes.`
		config += fmt.Sprintf("\n[%s%s]\nruntime_type = \"io.containerd.runc.v2\"\n", table, name)
		config += fmt.Sprintf("[%s%s.options]\nBinaryName = %q\nRoot = %q\nSystemdCgroup = %t\n",
			table, name, path, filepath.Dir(d.ContainerdRuntimeRoot(name)), options.SystemdCgroup)
	}
	Mustf(t, os.WriteFile(d.ConfigFile, []byte(config), 0o600), "write containerd's configuration")
	d.Start(t)
	return d
}
