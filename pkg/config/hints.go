package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// Kinds of tables that are not identified by the name of their section.
const (
	sectionTop     = ""
	sectionHandler = "runtimes.*"
	sectionOCI     = "runtimes.*.options (oci)"
	sectionRunc    = "runtimes.*.options (runc shim)"
)

// elsewhere is the counterpart of a key of CRI-O or containerd: berth's equivalent key, or the
// reason for its absence.
type elsewhere struct{ key, text string }

const (
	noMonitor       = "berth has no configurable monitor; its supervisor is engine.shim_path"
	noPause         = "berth needs no pause image; engine.pause_path is its sandbox process"
	crioTable       = "belongs to CRI-O; list the file in import.crio to serve its handlers, or translate it: berth config import FILE"
	containerdTable = "belongs to containerd; list the file in import.containerd to serve its handlers, or translate it: berth config import FILE"
)

// foreign are the keys of CRI-O and containerd that are copied most often; "berth config import"
// translates complete handlers.
var foreign = map[string]map[string]elsewhere{
	sectionTop: {
		"default_runtime_name": {key: "default_runtime"},
		"root":                 {key: "engine.root"},
		"state":                {key: "engine.state"},
		"imports":              {text: "drop-ins are read from conf.d beside this file; list those of containerd in import.containerd"},
		"proxy_plugins":        {key: "snapshotters"},
		"log_level":            {key: "log.level"},
		"crio":                 {text: crioTable},
		"plugins":              {text: containerdTable},
		"cgroup_manager":       {key: "engine.cgroup_driver"},
	},
	"import": {
		"crio_dirs":       {key: "import.crio"},
		"cri-o":           {key: "import.crio"},
		"containerd_dirs": {key: "import.containerd"},
	},
	"server": {
		"listen":  {key: "server.socket"},
		"address": {key: "server.socket"},
	},
	"engine": {
		"cgroup_manager":      {key: "engine.cgroup_driver"},
		"systemd_cgroup":      {key: "engine.cgroup_driver"},
		"seccomp_profile":     {key: "engine.default_seccomp_profile"},
		"conmon":              {text: noMonitor},
		"pause_image":         {text: noPause},
		"sandbox_image":       {text: noPause},
		"default_snapshotter": {key: "engine.snapshotter"},
	},
	"cni": {
		"bin_dir":     {key: "cni.bin_dirs"},
		"plugin_dirs": {key: "cni.bin_dirs"},
	},
	"registry": {
		"config_path": {key: "registry.hosts_dir"},
		"mirrors":     {text: "mirrors are hosts.toml files under registry.hosts_dir"},
		"configs":     {text: "credentials and certificates are hosts.toml files under registry.hosts_dir"},
		"auths":       {text: "credentials come with the request to pull or from hosts.toml files under registry.hosts_dir"},
	},
	sectionHandler: {
		"BinaryName":              {key: "runtime_path"},
		"runtime_engine":          {key: "runtime_path"},
		"path":                    {key: "runtime_path"},
		"root":                    {key: "runtime_root"},
		"ConfigPath":              {key: "runtime_config_path"},
		"SystemdCgroup":           {key: "engine.cgroup_driver"},
		"monitor_path":            {key: "engine.shim_path"},
		"allowed_annotations":     {key: "pod_annotations"},
		"sandboxer":               {text: "determined by runtime_type"},
		"runtime_pull_image":      {text: "not supported by berth; images are pulled on the node"},
		"inherit_default_runtime": {text: "set runtime_path on the handler"},
		"privileged_without_host_devices_all_devices_allowed": {key: "privileged_without_host_devices"},
	},
	sectionOCI: {
		"BinaryName":    {key: "runtime_path"},
		"Root":          {key: "runtime_root"},
		"ConfigPath":    {key: "runtime_config_path"},
		"SystemdCgroup": {key: "engine.cgroup_driver"},
		"TypeUrl":       {text: "is for shims only; berth does not need it"},
		"args":          {key: "global_flags"},
	},
	sectionRunc: {
		"runtime_path": {key: "BinaryName"},
		"runtime_root": {key: "Root"},
		"global_flags": {text: "is for oci handlers only; a shim does not pass flags to its runtime"},
	},
}

func unknownKey(kind string, name string, known []string) (message, suggestion string) {
	switch e, ok := foreign[kind][name]; {
	case ok && e.key == "":
		return "unknown key: " + e.text, ""
	case ok:
		return "unknown key; use " + e.key, e.key
	}
	if near, ok := handler.Nearest(name, known); ok {
		return "unknown key", near
	}
	longer := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return !strings.Contains("_"+k+"_", "_"+name+"_") })
	if len(longer) == 1 {
		return "unknown key", longer[0]
	}
	where, full := homeOf(kind, name)
	switch {
	case where == "":
		return "unknown key; " + expected(known), ""
	case len(known) > maxListed:
		return "unknown key here; it belongs " + where, full
	}
	return "unknown key; " + expected(known) + "; " + name + " belongs " + where, full
}

// maxListed is the number of keys beyond which a list of them would hide the place of a key.
const maxListed = 6

func expected(known []string) string {
	sorted := slices.Sorted(slices.Values(known))
	return "expected one of " + strings.Join(sorted, ", ")
}

// homeOf finds a key of exactly that name in another section: the place in words, and the full key
// to suggest, or "".
func homeOf(kind string, name string) (where, full string) {
	inHandler := kind == sectionOCI || kind == sectionRunc
	if _, ok := tomlfile.FieldsOf(reflect.TypeFor[handler.OCIOptions]()).Index[name]; ok && !inHandler {
		if kind == sectionHandler {
			full = "options." + name
		}
		return "into [runtimes.<handler>.options]", full
	}
	if _, ok := tomlfile.FieldsOf(reflect.TypeFor[runtimeTable]()).Index[name]; ok {
		if inHandler {
			return "into the handler's own table, not into options", ""
		}
		return "into [runtimes.<handler>]", ""
	}
	for _, k := range configKeys() {
		switch {
		case k.name != name:
		case k.section != "":
			return "into [" + k.section + "]", k.String()
		case kind != sectionTop:
			return "at the top of the file, before the first table", ""
		}
	}
	return "", ""
}
