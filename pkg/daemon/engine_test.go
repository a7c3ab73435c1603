package daemon

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/engine"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/streaming"
)

// loaded returns the engine's configuration from a configuration file. It replaces $DIR by dir.
func loaded(t *testing.T, dir, text string) engine.Config {
	t.Helper()
	for name, content := range map[string]string{
		"runc": "#!/bin/sh\n", "shim": "#!/bin/sh\n", "pause": "#!/bin/sh\n", "seccomp.json": `{"defaultAction": "SCMP_ACT_LOG"}`,
		"config.toml": strings.ReplaceAll(text, "$DIR", dir) + "\n[runtimes.runc]\nruntime_path = \"" + dir + "/runc\"\n",
	} {
		test.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700))
	}
	cfg := test.Value(config.Load(config.Options{File: filepath.Join(dir, "config.toml"), VendorDir: dir + "/none"}))(t)
	return engineConfig(cfg, Build{Version: "1.2.3", Revision: "abc"})
}

// Each key has a different value. TestSwitchesOfTheEngine has the boolean keys.
func TestKeysOfTheEngine(t *testing.T) {
	dir := t.TempDir()
	got := loaded(t, dir, `
[server]
runtime_name = "moor"
[engine]
root = "/engine-root"
writable_root = "/engine-writable"
state = "/engine-state"
cgroup_driver = "cgroupfs"
snapshotter = "stargz"
overlay_mount_options = ["index=off"]
max_log_line_size = 101
shim_path = "$DIR/shim"
pause_path = "$DIR/pause"
default_seccomp_profile = "$DIR/seccomp.json"
unprivileged_ports = false
unprivileged_icmp = false
cdi_spec_dirs = ["/cdi"]
[snapshotters.stargz]
address = "/stargz.sock"
[cni]
conf_dir = "/cni-conf"
bin_dirs = ["/cni-bin"]
max_conf_num = 102
cache_dir = "/cni-cache"
[registry]
hosts_dir = "/hosts"
max_concurrent_downloads = 103
pull_progress_timeout = "104s"
max_unpack_memory = 1050000000
max_image_entries = 106
decryption_keys_path = "/keys"
preload_dir = "/preload"
pinned_images = ["pinned:1"]
checkpoint_images = ["checkpoint:1"]
[image_verifier]
bin_dir = "/verifiers"
per_verifier_timeout = "107s"
[streaming]
address = "127.0.0.8"
port = 108
idle_timeout = "109s"
[nri]
socket_path = "/nri.sock"
plugin_path = "/nri-plugins"
plugin_config_path = "/nri-conf"
plugin_registration_timeout = "110s"
plugin_request_timeout = "111s"
`)
	want := engine.Config{
		Root: "/engine-root", State: "/engine-state", Supervisor: dir + "/shim", Pause: dir + "/pause",
		Version: "1.2.3", Revision: "abc", RuntimeName: "moor",
		Settings: settings.Config{CgroupDriver: "cgroupfs", Snapshotter: "stargz", MaxLogLineSize: 101, DefaultSeccomp: dir + "/seccomp.json"},
		// The last parts of CacheDir and MasqueradeTable are a digest of the root.
		Network: network.Config{
			ConfDir: "/cni-conf", BinDirs: []string{"/cni-bin"}, MaxConfNum: 102, CacheDir: "/cni-cache/berth/efa4d2acecbc",
			InProcess: true, MasqueradeTable: "berth_efa4d2acecbc",
		},
		CDISpecDirs: []string{"/cdi"},
		Plugins: nri.Config{
			SocketPath: "/nri.sock", PluginPath: "/nri-plugins", PluginConfigPath: "/nri-conf",
			RegistrationTimeout: 110 * time.Second, RequestTimeout: 111 * time.Second,
		},
		Images: image.Config{
			Root: "/engine-root/images", WritableRoot: "/engine-writable", HostsDir: "/hosts",
			DefaultSnapshotter: "stargz", Snapshotters: map[string]string{"stargz": "/stargz.sock"},
			MaxConcurrentDownloads: 103, PullProgressTimeout: 104 * time.Second,
			Limits:       bounds.Limits{MaxUnpackMemory: 1050000000, MaxImageEntries: 106},
			MountOptions: []string{"index=off"}, PinnedImages: []string{"pinned:1"}, CheckpointImages: []string{"checkpoint:1"},
			DecryptionKeysDir: "/keys", PreloadDir: "/preload",
			Verifiers: pull.Verifiers{BinDir: "/verifiers", Timeout: 107 * time.Second},
		},
		Streaming: streaming.Config{Address: "127.0.0.8", Port: 108, IdleTimeout: 109 * time.Second, MaxSessions: maxSessions},
	}
	g, w := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range g.NumField() {
		if !reflect.DeepEqual(g.Field(i).Interface(), w.Field(i).Interface()) {
			t.Errorf("%s\ngot  %+v\nwant %+v", g.Type().Field(i).Name, g.Field(i), w.Field(i))
		}
	}
}

// In each round one boolean key is true. Numbers that mean "no limit" are set.
func TestSwitchesOfTheEngine(t *testing.T) {
	keys := []string{
		"engine.sync_rootfs", "engine.unprivileged_ports", "engine.unprivileged_icmp", "engine.ignore_image_defined_volumes",
		"cni.gc", "registry.discard_unpacked_layers", "nri.disable",
	}
	for _, on := range keys {
		text := "cni.max_conf_num = 0\nregistry.pull_progress_timeout = \"0s\"\n"
		for _, key := range keys {
			text += key + " = " + map[bool]string{true: "true", false: "false"}[key == on] + "\n"
		}
		c := loaded(t, t.TempDir(), text)
		for key, is := range map[string]bool{
			"engine.sync_rootfs": c.Images.SyncRootfs, "engine.unprivileged_ports": c.Settings.UnprivilegedPorts,
			"engine.unprivileged_icmp": c.Settings.UnprivilegedICMP, "engine.ignore_image_defined_volumes": c.Settings.IgnoreImageVolumes,
			"cni.gc": c.Network.GC, "registry.discard_unpacked_layers": c.Images.DiscardLayers, "nri.disable": c.Plugins.Disable,
		} {
			test.Equal(t, "with "+on+", "+key, is, key == on)
		}
		test.Equal(t, "max_conf_num 0", c.Network.MaxConfNum, -1)
		test.Equal(t, "pull_progress_timeout 0s", c.Images.PullProgressTimeout, -1)
	}
}
