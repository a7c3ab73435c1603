// Package config turns TOML files into one validated Config. Package tomlfile parses and decodes
// them.
//
// A configuration is a main file, /etc/berth/config.toml, and the drop-ins in conf.d beside it and
// in the vendor's directory. Every key may be in any of them: a later file wins key by key, except
// that a handler belongs to one file, and a second file with it is a mistake. Without any handler
// in the main file, the runtimes in the usual directories are discovered and served.
//
// Unknown keys are mistakes. Each mistake becomes a Problem with its file, line, key, message and
// suggestion, and all of them are returned together.
package config

import (
	"cmp"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/berth-cri/berth/pkg/config/imports"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

type (
	// Origin is the place of a value.
	Origin = tomlfile.Origin
	// Problem is one mistake in a configuration.
	Problem = tomlfile.Problem
	// Problems are mistakes of a configuration.
	Problems = tomlfile.Problems
	// ImportNote is a setting in another daemon's file that berth ignores or interprets
	// differently.
	ImportNote = imports.Note
)

// formatVersion is the supported version of the file format.
const formatVersion = 1

// Config is a complete, validated configuration with defaults filled in. Treat it as immutable.
// Load fills in DefaultRuntime, which may name a handler in Broken, and the paths of berth-shim and
// berth-pause.
//
// TestKeysPage copies the comments of keys to docs/configuration.md. The tag effect is when a new
// value takes effect; without the tag, at the next start. "each pull" is about the content of the
// directory; a new path takes effect at the next start.
type Config struct {
	// Version is the version of the file format. Other versions are refused.
	Version int `toml:"version" effect:"reload"`
	// DefaultRuntime is the handler of pods that name no handler. Empty means the only handler, else
	// the first of "runc", "crun", "youki", "gvisor", "runsc" that exists. Handlers of drop-ins and
	// imported files count only if the main file and discovery have none.
	DefaultRuntime string `toml:"default_runtime" effect:"new pods"`

	Server   Server   `toml:"server"`
	Import   Import   `toml:"import"`
	Handlers Handlers `toml:"handlers"`
	Engine   Engine   `toml:"engine"`
	CNI      CNI      `toml:"cni"`
	Registry Registry `toml:"registry"`
	// ImageVerifier has the keys of containerd's image verifier plugin.
	ImageVerifier ImageVerifier `toml:"image_verifier"`
	Streaming     Streaming     `toml:"streaming"`
	// NRI has the keys of containerd's NRI plugin.
	NRI NRI `toml:"nri"`
	// ContainerdAPI is for agents that expect containerd.
	ContainerdAPI ContainerdAPI `toml:"containerd_api"`
	// Snapshotters are proxy snapshotters of other programs, by name.
	Snapshotters map[string]Snapshotter `toml:"snapshotters"`
	// NodeLabels publishes the handlers to the cluster.
	NodeLabels NodeLabels `toml:"node_labels"`

	Metrics Metrics `toml:"metrics"`
	Tracing Tracing `toml:"tracing"`
	Log     Log     `toml:"log"`

	// Runtimes are the handlers that can be served, sorted by name.
	Runtimes []*handler.Definition `toml:"-"`
	// Broken are the configured handlers that cannot be served: imported ones with mistakes, those
	// that a key names and that no file or discovery has yet, and aliases of either. Sorted by name.
	Broken []Broken `toml:"-"`
	// Problems are the mistakes behind Broken, and those of imported files.
	Problems Problems `toml:"-"`
	// ImportNotes are settings in imported files that berth ignores or interprets differently.
	ImportNotes []ImportNote `toml:"-"`
	// Sources are the files that were read and used, in the order of reading.
	Sources []string `toml:"-"`
	// Discovered is set if the main file names no handler, so that Runtimes includes the discovered
	// ones of this machine.
	Discovered bool `toml:"-"`
	// Rejected are the mistakes in the files if Start returned the last accepted configuration
	// instead.
	Rejected Problems `toml:"-"`
	// SearchPath is Options.SearchPath.
	SearchPath []string `toml:"-"`
	// ReadAt is when the files were read.
	ReadAt time.Time `toml:"-"`

	// documents are the texts of berth's own files.
	documents []storedDocument
	origins   map[string]Origin
	watched   []string
	// elsewhere are the handlers from outside berth's own files: imported ones, discovered ones, and
	// those that a key names and that no file or discovery has yet.
	elsewhere map[string]bool
	// defaultChosen is set if no file and no flag sets DefaultRuntime.
	defaultChosen bool
}

// Broken is a handler without a Definition. It is never ready.
type Broken struct {
	// Name is the handler's name.
	Name string
	// Origin is the file:line of its table, or of the key that names it; for a handler of an imported
	// file that cannot be read, the file.
	Origin string
	// Reason is the first of its problems, in one line.
	Reason string
}

// Server configures the served sockets.
type Server struct {
	// Socket is the unix socket of the CRI.
	Socket string `toml:"socket"`
	// SocketGroup is the name or number of the socket's group. Empty means root's.
	SocketGroup string `toml:"socket_group"`
	// SocketMode is the octal mode of the socket. Write access to it is root access to the node.
	SocketMode fs.FileMode `toml:"socket_mode"`
	// RuntimeName is the name of the runtime in container IDs (`berth://...`). Do not change it
	// while there are pods. See docs/runtimes.md#node-agents.
	RuntimeName string `toml:"runtime_name"`
	// AdminSocket is the unix socket of the management API, with mode 0600: only root and the
	// daemon's own user may call it. Empty means `admin.sock` beside Socket.
	AdminSocket string `toml:"admin_socket"`
}

// Admin returns the path of the management API's unix socket.
func (s Server) Admin() string {
	return cmp.Or(s.AdminSocket, filepath.Join(filepath.Dir(s.Socket), "admin.sock"))
}

// Handlers configures the probing and reloading of handlers.
type Handlers struct {
	// ProbeInterval is the time between checks of each handler's binary, configuration file and
	// devices. With "0s", ready handlers are checked only every AskInterval, when berth starts or
	// reloads, after failed starts of pods, and by `berth handler probe`.
	ProbeInterval time.Duration `toml:"probe_interval" effect:"reload"`
	// AskInterval is the time between probes that rerun an unchanged runtime. With "0s", only a new
	// binary, a failed probe, a failed start of a pod or `berth handler probe` reruns it.
	AskInterval time.Duration `toml:"ask_interval" effect:"reload"`
	// AdvertiseNotReady keeps handlers that are not ready in the CRI's Status, and therefore on the
	// Node. Cordoned and draining ones are always listed.
	AdvertiseNotReady bool `toml:"advertise_not_ready" effect:"reload"`
	// Watch reloads the configuration when its files change. If one of them is a symbolic link, they
	// are polled every two seconds.
	Watch bool `toml:"watch"`
}

// Snapshotter is a proxy snapshotter, which berth calls with containerd's protocol.
type Snapshotter struct {
	// Address is the unix socket of the snapshotter. Required.
	Address string `toml:"address"`
}

// CgroupDriver selects the manager of cgroups.
type CgroupDriver string

const (
	// CgroupDriverAuto is systemd if it is process 1, else cgroupfs.
	CgroupDriverAuto CgroupDriver = "auto"
	// CgroupDriverCgroupfs creates cgroup directories.
	CgroupDriverCgroupfs CgroupDriver = "cgroupfs"
	// CgroupDriverSystemd creates slices and scopes through systemd.
	CgroupDriverSystemd CgroupDriver = "systemd"
)

// Engine is the embedded backend.
type Engine struct {
	// Root is the directory of images and records, which survive a reboot.
	Root string `toml:"root"`
	// WritableRoot is the directory of writable layers (docs/images.md#disk-space). Empty means in
	// Root.
	WritableRoot string `toml:"writable_root"`
	// State is the directory of sockets, namespaces and bundles, which are lost at a reboot.
	State string `toml:"state"`
	// CgroupDriver is the manager of cgroups for all handlers: "systemd", "cgroupfs", or "auto" for
	// systemd if it is process 1, else cgroupfs. The kubelet asks berth for it. Existing pods keep
	// theirs.
	CgroupDriver CgroupDriver `toml:"cgroup_driver"`
	// CgroupPrefix begins the names of containers' systemd scopes (`berth-<id>.scope`). With
	// cgroupfs it is the parent cgroup of pods that name no parent. At most 64 letters, digits, '-'
	// and '_'. See docs/runtimes.md#node-agents.
	CgroupPrefix string `toml:"cgroup_prefix" effect:"new pods"`
	// Supervision is the default of handlers: "handler" for one supervisor per handler, "pod" for
	// one per pod.
	Supervision handler.Supervision `toml:"supervision" effect:"new pods"`
	// Snapshotter is the default of handlers: "overlayfs", "erofs", "native"
	// (docs/images.md#root-filesystems), or a name in Config.Snapshotters.
	Snapshotter string `toml:"snapshotter" effect:"new pods"`
	// OverlayMountOptions are extra options of overlay root filesystems, such as "metacopy=on".
	OverlayMountOptions []string `toml:"overlay_mount_options"`
	// SyncRootfs lets fsync in containers reach the disk (docs/images.md#root-filesystems), and
	// flushes root filesystems when they are unmounted, which is slower.
	SyncRootfs bool `toml:"sync_rootfs"`
	// MaxLogLineSize is the size in bytes at which a log line is split. -1 means never.
	MaxLogLineSize int `toml:"max_log_line_size" effect:"start, new pods"`
	// ShimPath is the supervisor, `berth-shim`. Empty means beside the berth binary, else where
	// runtimes are discovered (docs/configuration.md#discovery).
	ShimPath string `toml:"shim_path" effect:"start, new pods"`
	// PausePath is the sandbox process, `berth-pause`. Empty means as for ShimPath.
	PausePath string `toml:"pause_path" effect:"start, new pods"`
	// UnprivilegedPorts allows ports below 1024 without a capability in pods with their own
	// network.
	UnprivilegedPorts bool `toml:"unprivileged_ports" effect:"start, new pods"`
	// UnprivilegedICMP allows pings without a capability in pods with their own network.
	UnprivilegedICMP bool `toml:"unprivileged_icmp" effect:"start, new pods"`
	// IgnoreImageDefinedVolumes ignores VOLUMEs of images
	// (docs/images.md#volumes-that-images-define).
	IgnoreImageDefinedVolumes bool `toml:"ignore_image_defined_volumes" effect:"start, new pods"`
	// DefaultSeccompProfile is the RuntimeDefault profile (JSON), read when a pod is created. Empty
	// means the built-in one.
	DefaultSeccompProfile string `toml:"default_seccomp_profile" effect:"start, new pods"`
	// CDISpecDirs are the directories of CDI specs (docs/runtimes.md#cdi-devices), read when a
	// container asks for a device. Later ones win.
	CDISpecDirs []string `toml:"cdi_spec_dirs"`
}

// CNI is the pod network.
type CNI struct {
	// ConfDir is the directory of network configurations.
	ConfDir string `toml:"conf_dir"`
	// BinDirs are the directories of plugins. Earlier ones win.
	BinDirs []string `toml:"bin_dirs"`
	// MaxConfNum is the number of configurations that are used, the first in lexical order, one per
	// interface of a pod. 0 means all.
	MaxConfNum int `toml:"max_conf_num"`
	// CacheDir is the directory of libcni's results, which berth needs to disconnect a pod.
	CacheDir string `toml:"cache_dir"`
	// InProcess makes berth connect pods to networks of standard plugins itself, instead of running
	// them (docs/network.md#networks-in-process).
	InProcess bool `toml:"in_process"`
	// GC makes plugins of CNI 1.1 release, at each start, all attachments other than those of
	// berth's pods. Set it only if no other program uses the networks
	// (docs/network.md#beside-other-daemons).
	GC bool `toml:"gc"`
}

// Registry configures image pulls.
type Registry struct {
	// HostsDir is the directory of mirrors, certificates and credentials: `<registry>/hosts.toml`
	// in containerd's format (docs/images.md#registries).
	HostsDir string `toml:"hosts_dir" effect:"each pull"`
	// MaxConcurrentDownloads limits the layers that one pull downloads at a time.
	MaxConcurrentDownloads int `toml:"max_concurrent_downloads"`
	// DiscardUnpackedLayers removes compressed layers of new images after unpacking
	// (docs/images.md#disk-space).
	DiscardUnpackedLayers bool `toml:"discard_unpacked_layers"`
	// PullProgressTimeout cancels a pull that receives no byte for this time. "0s" means never.
	PullProgressTimeout time.Duration `toml:"pull_progress_timeout"`
	// MaxUnpackMemory limits the memory, in bytes, of a process that unpacks a layer
	// (docs/images.md#limits). At least 128 MiB.
	MaxUnpackMemory int `toml:"max_unpack_memory"`
	// MaxImageEntries limits the files, directories, links and whiteouts of all layers of an image.
	MaxImageEntries int `toml:"max_image_entries"`
	// DecryptionKeysPath is the directory of keys (docs/images.md#encrypted-images), read when a
	// layer is opened. Empty means none.
	DecryptionKeysPath string `toml:"decryption_keys_path"`
	// PreloadDir is the directory of archives that are imported at the start
	// (docs/images.md#nodes-without-a-registry). Empty means none.
	PreloadDir string `toml:"preload_dir"`
	// PinnedImages are names of images that the kubelet must not remove. '*' matches any
	// characters. "busybox" means "docker.io/library/busybox:latest".
	PinnedImages []string `toml:"pinned_images"`
	// CheckpointImages are names, as in PinnedImages, of checkpoint images that pods may restore.
	// Restored processes keep their privileges (docs/security.md#images-of-checkpoints).
	CheckpointImages []string `toml:"checkpoint_images"`
}

// ImageVerifier configures the verifiers that permit or reject a pull.
type ImageVerifier struct {
	// BinDir is the directory of verifiers and nothing else, read at each pull. Without files, all
	// images pass. Empty means no verification.
	BinDir string `toml:"bin_dir"`
	// PerVerifierTimeout limits the time of each verifier. If one takes longer, the image is
	// refused.
	PerVerifierTimeout time.Duration `toml:"per_verifier_timeout"`
}

// Streaming configures the server of exec, attach and port-forward sessions.
type Streaming struct {
	// Address is the IP address that serves the sessions. Only the kubelet needs it.
	Address string `toml:"address"`
	// Port is the TCP port. 0 lets the kernel choose.
	Port int `toml:"port"`
	// IdleTimeout ends a session after this time without traffic.
	IdleTimeout time.Duration `toml:"idle_timeout"`
	// PermittedRemoteHosts are hosts (names or IP addresses, without ports) besides this node on
	// which other CRI daemons (docs/remote.md) may serve sessions.
	PermittedRemoteHosts []string `toml:"permitted_remote_hosts"`
}

// Metrics is the Prometheus endpoint.
type Metrics struct {
	// Address is where Prometheus finds `/metrics`, such as "127.0.0.1:9091" or
	// "unix:///run/berth/metrics.sock". Empty means off.
	Address string `toml:"address"`
}

// Tracing is the OpenTelemetry export.
type Tracing struct {
	// Endpoint is the address of an OTLP/gRPC collector, host:port. Empty means off.
	Endpoint string `toml:"endpoint"`
	// SampleRatio is the recorded share of traces begun by berth, 0 to 1. A caller's sampling
	// decision is kept.
	SampleRatio float64 `toml:"sample_ratio"`
	// Insecure connects to the collector without TLS.
	Insecure bool `toml:"insecure"`
}

// Log is the daemon's own log, on stderr.
type Log struct {
	// Level is "trace", "debug", "info", "warn" or "error".
	Level string `toml:"level" effect:"reload"`
	// Format is "text" or "json", on stderr.
	Format string `toml:"format" effect:"reload"`
}

// Import lists files of other daemons, or directories of such files. berth serves their handlers.
type Import struct {
	// CRIO are files or directories of CRI-O.
	CRIO []string `toml:"crio" effect:"new pods"`
	// Containerd are files or directories of containerd.
	Containerd []string `toml:"containerd" effect:"new pods"`
}

// NRI configures plugins of the Node Resource Interface.
type NRI struct {
	// Disable turns plugins off.
	Disable bool `toml:"disable"`
	// SocketPath is the unix socket for plugins, usually "/var/run/nri/nri.sock". Empty means none.
	SocketPath string `toml:"socket_path"`
	// PluginPath is the directory of plugins that berth starts. It need not exist.
	PluginPath string `toml:"plugin_path"`
	// PluginConfigPath is the directory of `<index>-<name>.conf`, else `<name>.conf`, for each
	// plugin.
	PluginConfigPath string `toml:"plugin_config_path"`
	// PluginRegistrationTimeout limits the time that a plugin takes to register.
	PluginRegistrationTimeout time.Duration `toml:"plugin_registration_timeout"`
	// PluginRequestTimeout limits the time of an answer. A slower plugin is disconnected.
	PluginRequestTimeout time.Duration `toml:"plugin_request_timeout"`
}

// NodeLabels is the file from which Node Feature Discovery labels the node.
type NodeLabels struct {
	// File is the file of labels; a second one has the suffix `-present`. Both are written if the
	// directory exists. Each berth daemon needs a separate file. Empty means none.
	File string `toml:"file"`
	// Lifetime is how long a cluster keeps the labels after the last update, at least "10s".
	Lifetime time.Duration `toml:"lifetime"`
}

// ContainerdAPI configures the containerd API for agents of the node.
type ContainerdAPI struct {
	// Socket is the unix socket of the API, such as "/run/containerd/containerd.sock", with mode
	// 0600. A missing directory is created with mode 0711. A lock file (`.lock`) stays beside it.
	// Empty means off.
	Socket string `toml:"socket"`
}

type storedDocument struct {
	File string `json:"file"`
	Main bool   `json:"main,omitempty"`
	Text string `json:"text"`
}

// Origin returns the origin of the value of a full TOML key, such as "server.socket".
func (c *Config) Origin(key string) Origin { return c.origins[key] }

// configKey is a key outside the handlers.
type configKey struct {
	// section is its table, name the key in that table.
	section, name string
	// field is the index of its field in Config.
	field []int
}

func (k configKey) String() string { return strings.TrimPrefix(k.section+"."+k.name, ".") }

// reloadable reports whether a running daemon applies a new value. Default settings of handlers
// reach new pods in new Definitions.
func (k configKey) reloadable() bool {
	effect := reflect.TypeFor[Config]().FieldByIndex(k.field).Tag.Get("effect")
	return effect == "reload" || effect == "new pods"
}

// configKeys returns all keys outside the handlers, in the order of the file format.
func configKeys() (all []configKey) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		switch tag := f.Tag.Get("toml"); {
		case tag == "-" || tag == "":
		case f.Type.Kind() != reflect.Struct:
			all = append(all, configKey{name: tag, field: f.Index})
		default:
			keys := tomlfile.FieldsOf(f.Type)
			for _, name := range keys.Names {
				all = append(all, configKey{section: tag, name: name, field: slices.Concat(f.Index, keys.Index[name])})
			}
		}
	}
	return all
}
