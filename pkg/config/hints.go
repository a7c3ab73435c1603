package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/handler"
)

// section is the kind of table that a key is in.
type section string

const (
	sectionTop     section = ""
	sectionHandler section = "runtimes.*"
	sectionOCI     section = "runtimes.*.options (oci)"
	sectionRunc    section = "runtimes.*.options (runc shim)"
	sectionShim    section = "runtimes.*.options (other shims)"
)

// elsewhere says what became of a key that CRI-O or containerd has: the key
// that means the same here, or why there is none.
type elsewhere struct{ key, text string }

const (
	noMonitor       = "berth has no configurable monitor; its supervisor is engine.shim_path"
	noPause         = "berth needs no pause image; engine.pause_path is its sandbox process"
	crioTable       = "belongs to CRI-O; list the file in import.crio to serve its handlers, or translate it: berth config import FILE"
	containerdTable = "belongs to containerd; list the file in import.containerd to serve its handlers, or translate it: berth config import FILE"
)

// foreign are the keys of CRI-O's and containerd's documented configuration
// that people carry over.
var foreign = map[section]map[string]elsewhere{
	sectionTop: {
		"default_runtime_name": {key: "default_runtime"},
		"root":                 {key: "engine.root"},
		"state":                {key: "engine.state"},
		"imports":              {text: "drop-ins are read from conf.d beside this file; list those of containerd in import.containerd"},
		"grpc":                 {key: "server"},
		"api":                  {key: "server"},
		"network":              {key: "cni"},
		"image":                {key: "registry"},
		"debug":                {key: "log"},
		"proxy_plugins":        {key: "snapshotters"},
		"log_level":            {key: "log.level"},
		"crio":                 {text: crioTable},
		"plugins":              {text: containerdTable},
		"image_decryption":     {key: "registry.decryption_keys_path"},
		"stream_processors":    {text: "berth decrypts images itself, with the keys in registry.decryption_keys_path"},
		"cgroup_manager":       {key: "engine.cgroup_driver"},
	},
	"import": {
		"crio_dirs":       {key: "import.crio"},
		"cri-o":           {key: "import.crio"},
		"containerd_dirs": {key: "import.containerd"},
		"imports":         {key: "import.containerd"},
	},
	"server": {
		"listen":                {key: "server.socket"},
		"address":               {key: "server.socket"},
		"gid":                   {key: "server.socket_group"},
		"stream_address":        {key: "streaming.address"},
		"stream_port":           {key: "streaming.port"},
		"stream_idle_timeout":   {key: "streaming.idle_timeout"},
		"stream_server_address": {key: "streaming.address"},
		"stream_server_port":    {key: "streaming.port"},
	},
	"engine": {
		"cgroup_manager":                      {key: "engine.cgroup_driver"},
		"systemd_cgroup":                      {key: "engine.cgroup_driver"},
		"log_size_max":                        {text: "the kubelet rotates logs (containerLogMaxSize)"},
		"max_container_log_line_size":         {key: "engine.max_log_line_size"},
		"enable_unprivileged_ports":           {key: "engine.unprivileged_ports"},
		"enable_unprivileged_icmp":            {key: "engine.unprivileged_icmp"},
		"tolerate_missing_hugetlb_controller": {key: "engine.tolerate_missing_hugetlb"},
		"drain_exec_sync_io_timeout":          {key: "engine.exec_sync_drain_timeout"},
		"seccomp_profile":                     {key: "engine.default_seccomp_profile"},
		"unset_seccomp_profile":               {key: "engine.default_seccomp_profile"},
		"conmon":                              {text: noMonitor},
		"conmon_cgroup":                       {text: noMonitor},
		"pause_image":                         {text: noPause},
		"pause_command":                       {text: noPause},
		"sandbox_image":                       {text: noPause},
		"sandbox":                             {text: noPause},
		"default_runtime_name":                {key: "default_runtime"},
		"decryption_keys_path":                {key: "registry.decryption_keys_path"},
		"default_snapshotter":                 {key: "engine.snapshotter"},
		"image_pull_progress_timeout":         {key: "registry.pull_progress_timeout"},
		"discard_unpacked_layers":             {key: "registry.discard_unpacked_layers"},
		"max_concurrent_downloads":            {key: "registry.max_concurrent_downloads"},
		"pinned_images":                       {key: "registry.pinned_images"},
		"mount_options":                       {key: "engine.overlay_mount_options"},
		"storage_option":                      {key: "engine.overlay_mount_options"},
		"privileged_without_host_devices":     {text: "belongs to each handler, under [runtimes.<handler>]"},
		"container_create_timeout":            {text: "belongs to each handler, under [runtimes.<handler>]"},
		"image_volumes":                       {text: "use ignore_image_defined_volumes = true for \"ignore\"; otherwise berth creates the volumes"},
		"ignore_deprecation_warnings":         {text: "not supported by berth"},
		"restrict_oom_score_adj":              {text: "berth limits oom_score_adj by itself where it cannot lower it"},
		"disable_apparmor":                    {text: "berth detects this from the kernel; nothing to disable"},
		"enable_selinux":                      {text: "berth detects this from the kernel; nothing to enable"},
		"disable_cgroup":                      {text: "not supported by berth"},
	},
	"cni": {
		"bin_dir":     {key: "cni.bin_dirs"},
		"plugin_dir":  {key: "cni.bin_dirs"},
		"plugin_dirs": {key: "cni.bin_dirs"},
		"network_dir": {key: "cni.conf_dir"},
	},
	"registry": {
		"config_path":                 {key: "registry.hosts_dir"},
		"image_pull_progress_timeout": {key: "registry.pull_progress_timeout"},
		"mirrors":                     {text: "mirrors are hosts.toml files under registry.hosts_dir"},
		"configs":                     {text: "credentials and certificates are hosts.toml files under registry.hosts_dir"},
		"auths":                       {text: "credentials come with the pull request or from hosts.toml files under registry.hosts_dir"},
	},
	"streaming": {
		"stream_server_address": {key: "streaming.address"},
		"stream_server_port":    {key: "streaming.port"},
		"stream_idle_timeout":   {key: "streaming.idle_timeout"},
	},
	"nri": {
		"enable_nri":                      {text: "plugins are on unless nri.disable is true; their socket is nri.socket_path"},
		"nri_listen":                      {key: "nri.socket_path"},
		"nri_plugin_dir":                  {key: "nri.plugin_path"},
		"nri_plugin_config_dir":           {key: "nri.plugin_config_path"},
		"nri_plugin_registration_timeout": {key: "nri.plugin_registration_timeout"},
		"nri_plugin_request_timeout":      {key: "nri.plugin_request_timeout"},
		"nri_disable_connections":         {key: "nri.disable_connections"},
		"default_validator":               {text: "not supported by berth; use a validating plugin of your own"},
	},
	"metrics": {
		"enable_metrics": {text: "metrics are on when metrics.address is set"},
		"metrics_host":   {key: "metrics.address"},
		"metrics_port":   {key: "metrics.address"},
		"metrics_socket": {key: "metrics.address"},
		"grpc_histogram": {text: "histograms of all calls are always exported"},
		"metrics_cert":   {text: "berth serves metrics without TLS; put a proxy in front"},
		"metrics_key":    {text: "berth serves metrics without TLS; put a proxy in front"},
	},
	"tracing": {
		"enable_tracing":                    {text: "tracing is on when tracing.endpoint is set"},
		"tracing_endpoint":                  {key: "tracing.endpoint"},
		"tracing_sampling_rate_per_million": {key: "tracing.sample_ratio"},
		"sampling_ratio":                    {key: "tracing.sample_ratio"},
		"service_name":                      {text: "set OTEL_SERVICE_NAME in the daemon's environment"},
		"protocol":                          {text: "berth speaks OTLP over gRPC"},
	},
	"log": {"log_level": {key: "log.level"}},
	sectionHandler: {
		"BinaryName":           {key: "runtime_path"},
		"binary_name":          {key: "runtime_path"},
		"runtime_engine":       {key: "runtime_path"},
		"path":                 {key: "runtime_path"},
		"type":                 {key: "runtime_type"},
		"root":                 {key: "runtime_root"},
		"config_path":          {key: "runtime_config_path"},
		"ConfigPath":           {key: "runtime_config_path"},
		"SystemdCgroup":        {key: "engine.cgroup_driver"},
		"systemd_cgroup":       {key: "engine.cgroup_driver"},
		"cgroup_manager":       {key: "engine.cgroup_driver"},
		"monitor_path":         {key: "engine.shim_path"},
		"monitor_cgroup":       {text: noMonitor},
		"monitor_env":          {text: noMonitor},
		"monitor_exec_cgroup":  {text: noMonitor},
		"allowed_annotations":  {key: "pod_annotations"},
		"seccomp_profile":      {key: "engine.default_seccomp_profile"},
		"sandboxer":            {text: "determined by runtime_type"},
		"sandbox_mode":         {key: "sandbox_process"},
		"create_timeout":       {key: "container_create_timeout"},
		"NoPivotRoot":          {key: "options.no_pivot_root"},
		"no_pivot":             {key: "options.no_pivot_root"},
		"NoNewKeyring":         {key: "options.no_new_keyring"},
		"cni_max_conf_num":     {key: "cni.max_conf_num"},
		"runtime_pull_image":   {text: "not supported by berth; images are pulled on the node"},
		"container_min_memory": {text: "not supported by berth; the kernel and the runtime report too low limits"},
		"no_sync_log":          {text: "not supported by berth"},
		"io_type":              {text: "berth's containers always use FIFOs"},
		"stream_websockets":    {text: "berth streams by WebSocket and SPDY; nothing to choose"},
		"cgroup_writable":      {text: "not supported by berth"},
		"exec_cpu_affinity":    {text: "not supported by berth"},
		"platform_runtime_paths": {
			text: "configure one handler for each runtime and choose by RuntimeClass"},
		"inherit_default_runtime": {text: "set runtime_path on the handler"},
		"disable_pause_image_pull": {
			text: noPause},
		"privileged_without_host_devices_all_devices_allowed": {key: "privileged_without_host_devices"},
	},
	sectionShim: {
		"ConfigPath": {key: "runtime_config_path"},
	},
	sectionOCI: {
		"BinaryName":    {key: "runtime_path"},
		"Root":          {key: "runtime_root"},
		"ConfigPath":    {key: "runtime_config_path"},
		"SystemdCgroup": {key: "engine.cgroup_driver"},
		"ShimCgroup":    {text: noMonitor},
		"TypeUrl":       {text: "is for shims only; berth does not need it"},
		"CriuImagePath": {text: "is for shims only; the kubelet chooses where checkpoints are written"},
		"CriuWorkPath":  {text: "is for shims only; the kubelet chooses where checkpoints are written"},
		"args":          {key: "global_flags"},
		"flags":         {key: "global_flags"},
	},
	sectionRunc: {
		"runtime_path": {key: "BinaryName"},
		"runtime_root": {key: "Root"},
		"global_flags": {text: "is for oci handlers only; a shim does not pass flags to its runtime"},
		"ConfigPath":   {text: "the runc shim does not read a configuration file"},
		"TypeUrl":      {text: "the type follows from the shim's name"},
		"CriuPath":     {text: "this option was removed from the runc shim"},
	},
}

