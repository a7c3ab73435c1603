// Package config turns TOML files into one validated Config. How TOML is parsed and
// decoded is in tomlfile.
//
// A configuration is a main file, /etc/berth/config.toml, and the drop-ins in
// conf.d beside it and in the vendor's directory. Every key may come from any
// of them: a later file wins key by key, except that a handler belongs to one
// file, and a second file that has it is a mistake. Without any handler in the
// main file the runtimes in the usual places are discovered and served.
//
// Nothing is ignored. Each mistake becomes a Problem with its file, line, key,
// what is wrong and what was probably meant, and all of them are returned
// together.
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
	// Origin is where a value is from.
	Origin = tomlfile.Origin
	// Problem is one mistake in a configuration.
	Problem = tomlfile.Problem
	// Problems are all of them.
	Problems = tomlfile.Problems
	// ImportNote is something in a file of another daemon that means something else to berth.
	ImportNote = imports.Note
)

// formatVersion is the one version of the file format that this package reads.
const formatVersion = 1

// Config is a whole configuration, validated, with defaults filled in. Treat
// it as immutable.
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
	// ContainerdAPI is for agents that look for containerd.
	ContainerdAPI ContainerdAPI `toml:"containerd_api"`
	// Snapshotters are those of other programs, by name.
	Snapshotters map[string]Snapshotter `toml:"snapshotters"`
	// NodeLabels is how the cluster hears of handlers.
	NodeLabels NodeLabels `toml:"node_labels"`

	Metrics Metrics `toml:"metrics"`
	Tracing Tracing `toml:"tracing"`
	Log     Log     `toml:"log"`

	// Runtimes are the handlers that can be served, sorted by name.
	Runtimes []*handler.Definition `toml:"-"`
	// Broken are the handlers that are configured but cannot be served, sorted
	// by name: imported ones with mistakes, those that others are yet to bring, and aliases of either.
	Broken []Broken `toml:"-"`
	// Problems are the mistakes behind Broken, and those of imported files.
	Problems Problems `toml:"-"`
	// ImportNotes are what imported files say that berth does not follow.
	ImportNotes []ImportNote `toml:"-"`
	// Sources are the files that were read and count, in their order.
	Sources []string `toml:"-"`
	// Discovered says that the main file names no handler, so that Runtimes
	// holds those which were found on this machine.
	Discovered bool `toml:"-"`
	// Rejected are the mistakes of the files if they have some and this is the last
	// accepted configuration instead. See Start.
	Rejected Problems `toml:"-"`
	// SearchPath is that of Options.
	SearchPath []string `toml:"-"`
	// ReadAt is when the files were read.
	ReadAt time.Time `toml:"-"`

	// documents are what berth's own files had in them.
	documents []storedDocument
	origins   map[string]Origin
	watched   []string
	// elsewhere are the handlers that are from other places than berth's own files:
	// imported, discovered, or awaited.
	elsewhere map[string]bool
	// defaultChosen says that no file and no flag names DefaultRuntime.
	defaultChosen bool
}

// Broken is a handler that is known by name only. Its route is not-ready.
type Broken struct {
	// Name is the handler's name.
	Name string
	// Origin is file:line of its table.
	Origin string
	// Reason is the first of its problems in one line.
	Reason string
}

// Server is the sockets that are served.
type Server struct {
	// Socket is the path of the unix socket that the CRI is served on.
	Socket string `toml:"socket"`
	// SocketGroup is the name or number of the group that owns the socket.
	SocketGroup string `toml:"socket_group"`
	// SocketMode is the socket's mode.
	SocketMode fs.FileMode `toml:"socket_mode"`
	// RuntimeName is the runtime's name in the CRI's Version.
	RuntimeName string `toml:"runtime_name"`
	// AdminSocket is the path of the unix socket of the management API; empty
	// is beside Socket. See Admin.
	AdminSocket string `toml:"admin_socket"`
}

// Admin is the path of the unix socket that the management API is served on.
func (s Server) Admin() string {
	return cmp.Or(s.AdminSocket, filepath.Join(filepath.Dir(s.Socket), "admin.sock"))
}

// Handlers is the life of all handlers.
type Handlers struct {
	// ProbeInterval is the time between looks at them; 0 is never.
	ProbeInterval time.Duration `toml:"probe_interval"`
	// AskInterval is the time between questions to their runtimes; 0 is never.
	AskInterval time.Duration `toml:"ask_interval"`
	// AdvertiseNotReady keeps those that are not ready in the CRI's Status.
	AdvertiseNotReady bool `toml:"advertise_not_ready"`
	// Watch reloads when files change.
	Watch bool `toml:"watch"`
}

