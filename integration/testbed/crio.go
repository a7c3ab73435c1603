package testbed

import (
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// CRIOOptions configure a CRI-O.
type CRIOOptions struct {
	// Runtimes are its handlers: name → path of the OCI runtime.
	Runtimes map[string]string
	// DefaultRuntime is one of them.
	DefaultRuntime string
	// CNI is the pods' network.
	CNI *CNI
	// Registry serves the pods' images and the sandbox image, which is pushed to it.
	Registry *Registry
}

// StartCRIO starts a CRI-O. Its configuration has what it needs on a test machine, and defaults
// otherwise. Part finds its programs.
func StartCRIO(t T, options CRIOOptions) *Daemon {
	t.Helper()
	binary := Part(t, CRIO)
	d := newDaemon(t, options.CNI)
	d.binary = binary
	// Configuration of a CRI-O of this machine must not be read.
	empty := filepath.Join(d.Dir, "empty")
	Mustf(t, os.Mkdir(empty, 0o700), "make CRI-O's directories")
	d.arguments = []string{"--config", d.ConfigFile, "--config-dir", empty}
	d.environment = []string{"CONTAINERS_REGISTRIES_CONF=" + filepath.Join(d.Dir, "registries.conf"), "CONTAINERS_STORAGE_CONF=" + filepath.Join(d.Dir, "storage.conf")}
	pause := options.Registry.Push(t, "testbed/pause:1", Busybox(t, WithConfig(func(c *v1.Config) {
		c.Entrypoint, c.Cmd = []string{"sleep", "2147483647"}, nil
	})))
	under := func(name string) string { return filepath.Join(d.Dir, name) }
	config := fmt.Sprintf(`[crio]
root = %q
runroot = %q
storage_driver = "overlay"
log_dir = %q
version_file = %q
clean_shutdown_file = %q

[crio.api]
listen = %q

[crio.runtime]
conmon = %q
conmon_cgroup = "pod"
cgroup_manager = "cgroupfs"
pinns_path = %q
namespaces_dir = %q
container_exits_dir = %q
container_attach_socket_dir = %q
apparmor_profile = "unconfined"
hooks_dir = []
default_runtime = %q

[crio.image]
pause_image = %q
pause_command = ""
signature_policy = %q
insecure_registries = [%q]

[crio.network]
network_dir = %q
plugin_dirs = [%q]

[crio.nri]
enable_nri = false
`, d.Root, d.State, under("crio-logs"), under("version"), under("clean.shutdown"), d.Socket, Part(t, Conmon), Part(t, Pinns), under("namespaces"),
		under("exits"), under("attach"), options.DefaultRuntime, pause, under("policy.json"), options.Registry.Host, options.CNI.ConfDir, options.CNI.BinDir)
	for name, path := range options.Runtimes {
		config += fmt.Sprintf("\n[crio.runtime.runtimes.%s]\nruntime_path = %q\nruntime_root = %q\nmonitor_cgroup = \"pod\"\n", name, path, filepath.Join(d.State, "runtimes", name))
	}
	for path, text := range map[string]string{
		d.ConfigFile:             config,
		under("policy.json"):     `{"default":[{"type":"insecureAcceptAnything"}]}`,
		under("registries.conf"): "",
		under("storage.conf"):    fmt.Sprintf("[storage]\ndriver = \"overlay\"\ngraphroot = %q\nrunroot = %q\n", d.Root, d.State),
	} {
		Mustf(t, os.WriteFile(path, []byte(text), 0o600), "write CRI-O's configuration")
	}
	d.Start(t)
	return d
}
