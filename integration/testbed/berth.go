package testbed

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Options configure a berth. The zero value is a berth without handlers, network or registries.
type Options struct {
	// Runtimes are handlers: name → path of the runtime or shim.
	Runtimes map[string]string
	// DefaultRuntime is the default handler; empty is the first of Runtimes by name.
	DefaultRuntime string
	// CNI is the pods' network.
	CNI *CNI
	// Registries get their entry in the hosts directory.
	Registries []*Registry
	// Config is the TOML of a drop-in, which overrides what the testbed writes.
	Config string
	// Environment has variables for berth, KEY=value, in addition to those of this process.
	Environment []string
	// Tags are build tags for the berth binary, such as berth_failpoints.
	Tags []string
	// NoConfig starts berth without a configuration file: flags set its paths, and it serves the
	// runtimes that it finds. Runtimes and Config must be empty.
	NoConfig bool
}

// Berth is a real `berth serve` process. Its drop-ins are in conf.d beside
// ConfigFile.
type Berth struct {
	*Daemon

	// HostsDir has the hosts.toml files.
	HostsDir string
	// Bin has berth, berth-shim and berth-pause.
	Bin string

	options Options
}

// StartBerth starts berth and waits until it answers. A cleanup removes its pods, stops it, and
// removes what it left.
func StartBerth(t T, options Options) *Berth {
	t.Helper()
	bin := Built(t, options.Tags...)
	daemon := newDaemon(t, options.CNI)
	b := &Berth{Daemon: daemon, HostsDir: filepath.Join(daemon.Dir, "hosts.d"), Bin: bin, options: options}
	for _, registry := range options.Registries {
		registry.WriteHosts(t, b.HostsDir)
	}
	b.writeConfig(t)
	b.binary = filepath.Join(bin, "berth")
	b.arguments = b.serveArguments()
	b.environment = options.Environment
	b.Start(t)
	return b
}

func (b *Berth) serveArguments() []string {
	// The drop-ins of this host must not be read.
	arguments := []string{
		"serve",
		"--drop-in-dir", filepath.Join(b.Dir, "conf.d"),
		"--vendor-dir", filepath.Join(b.Dir, "vendor.d"),
		// On the command line, because berth keeps its last accepted configuration in this
		// directory.
		"--set", "engine.root=" + b.Root,
	}
	if !b.options.NoConfig {
		return append(arguments, "--config", b.ConfigFile)
	}
	arguments = append(arguments,
		"--socket", b.Socket,
		"--set", "engine.state="+b.State,
		"--set", "engine.cgroup_driver="+cgroupDriver(),
		"--set", "registry.hosts_dir="+b.HostsDir,
		"--set", "nri.plugin_path="+filepath.Join(b.Dir, "nri", "plugins"),
		"--set", "node_labels.file=",
	)
	if cni := b.options.CNI; cni != nil {
		arguments = append(arguments,
			"--set", "cni.conf_dir="+cni.ConfDir,
			"--set", "cni.cache_dir="+filepath.Join(b.Dir, "cni-cache"))
	}
	return arguments
}

// writeConfig writes the main file, and the drop-in if there is one.
func (b *Berth) writeConfig(t T) {
	t.Helper()
	for _, dir := range []string{"conf.d", "vendor.d"} {
		Mustf(t, os.Mkdir(filepath.Join(b.Dir, dir), 0o755), "make berth's %s", dir)
	}
	if b.options.NoConfig {
		return
	}
	Mustf(t, os.WriteFile(b.ConfigFile, []byte(b.mainConfig()), 0o600), "write berth's configuration")
	if b.options.Config == "" {
		return
	}
	Mustf(t, os.WriteFile(filepath.Join(b.Dir, "conf.d", "50-test.toml"), []byte(b.options.Config), 0o600), "write berth's drop-in")
}

func (b *Berth) mainConfig() string {
	var c strings.Builder
	names := slices.Sorted(maps.Keys(b.options.Runtimes))
	c.WriteString("version = 1\n")
	if b.options.DefaultRuntime != "" {
		fmt.Fprintf(&c, "default_runtime = %q\n", b.options.DefaultRuntime)
	} else if len(names) > 0 {
		fmt.Fprintf(&c, "default_runtime = %q\n", names[0])
	}
	fmt.Fprintf(&c, "\n[server]\nsocket = %q\n", b.Socket)
	fmt.Fprintf(&c, "\n[engine]\nstate = %q\ncgroup_driver = %q\nshim_path = %q\npause_path = %q\n",
		b.State, cgroupDriver(), filepath.Join(b.Bin, "berth-shim"), filepath.Join(b.Bin, "berth-pause"))
	fmt.Fprintf(&c, "\n[registry]\nhosts_dir = %q\n", b.HostsDir)
	fmt.Fprintf(&c, "\n[nri]\nplugin_path = %q\nplugin_config_path = %q\n", filepath.Join(b.Dir, "nri", "plugins"), filepath.Join(b.Dir, "nri", "conf.d"))
	fmt.Fprintf(&c, "\n[node_labels]\nfile = \"\"\n")
	fmt.Fprintf(&c, "\n[log]\nlevel = \"debug\"\n")
	if cni := b.options.CNI; cni != nil {
		fmt.Fprintf(&c, "\n[cni]\nconf_dir = %q\nbin_dirs = [%q]\ncache_dir = %q\n",
			cni.ConfDir, cni.BinDir, filepath.Join(b.Dir, "cni-cache"))
	}
	for _, name := range names {
		fmt.Fprintf(&c, "\n[runtimes.%s]\nruntime_path = %q\n", name, b.options.Runtimes[name])
		if filepath.Base(b.options.Runtimes[name]) == Runsc {
			// A missing sidecar program is then an error, as it is by default in later releases.
			c.WriteString("options.global_flags = [\"--sidecar-usage-policy=STRICT\"]\n")
		}
	}
	return c.String()
}