// Snapshotter is one of another program, by containerd's protocol for them.
type Snapshotter struct {
	// Address is the path of its unix socket.
	Address string `toml:"address"`
}

// CgroupDriver says who makes cgroups.
type CgroupDriver string

const (
	// CgroupDriverAuto is systemd where it is process 1, else cgroupfs.
	CgroupDriverAuto CgroupDriver = "auto"
	// CgroupDriverCgroupfs makes directories.
	CgroupDriverCgroupfs CgroupDriver = "cgroupfs"
	// CgroupDriverSystemd asks systemd for slices and scopes.
	CgroupDriverSystemd CgroupDriver = "systemd"
)

// Engine is the embedded backend.
type Engine struct {
	// Root holds what outlives a reboot: images and records.
	Root string `toml:"root"`
	// WritableRoot holds what containers write; empty is in Root.
	WritableRoot string `toml:"writable_root"`
	// State holds what does not: sockets, namespaces, bundles.
	State string `toml:"state"`
	// CgroupDriver says who makes the cgroups of containers.
	CgroupDriver CgroupDriver `toml:"cgroup_driver"`
	// CgroupPrefix is what the names of systemd's scopes of containers begin with, and
	// the parent of cgroups of pods that name none where there is no systemd.
	CgroupPrefix string `toml:"cgroup_prefix"`
	// Supervision is that of handlers which do not say.
	Supervision handler.Supervision `toml:"supervision"`
	// Snapshotter is that of handlers which do not say.
	Snapshotter string `toml:"snapshotter"`
	// OverlayMountOptions are added to the overlay mounts of root filesystems.
	OverlayMountOptions []string `toml:"overlay_mount_options"`
	// SyncRootfs lets fsync in a container's root filesystem reach the disk.
	SyncRootfs bool `toml:"sync_rootfs"`
	// MaxLogLineSize is in bytes; longer lines are split. -1 is no limit.
	MaxLogLineSize int `toml:"max_log_line_size"`
	// ShimPath is the supervisor's binary, berth-shim. Load fills it in when
	// the file does not say; empty is "not found".
	ShimPath string `toml:"shim_path"`
	// PausePath is the sandbox process's binary, berth-pause, as ShimPath.
	PausePath string `toml:"pause_path"`
	// UnprivilegedPorts lets pods with a network of their own bind ports below 1024.
	UnprivilegedPorts bool `toml:"unprivileged_ports"`
	// UnprivilegedICMP lets pods with a network of their own use ICMP sockets.
	UnprivilegedICMP bool `toml:"unprivileged_icmp"`
	// IgnoreImageDefinedVolumes makes no volumes where images ask for them (VOLUME).
	IgnoreImageDefinedVolumes bool `toml:"ignore_image_defined_volumes"`
	// DefaultSeccompProfile is the file of the RuntimeDefault profile; empty
	// is the built-in one.
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
	// MaxConfNum is how many configurations of ConfDir are used, in lexical
	// order. 0 is all.
	MaxConfNum int `toml:"max_conf_num"`
	// CacheDir holds libcni's results.
	CacheDir string `toml:"cache_dir"`
	// GC says that nobody else on the node uses the networks, so that plugins can be
	// told to release whatever is not berth's.
	GC bool `toml:"gc"`
}

// Registry is how images are pulled.
type Registry struct {
	// HostsDir holds <registry>/hosts.toml files in containerd's format.
	HostsDir string `toml:"hosts_dir"`
	// MaxConcurrentDownloads is per pull.
	MaxConcurrentDownloads int `toml:"max_concurrent_downloads"`
	// DiscardUnpackedLayers removes compressed layers once they are unpacked.
	DiscardUnpackedLayers bool `toml:"discard_unpacked_layers"`
	// PullProgressTimeout ends a pull that got no byte for so long, or whose answers that
	// are not layers took so long together. 0 is never.
	PullProgressTimeout time.Duration `toml:"pull_progress_timeout"`
	// MaxUnpackMemory bounds the memory of a process that unpacks a layer, in bytes.
	MaxUnpackMemory int `toml:"max_unpack_memory"`
	// MaxImageEntries bounds the files, directories, links and whiteouts of all
	// layers of an image.
	MaxImageEntries int `toml:"max_image_entries"`
	// DecryptionKeysPath is the directory of the keys of encrypted images; empty
	// is none.
	DecryptionKeysPath string `toml:"decryption_keys_path"`
	// PreloadDir is the directory of archives that are imported at the start; empty is
	// none.
	PreloadDir string `toml:"preload_dir"`
	// PinnedImages are names of images that the kubelet must not collect; '*'
	// stands for any characters.
	PinnedImages []string `toml:"pinned_images"`
	// CheckpointImages are names, written so too, of images made of checkpoints that
	// pods may restore.
	CheckpointImages []string `toml:"checkpoint_images"`
}

