package config

import (
	"time"

	"github.com/berth-cri/berth/pkg/handler"
)

// Default places of the configuration.
const (
	DefaultFile      = "/etc/berth/config.toml"
	DefaultVendorDir = "/usr/lib/berth/conf.d"
)

// Default returns the configuration of an empty file, before handlers are discovered.
func Default() *Config {
	return &Config{
		Version:  formatVersion,
		Server:   Server{Socket: "/run/berth/berth.sock", SocketMode: 0o660, RuntimeName: "berth"},
		Handlers: Handlers{ProbeInterval: 30 * time.Second, AskInterval: 5 * time.Minute, Watch: true},
		Import:   Import{CRIO: []string{}, Containerd: []string{}},
		Engine: Engine{
			Root:                "/var/lib/berth",
			State:               "/run/berth",
			CgroupDriver:        CgroupDriverAuto,
			CgroupPrefix:        "berth",
			Supervision:         handler.SupervisionHandler,
			Snapshotter:         "overlayfs",
			OverlayMountOptions: []string{},
			MaxLogLineSize:      16384,
			UnprivilegedPorts:   true,
			UnprivilegedICMP:    true,
			CDISpecDirs:         []string{"/etc/cdi", "/var/run/cdi"},
		},
		CNI: CNI{
			ConfDir:    "/etc/cni/net.d",
			BinDirs:    []string{"/opt/cni/bin", "/usr/lib/cni"},
			MaxConfNum: 1,
			CacheDir:   "/var/lib/cni",
			InProcess:  true,
		},
		Registry: Registry{
			HostsDir:               "/etc/berth/hosts.d",
			MaxConcurrentDownloads: 3,
			PullProgressTimeout:    5 * time.Minute,
			MaxUnpackMemory:        512 << 20,
			MaxImageEntries:        5_000_000,
			DecryptionKeysPath:     "/etc/berth/keys",
			PreloadDir:             "/var/lib/berth/preload",
			PinnedImages:           []string{},
			CheckpointImages:       []string{},
		},
		ImageVerifier: ImageVerifier{
			BinDir:             "/opt/berth/image-verifier/bin",
			PerVerifierTimeout: 10 * time.Second,
		},
		Streaming: Streaming{Address: "127.0.0.1", IdleTimeout: 4 * time.Hour, PermittedRemoteHosts: []string{}},
		NRI: NRI{
			PluginPath:                "/opt/nri/plugins",
			PluginConfigPath:          "/etc/nri/conf.d",
			PluginRegistrationTimeout: 5 * time.Second,
			PluginRequestTimeout:      2 * time.Second,
		},
		NodeLabels: NodeLabels{
			File:     "/etc/kubernetes/node-feature-discovery/features.d/berth",
			Lifetime: time.Hour,
		},
		Tracing: Tracing{SampleRatio: 1},
		Log:     Log{Level: "info", Format: "text"},
		origins: map[string]Origin{}, elsewhere: map[string]bool{},
	}
}
