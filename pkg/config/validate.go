package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

var (
	supervisions = []string{string(handler.SupervisionHandler), string(handler.SupervisionPod)}
	drivers      = []string{string(CgroupDriverAuto), string(CgroupDriverCgroupfs), string(CgroupDriverSystemd)}
	levels       = []string{"trace", "debug", "info", "warn", "error"}
	formats      = []string{"text", "json"}
)

// runtimeName matches names that the kubelet can use as the scheme of container ids.
var runtimeName = regexp.MustCompile(`^[a-z][a-z0-9.-]{0,62}$`)

// cgroupPrefix matches names that systemd uses unescaped in a unit's name, and that are one
// directory. Without a dot, a name cannot equal a file of a version 2 cgroup.
var cgroupPrefix = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]{0,62}[A-Za-z0-9])?$`)

// maxSocketPath is the capacity of sockaddr_un.sun_path without its final zero byte; see unix(7).
const maxSocketPath = 107

// validator checks the merged sections and reports problems at the origin of a value.
type validator struct {
	cfg      *Config
	problems Problems
}

func (v *validator) problem(key, message, suggestion string) Problem {
	return Problem{Origin: v.cfg.Origin(key), Key: key, Message: message, Suggestion: suggestion}
}

func (v *validator) wrong(key, message, suggestion string) {
	v.problems = append(v.problems, v.problem(key, message, suggestion))
}

// validate checks all sections but the handlers.
func (v *validator) validate() {
	c := v.cfg
	v.paths(c)
	v.sockets(c)
	v.server(&c.Server)
	v.engine(&c.Engine)
	v.registry(&c.Registry)
	v.streaming(&c.Streaming)
	v.times(c)
	v.snapshotters(c.Snapshotters)
	v.labelsFile(c.NodeLabels.File)
	v.observation(c)
	if len(c.CNI.BinDirs) == 0 {
		v.wrong("cni.bin_dirs", "must name at least one directory", "")
	}
	if c.CNI.MaxConfNum < 0 {
		v.wrong("cni.max_conf_num", "must be 1 or more, or 0 for all", "")
	}
}

func (v *validator) paths(c *Config) {
	for key, path := range map[string]string{
		"server.socket":          c.Server.Socket,
		"engine.root":            c.Engine.Root,
		"engine.state":           c.Engine.State,
		"cni.conf_dir":           c.CNI.ConfDir,
		"cni.cache_dir":          c.CNI.CacheDir,
		"nri.plugin_path":        c.NRI.PluginPath,
		"nri.plugin_config_path": c.NRI.PluginConfigPath,
	} {
		v.absolute(key, path)
	}
	for key, path := range map[string]string{
		"server.admin_socket":            c.Server.AdminSocket,
		"engine.writable_root":           c.Engine.WritableRoot,
		"engine.default_seccomp_profile": c.Engine.DefaultSeccompProfile,
		"registry.hosts_dir":             c.Registry.HostsDir,
		"registry.decryption_keys_path":  c.Registry.DecryptionKeysPath,
		"registry.preload_dir":           c.Registry.PreloadDir,
		"image_verifier.bin_dir":         c.ImageVerifier.BinDir,
		"nri.socket_path":                c.NRI.SocketPath,
		"containerd_api.socket":          c.ContainerdAPI.Socket,
		"node_labels.file":               c.NodeLabels.File,
	} {
		if path != "" {
			v.absolute(key, path)
		}
	}
	for key, paths := range map[string][]string{
		"import.crio":          c.Import.CRIO,
		"import.containerd":    c.Import.Containerd,
		"engine.cdi_spec_dirs": c.Engine.CDISpecDirs,
		"cni.bin_dirs":         c.CNI.BinDirs,
	} {
		for _, path := range paths {
			v.absolute(key, path)
		}
	}
}

// sockets checks that the paths of the served unix sockets are short enough, and differ.
func (v *validator) sockets(c *Config) {
	for key, path := range map[string]string{
		"server.socket":         c.Server.Socket,
		"server.admin_socket":   c.Server.Admin(),
		"nri.socket_path":       c.NRI.SocketPath,
		"containerd_api.socket": c.ContainerdAPI.Socket,
	} {
		if len(path) > maxSocketPath {
			v.wrong(key, fmt.Sprintf("has %d bytes; the limit for unix socket paths is %d", len(path), maxSocketPath), "")
		}
	}
	same := func(a, b string) bool { return a != "" && b != "" && filepath.Clean(a) == filepath.Clean(b) }
	if same(c.Server.Admin(), c.Server.Socket) {
		v.wrong("server.admin_socket", "is the same as server.socket; the management API needs a separate socket", "")
	}
	if same(c.NRI.SocketPath, c.Server.Socket) {
		v.wrong("nri.socket_path", "is the same as server.socket; plugins need a separate socket", "")
	}
	for _, other := range []struct{ path, is string }{
		{filepath.Join(c.Engine.State, "containerd.sock"), "the socket of shims in engine.state"},
		{c.Server.Socket, "the same as server.socket"},
		{c.Server.Admin(), "the socket of the management API"},
		{c.NRI.SocketPath, "the same as nri.socket_path"},
	} {
		if same(c.ContainerdAPI.Socket, other.path) {
			v.wrong("containerd_api.socket", "is "+other.is+"; agents need a separate socket", "")
			break
		}
	}
}

// minLabelsLifetime leaves time to retry a failed write.
const minLabelsLifetime = 10 * time.Second

func (v *validator) times(c *Config) {
	for key, t := range map[string]time.Duration{
		"image_verifier.per_verifier_timeout": c.ImageVerifier.PerVerifierTimeout,
		"streaming.idle_timeout":              c.Streaming.IdleTimeout,
		"nri.plugin_registration_timeout":     c.NRI.PluginRegistrationTimeout,
		"nri.plugin_request_timeout":          c.NRI.PluginRequestTimeout,
	} {
		if t <= 0 {
			v.wrong(key, "must be more than 0", "")
		}
	}
	for key, t := range map[string]time.Duration{
		"handlers.probe_interval": c.Handlers.ProbeInterval,
		"handlers.ask_interval":   c.Handlers.AskInterval,
	} {
		if t != 0 && t < time.Second {
			v.wrong(key, `must be "1s" or more, or "0s" for never`, "")
		}
	}
	if c.NodeLabels.Lifetime < minLabelsLifetime {
		v.wrong("node_labels.lifetime", `must be "10s" or more`, "")
	}
}

func (v *validator) server(s *Server) {
	if s.SocketGroup != "" && !groupExists(s.SocketGroup) {
		v.wrong("server.socket_group", fmt.Sprintf("group %q does not exist on this machine", s.SocketGroup), "")
	}
	if !runtimeName.MatchString(s.RuntimeName) {
		v.wrong("server.runtime_name", fmt.Sprintf("%q is not a valid runtime name: it is the prefix of container IDs (name://id), "+
			"so use lower case letters, digits, '-' and '.', and begin with a letter", s.RuntimeName), Default().Server.RuntimeName)
	}
	if s.SocketMode&0o600 != 0o600 {
		v.wrong("server.socket_mode", fmt.Sprintf("%04o denies the owner access; use at least 0600", s.SocketMode), "0660")
	}
}

func groupExists(name string) bool {
	if _, err := strconv.ParseUint(name, 10, 32); err == nil {
		return true
	}
	_, err := user.LookupGroup(name)
	return err == nil
}

func (v *validator) engine(e *Engine) {
	if filepath.Clean(e.Root) == filepath.Clean(e.State) {
		v.wrong("engine.state", "must differ from engine.root: a reboot empties engine.state, while engine.root must persist", "")
	}
	v.word("engine.cgroup_driver", string(e.CgroupDriver), drivers)
	if !cgroupPrefix.MatchString(e.CgroupPrefix) {
		v.wrong("engine.cgroup_prefix", fmt.Sprintf("%q is not a valid prefix: it becomes a part of the names of cgroups (prefix-id.scope), "+
			"so use at most 64 letters, digits, '-' and '_', and begin and end with a letter or a digit", e.CgroupPrefix), likePrefix(e.CgroupPrefix))
	}
	v.word("engine.supervision", string(e.Supervision), supervisions)
	v.word("engine.snapshotter", e.Snapshotter, v.cfg.snapshotterNames())
	if e.MaxLogLineSize < 1 && e.MaxLogLineSize != -1 {
		v.wrong("engine.max_log_line_size", "must be a number of bytes, or -1 for no limit", "")
	}
	for key, path := range map[string]string{"engine.shim_path": e.ShimPath, "engine.pause_path": e.PausePath} {
		if m := hostfiles.ExecutableMistake(path); path != "" && m != "" {
			v.wrong(key, m, "")
		}
	}
	if p := e.DefaultSeccompProfile; filepath.IsAbs(p) {
		if m := hostfiles.Mistake("seccomp", p, noProfile); m != "" {
			v.wrong("engine.default_seccomp_profile", m, "")
		}
	}
	for _, o := range e.OverlayMountOptions {
		if m := overlayOptionMistake(o); m != "" {
			v.wrong("engine.overlay_mount_options", m, "")
		}
	}
}

var noPrefix = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// likePrefix suggests a valid prefix. Pure.
func likePrefix(prefix string) string {
	if like := strings.Trim(noPrefix.ReplaceAllString(prefix, "-"), "-_"); cgroupPrefix.MatchString(like) {
		return like
	}
	return Default().Engine.CgroupPrefix
}

// overlayOptionMistake returns why an option is invalid for an overlay mount, or is set by berth
// itself.
func overlayOptionMistake(option string) string {
	name, _, _ := strings.Cut(option, "=")
	switch name {
	case "lowerdir", "lowerdir+", "datadir+", "upperdir", "workdir":
		return fmt.Sprintf("%s is set on every mount by berth", name)
	case "volatile":
		return "volatile is the default; sync_rootfs = true removes it"
	}
	if option == "" || strings.ContainsAny(option, ", \t") {
		return fmt.Sprintf("%q is not a valid mount option; write each as a separate string", option)
	}
	return ""
}

func noProfile(file string) string {
	var profile struct {
		DefaultAction string `json:"defaultAction"`
	}
	m := hostfiles.NoJSON(file, "a seccomp profile", &profile)
	if m == "" && profile.DefaultAction == "" {
		return file + " is not a seccomp profile: defaultAction is missing"
	}
	return m
}

func (v *validator) registry(r *Registry) {
	if r.MaxConcurrentDownloads < 1 {
		v.wrong("registry.max_concurrent_downloads", "must be 1 or more", "")
	}
	if r.PullProgressTimeout < 0 {
		v.wrong("registry.pull_progress_timeout", "must not be negative", "")
	}
	if r.MaxUnpackMemory < 128<<20 {
		v.wrong("registry.max_unpack_memory", "must be 134217728 (128 MiB) or more", "")
	}
	if r.MaxImageEntries < 1 {
		v.wrong("registry.max_image_entries", "must be 1 or more", "")
	}
	for key, names := range map[string][]string{"registry.pinned_images": r.PinnedImages, "registry.checkpoint_images": r.CheckpointImages} {
		for _, n := range names {
			if n == "" || strings.ContainsAny(n, " \t") {
				v.wrong(key, fmt.Sprintf("%q is not a valid image name", n), "")
			}
		}
	}
}

func (v *validator) streaming(s *Streaming) {
	if ip, err := netip.ParseAddr(s.Address); err != nil {
		v.wrong("streaming.address", fmt.Sprintf("%q is not an IP address", s.Address), "127.0.0.1")
	} else if ip.IsUnspecified() {
		v.wrong("streaming.address", s.Address+" cannot be reached by the kubelet, and would open the port to the network", "127.0.0.1")
	}
	if s.Port < 0 || s.Port > 65535 {
		v.wrong("streaming.port", "must be a port from 1 to 65535, or 0 to let the kernel choose", "")
	}
	for _, host := range s.PermittedRemoteHosts {
		if _, err := netip.ParseAddr(host); err != nil && (host == "" || strings.ContainsAny(host, "/:[]*@ \t")) {
			v.wrong("streaming.permitted_remote_hosts", fmt.Sprintf("%q is neither a host name nor an IP address; write it without a port", host), "")
		}
	}
}

// builtin are the snapshotters without a table.
var builtin = []string{"overlayfs", "erofs", "native"}

// snapshotterName matches valid names of directories and labels.
var snapshotterName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

func (c *Config) snapshotterNames() []string {
	return slices.Concat(builtin, slices.Sorted(maps.Keys(c.Snapshotters)))
}

func (v *validator) snapshotters(all map[string]Snapshotter) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		key := tomlfile.Under("snapshotters", name)
		switch address := all[name].Address; {
		case slices.Contains(builtin, name):
			v.wrong(key, fmt.Sprintf("%q is built into berth; give this snapshotter another name", name), "")
		case !snapshotterName.MatchString(name):
			v.wrong(key, "a snapshotter's name must have lower case letters, digits, '.', '_' and '-' only, at most 63", "")
		case address == "":
			v.wrong(key, "address is missing; set it to the path of the snapshotter's socket", "")
		case !filepath.IsAbs(strings.TrimPrefix(address, "unix://")):
			v.wrong(tomlfile.Under(key, "address"), fmt.Sprintf("%q must be the absolute path of a unix socket", address), "")
		case len(strings.TrimPrefix(address, "unix://")) > maxSocketPath:
			v.wrong(tomlfile.Under(key, "address"), fmt.Sprintf("must have at most %d bytes, the limit for unix socket paths", maxSocketPath), "")
		}
	}
}

func (v *validator) labelsFile(file string) {
	switch name := filepath.Base(file); {
	case strings.HasSuffix(file, "/"):
		v.wrong("node_labels.file", fmt.Sprintf("%q is a directory; it must be the path of a file", file), file+"berth")
	case file != "" && strings.HasPrefix(name, "."):
		v.wrong("node_labels.file", fmt.Sprintf("Node Feature Discovery does not read %q, because its name begins with a dot", name), "")
	}
}

func (v *validator) observation(c *Config) {
	if m := metricsMistake(c.Metrics.Address); m != "" {
		v.wrong("metrics.address", m, "")
	}
	if m, s := endpointMistake(c.Tracing.Endpoint); m != "" {
		v.wrong("tracing.endpoint", m, s)
	}
	if r := c.Tracing.SampleRatio; !(r >= 0 && r <= 1) {
		v.wrong("tracing.sample_ratio", "must be from 0 to 1", "")
	}
	v.word("log.level", c.Log.Level, levels)
	v.word("log.format", c.Log.Format, formats)
}

func metricsMistake(address string) string {
	path, unix := strings.CutPrefix(address, "unix://")
	switch {
	case unix && (!filepath.IsAbs(path) || len(path) > maxSocketPath):
		return fmt.Sprintf("%q must be unix:// and an absolute path of at most %d bytes", address, maxSocketPath)
	case !unix && address != "" && !hostPort(address):
		return fmt.Sprintf("%q must be host:port, such as \"127.0.0.1:9091\", or unix:///path; leave it empty to disable metrics", address)
	}
	return ""
}

func endpointMistake(endpoint string) (message, suggestion string) {
	if _, rest, url := strings.Cut(endpoint, "://"); url {
		return fmt.Sprintf("%q must be host:port without a scheme; tracing.insecure selects whether TLS is used", endpoint), strings.TrimRight(rest, "/")
	}
	if endpoint != "" && !hostPort(endpoint) {
		return fmt.Sprintf("%q must be host:port, such as \"127.0.0.1:4317\"; leave it empty to disable tracing", endpoint), ""
	}
	return "", ""
}

func hostPort(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

func (v *validator) absolute(key, path string) {
	if !filepath.IsAbs(path) {
		v.wrong(key, fmt.Sprintf("%q must be an absolute path", path), "")
	}
}

func (v *validator) word(key, value string, allowed []string) {
	if m, s := wordMistake(value, allowed); m != "" {
		v.wrong(key, m, s)
	}
}

func wordMistake(value string, allowed []string) (message, suggestion string) {
	quoted := make([]string, len(allowed))
	for i, a := range allowed {
		if a == value {
			return "", ""
		}
		quoted[i] = strconv.Quote(a)
	}
	last := len(quoted) - 1
	near, _ := handler.Nearest(value, allowed)
	return fmt.Sprintf("%q must be %s or %s", value, strings.Join(quoted[:last], ", "), quoted[last]), near
}
