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
	// Problems are all mistakes of a configuration.
	Problems = tomlfile.Problems
	// ImportNote is a setting in another daemon's file that berth ignores or interprets
	// differently.
	ImportNote = imports.Note
)

// formatVersion is the supported version of the file format.
const formatVersion = 1

// Config is a complete, validated configuration with defaults filled in. Treat it as immutable.
type Config struct {
	// Version is the version of the file format.
	Version int `toml:"version"`
	// DefaultRuntime is the handler of pods that name none. Load fills it in;
	// it may name a handler in Broken.
	DefaultRuntime string `toml:"default_runtime"`

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
	// Broken are the configured handlers that cannot be served, sorted by name: imported ones with
	// mistakes, awaited ones, and aliases of either.
	Broken []Broken `toml:"-"`
	// Problems are the mistakes behind Broken, and those of imported files.
	Problems Problems `toml:"-"`
	// ImportNotes are settings in imported files that berth ignores.
	ImportNotes []ImportNote `toml:"-"`
	// Sources are the files that were read and used, in their order.
	Sources []string `toml:"-"`
	// Discovered is set if the main file names no handler, so that Runtimes includes the discovered
	// ones of this machine.
	Discovered bool `toml:"-"`
	// Rejected are the files' mistakes if this is the last accepted configuration instead. See
	// Start.
	Rejected Problems `toml:"-"`
	// SearchPath is that of Options.
	SearchPath []string `toml:"-"`
	// ReadAt is when the files were read.
	ReadAt time.Time `toml:"-"`

	// documents are the texts of berth's own files.
	documents []storedDocument
	origins   map[string]Origin
	watched   []string
	// elsewhere are the handlers from outside berth's own files: imported, discovered or awaited.
	elsewhere map[string]bool
	// defaultChosen is set if no file and no flag sets DefaultRuntime.
	defaultChosen bool
}

// Broken is a handler with only a name. Its route is not ready.
type Broken struct {
	// Name is the handler's name.
	Name string
	// Origin is file:line of its table.
	Origin string
	// Reason is the first of its problems, in one line.
	Reason string
}

// Server configures the served sockets.
type Server struct {
	// Socket is the path of the CRI's unix socket.
	Socket string `toml:"socket"`
	// SocketGroup is the name or number of the group that owns the socket.
	SocketGroup string `toml:"socket_group"`
	// SocketMode is the socket's mode.
	SocketMode fs.FileMode `toml:"socket_mode"`
	// RuntimeName is the runtime's name in the CRI's Version.
	RuntimeName string `toml:"runtime_name"`
	// AdminSocket is the path of the management API's unix socket; empty means beside Socket. See
	// Admin.
	AdminSocket string `toml:"admin_socket"`
}

// Admin returns the path of the management API's unix socket.
func (s Server) Admin() string {
	return cmp.Or(s.AdminSocket, filepath.Join(filepath.Dir(s.Socket), "admin.sock"))
}

// Handlers configures the probing and reloading of handlers.
type Handlers struct {
	// ProbeInterval is the time between probes, which run only new runtimes; 0 means never.
	ProbeInterval time.Duration `toml:"probe_interval"`
	// AskInterval is the time between probes that run all runtimes; 0 means never.
	AskInterval time.Duration `toml:"ask_interval"`
	// AdvertiseNotReady keeps handlers that are not ready in the CRI's Status.
	AdvertiseNotReady bool `toml:"advertise_not_ready"`
	// Watch reloads the configuration when its files change.
	Watch bool `toml:"watch"`
}

// Snapshotter is a proxy snapshotter, called by containerd's protocol.
type Snapshotter struct {
	// Address is the path of its unix socket.
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
	// Root holds the data that survives a reboot: images and records.
	Root string `toml:"root"`
	// WritableRoot holds the writable layers of containers; empty means in Root.
	WritableRoot string `toml:"writable_root"`
	// State holds the data that ends with a reboot: sockets, namespaces, bundles.
	State string `toml:"state"`
	// CgroupDriver selects the manager of containers' cgroups.
	CgroupDriver CgroupDriver `toml:"cgroup_driver"`
	// CgroupPrefix begins the names of containers' systemd scopes. With cgroupfs it is the parent
	// cgroup of pods that name none.
	CgroupPrefix string `toml:"cgroup_prefix"`
	// Supervision is the default of handlers.
	Supervision handler.Supervision `toml:"supervision"`
	// Snapshotter is the default of handlers.
	Snapshotter string `toml:"snapshotter"`
	// OverlayMountOptions are added to the overlay mounts of root filesystems.
	OverlayMountOptions []string `toml:"overlay_mount_options"`
	// SyncRootfs lets fsync in a container's root filesystem reach the disk.
	SyncRootfs bool `toml:"sync_rootfs"`
	// MaxLogLineSize is in bytes; longer lines are split. -1 means no limit.
	MaxLogLineSize int `toml:"max_log_line_size"`
	// ShimPath is the supervisor's binary, berth-shim. Load fills it in if no file sets it; empty
	// means it was not found.
	ShimPath string `toml:"shim_path"`
	// PausePath is the sandbox process's binary, berth-pause, filled in like ShimPath.
	PausePath string `toml:"pause_path"`
	// UnprivilegedPorts lets pods with their own network namespace bind ports below 1024.
	UnprivilegedPorts bool `toml:"unprivileged_ports"`
	// UnprivilegedICMP lets pods with their own network namespace use ICMP sockets.
	UnprivilegedICMP bool `toml:"unprivileged_icmp"`
	// IgnoreImageDefinedVolumes ignores the VOLUMEs of images.
	IgnoreImageDefinedVolumes bool `toml:"ignore_image_defined_volumes"`
	// DefaultSeccompProfile is the file of the RuntimeDefault profile; empty means the built-in
	// one.
	DefaultSeccompProfile string `toml:"default_seccomp_profile"`
	// CDISpecDirs hold specs of CDI devices; later directories win.
	CDISpecDirs []string `toml:"cdi_spec_dirs"`
}