// unknownKey says what is wrong with a key that this section does not have,
// and which key was probably meant.
func unknownKey(kind section, name string, known []string) (message, suggestion string) {
	if e, ok := foreign[kind][name]; ok {
		return foreignKey(e), e.key
	}
	if near, ok := handler.Nearest(name, known); ok {
		return "unknown key", near
	}
	longer := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return !strings.Contains("_"+k+"_", "_"+name+"_") })
	if len(longer) == 1 {
		return "unknown key", longer[0]
	}
	if where, full := homeOf(kind, name); where != "" {
		return "unknown key here; it belongs " + where, full
	}
	return "unknown key; " + expected(known), ""
}

// foreignKey is what to say of a key that another daemon has.
func foreignKey(e elsewhere) string {
	if e.key == "" {
		return "unknown key: " + e.text
	}
	return "unknown key; use " + e.key
}

func expected(known []string) string {
	sorted := slices.Sorted(slices.Values(known))
	return "expected one of " + strings.Join(sorted, ", ")
}

// homeOf finds a key of that very name in another section: the place in words,
// and the full key where there is one.
func homeOf(kind section, name string) (where, full string) {
	if _, ok := fieldsOf(reflect.TypeFor[ociOptions]()).index[name]; ok && kind == sectionHandler {
		return "into [runtimes.<handler>.options]", "options." + name
	}
	inHandler := kind == sectionOCI || kind == sectionRunc
	if _, ok := fieldsOf(reflect.TypeFor[runtimeTable]()).index[name]; ok {
		if inHandler {
			return "into the handler's own table, not into options", ""
		}
		return "into [runtimes.<handler>]", ""
	}
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("toml")
		switch {
		case tag == "" || tag == "-":
		case f.Type.Kind() != reflect.Struct:
			if tag == name && kind != sectionTop {
				return "at the top of the file, before the first table", ""
			}
		default:
			if _, ok := fieldsOf(f.Type).index[name]; ok {
				return "into [" + tag + "]", tag + "." + name
			}
		}
	}
	return "", ""
}