// ImageVerifier decides which images may be pulled.
type ImageVerifier struct {
	// BinDir holds the programs that are asked; empty asks nobody.
	BinDir string `toml:"bin_dir"`
	// PerVerifierTimeout is how long each may take.
	PerVerifierTimeout time.Duration `toml:"per_verifier_timeout"`
}

// Streaming is the server of exec, attach and port-forward sessions.
type Streaming struct {
	// Address is an IP address of this node.
	Address string `toml:"address"`
	// Port is a TCP port; 0 lets the kernel choose.
	Port int `toml:"port"`
	// IdleTimeout ends a session without traffic.
	IdleTimeout time.Duration `toml:"idle_timeout"`
	// PermittedRemoteHosts are names and IP addresses, besides the node's own, where
	// other CRI daemons may serve sessions.
	PermittedRemoteHosts []string `toml:"permitted_remote_hosts"`
}

// Metrics is the Prometheus endpoint.
type Metrics struct {
	// Address is host:port or unix:///path; empty is off.
	Address string `toml:"address"`
}

// Tracing is the OpenTelemetry export.
type Tracing struct {
	// Endpoint is host:port of an OTLP/gRPC collector; empty is off.
	Endpoint string `toml:"endpoint"`
	// SampleRatio is the share of traces that berth starts itself which are
	// recorded, 0 to 1.
	SampleRatio float64 `toml:"sample_ratio"`
	// Insecure talks to the collector without TLS.
	Insecure bool `toml:"insecure"`
}

// Log is the daemon's own log, on stderr.
type Log struct {
	// Level is trace, debug, info, warn or error.
	Level string `toml:"level"`
	// Format is text or json.
	Format string `toml:"format"`
}

// Import names files of other daemons, or directories of them, whose handlers
// are served too.
type Import struct {
	// CRIO are CRI-O's: crio.conf, crio.conf.d.
	CRIO []string `toml:"crio"`
	// Containerd are containerd's: config.toml, conf.d.
	Containerd []string `toml:"containerd"`
}

// NRI is where plugins of the Node Resource Interface come from.
type NRI struct {
	// Disable turns everything off.
	Disable bool `toml:"disable"`
	// SocketPath is where plugins connect; empty is nowhere.
	SocketPath string `toml:"socket_path"`
	// PluginPath holds plugins that are started with the daemon.
	PluginPath string `toml:"plugin_path"`
	// PluginConfigPath holds the configurations of those.
	PluginConfigPath string `toml:"plugin_config_path"`
	// PluginRegistrationTimeout is how long a plugin may take to register.
	PluginRegistrationTimeout time.Duration `toml:"plugin_registration_timeout"`
	// PluginRequestTimeout is how long a plugin may take to answer a request.
	PluginRequestTimeout time.Duration `toml:"plugin_request_timeout"`
}

// NodeLabels is the file from which Node Feature Discovery labels the node.
type NodeLabels struct {
	// File is written if its directory exists; empty is never.
	File string `toml:"file"`
	// Lifetime is how long a cluster keeps the labels of a daemon that is gone.
	Lifetime time.Duration `toml:"lifetime"`
}

// ContainerdAPI is the API of containerd for agents of the node.
type ContainerdAPI struct {
	// Socket is where it is served; empty is nowhere.
	Socket string `toml:"socket"`
}

type storedDocument struct {
	File string `json:"file"`
	Main bool   `json:"main,omitempty"`
	Text string `json:"text"`
}

// Origin says where the value of a full TOML key, such as "server.socket",
// came from.
func (c *Config) Origin(key string) Origin { return c.origins[key] }

// configKey is a key of a configuration that is not a handler's.
type configKey struct {
	// section is its table, name the key in that.
	section, name string
	// field is the index of its field in Config.
	field []int
}

func (k configKey) String() string { return strings.TrimPrefix(k.section+"."+k.name, ".") }

// configKeys are all of them, in the order of the file format.
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