// CNI is the pod network.
type CNI struct {
	// ConfDir holds the network configurations.
	ConfDir string `toml:"conf_dir"`
	// BinDirs hold the plugins; earlier directories win.
	BinDirs []string `toml:"bin_dirs"`
	// MaxConfNum bounds the used configurations of ConfDir, in lexical order. 0 means all.
	MaxConfNum int `toml:"max_conf_num"`
	// CacheDir holds libcni's results.
	CacheDir string `toml:"cache_dir"`
	// GC lets berth request CNI's garbage collection, which releases everything that is not
	// berth's. Set it only if no other program on the node uses the networks.
	GC bool `toml:"gc"`
}

// Registry configures image pulls.
type Registry struct {
	// HostsDir holds <registry>/hosts.toml files in containerd's format.
	HostsDir string `toml:"hosts_dir"`
	// MaxConcurrentDownloads is per pull.
	MaxConcurrentDownloads int `toml:"max_concurrent_downloads"`
	// DiscardUnpackedLayers removes compressed layers once they are unpacked.
	DiscardUnpackedLayers bool `toml:"discard_unpacked_layers"`
	// PullProgressTimeout cancels a pull after this time without a byte, or when its answers other
	// than layers took this long in total. 0 means never.
	PullProgressTimeout time.Duration `toml:"pull_progress_timeout"`
	// MaxUnpackMemory bounds the memory of a process that unpacks a layer, in bytes.
	MaxUnpackMemory int `toml:"max_unpack_memory"`
	// MaxImageEntries bounds the files, directories, links and whiteouts of all
	// layers of an image.
	MaxImageEntries int `toml:"max_image_entries"`
	// DecryptionKeysPath is the directory with the keys of encrypted images; empty means none.
	DecryptionKeysPath string `toml:"decryption_keys_path"`
	// PreloadDir is the directory of archives that are imported at the start; empty means none.
	PreloadDir string `toml:"preload_dir"`
	// PinnedImages are names of images that the kubelet must not remove; '*' matches any
	// characters.
	PinnedImages []string `toml:"pinned_images"`
	// CheckpointImages are name patterns, as in PinnedImages, of checkpoint images that pods may
	// restore.
	CheckpointImages []string `toml:"checkpoint_images"`
}

// ImageVerifier configures the verifiers that permit or reject a pull.
type ImageVerifier struct {
	// BinDir holds the verifiers' programs; empty means none.
	BinDir             string        `toml:"bin_dir"`
	PerVerifierTimeout time.Duration `toml:"per_verifier_timeout"`
}

// Streaming configures the server of exec, attach and port-forward sessions.
type Streaming struct {
	// Address is an IP address of this node.
	Address string `toml:"address"`
	// Port is a TCP port; 0 lets the kernel choose.
	Port int `toml:"port"`
	// IdleTimeout ends a session without traffic.
	IdleTimeout time.Duration `toml:"idle_timeout"`
	// PermittedRemoteHosts are names and IP addresses, besides the node's own, on which other CRI
	// daemons may serve sessions.
	PermittedRemoteHosts []string `toml:"permitted_remote_hosts"`
}

// Metrics is the Prometheus endpoint.
type Metrics struct {
	// Address is host:port or unix:///path; empty means off.
	Address string `toml:"address"`
}

// Tracing is the OpenTelemetry export.
type Tracing struct {
	// Endpoint is host:port of an OTLP/gRPC collector; empty means off.
	Endpoint string `toml:"endpoint"`
	// SampleRatio is the recorded share of traces begun by berth, 0 to 1.
	SampleRatio float64 `toml:"sample_ratio"`
	// Insecure connects to the collector without TLS.
	Insecure bool `toml:"insecure"`
}

// Log is the daemon's own log, on stderr.
type Log struct {
	// Level is trace, debug, info, warn or error.
	Level string `toml:"level"`
	// Format is text or json.
	Format string `toml:"format"`
}

// Import lists files of other daemons, or directories of them, for berth to serve their handlers.
type Import struct {
	// CRIO lists CRI-O's: crio.conf, crio.conf.d.
	CRIO []string `toml:"crio"`
	// Containerd lists containerd's: config.toml, conf.d.
	Containerd []string `toml:"containerd"`
}

// NRI configures plugins of the Node Resource Interface.
type NRI struct {
	// Disable turns NRI off.
	Disable bool `toml:"disable"`
	// SocketPath is the socket for plugins; empty means none.
	SocketPath string `toml:"socket_path"`
	// PluginPath is the directory of plugins that are started with the daemon.
	PluginPath string `toml:"plugin_path"`
	// PluginConfigPath is the directory of their configurations.
	PluginConfigPath string `toml:"plugin_config_path"`
	// PluginRegistrationTimeout is how long a plugin may take to register.
	PluginRegistrationTimeout time.Duration `toml:"plugin_registration_timeout"`
	// PluginRequestTimeout is how long a plugin may take to answer a request.
	PluginRequestTimeout time.Duration `toml:"plugin_request_timeout"`
}

// NodeLabels is the file from which Node Feature Discovery labels the node.
type NodeLabels struct {
	// File is written if its directory exists; empty means never.
	File string `toml:"file"`
	// Lifetime is how long a cluster keeps the labels after the daemon's last update.
	Lifetime time.Duration `toml:"lifetime"`
}

// ContainerdAPI configures the containerd API for agents of the node.
type ContainerdAPI struct {
	// Socket is the API's unix socket; empty means off.
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
