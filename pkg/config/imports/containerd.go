package imports

import (
	"cmp"
	"fmt"
	"runtime"
	"strings"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
)

// newestContainerd is the newest supported version of containerd's configuration.
const newestContainerd = 4

// criPlugins are the plugin names of containerd's handlers, oldest first.
var criPlugins = []string{"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"}

const imagesPlugin = "io.containerd.cri.v1.images"

// containerdKeys are the keys of a handler's table. Keys with an empty meaning are translated in
// code.
var containerdKeys = map[string]meaning{
	"pod_annotations":                 {to: "pod_annotations"},
	"container_annotations":           {to: "container_annotations"},
	"privileged_without_host_devices": {to: "privileged_without_host_devices"},
	"base_runtime_spec":               {to: "base_runtime_spec"},
	"cni_conf_dir":                    {to: "cni_conf_dir"},
	"snapshotter":                     {to: "snapshotter"},
	"runtime_root":                    {to: "runtime_root"},

	"privileged_without_host_devices_all_devices_allowed": {
		why: "privileged containers without host devices may use only the devices that they are given"},
	"cgroup_writable": {why: "berth mounts cgroups read-only into containers that are not privileged"},
	"cni_max_conf_num": {why: "berth has one number for all handlers",
		do: "set cni.max_conf_num"},
	"sandboxer": {why: "runtime_type determines what runs a pod", same: "podsandbox"},
	"io_type":   {why: "berth's containers always use FIFOs", same: "fifo"},
	"disable_pause_image_pull": {
		why: "berth never pulls a pause image"},
	"runtime_type": {}, "runtime_path": {}, "runtime_engine": {}, "options": {},
}

// containerdSettings is the advice on settings outside of handlers, by the last part of the key.
var containerdSettings = map[string]string{
	"imports":                     "list these files or their directories in import.containerd",
	"default_runtime_name":        "set default_runtime in berth's own configuration if pods that name no handler shall have this one",
	"default_runtime":             "set default_runtime in berth's own configuration if pods that name no handler shall have this one",
	"cni":                         "see [cni]",
	"snapshotter":                 "set engine.snapshotter",
	"sandbox_image":               "berth needs no pause image",
	"enable_cdi":                  "CDI devices always work",
	"cdi_spec_dirs":               "set engine.cdi_spec_dirs",
	"systemd_cgroup":              "set engine.cgroup_driver",
	"debug":                       "set log.level",
	"grpc":                        "see [server]; for agents that look for containerd's socket set containerd_api.socket",
	"metrics":                     "set metrics.address",
	"proxy_plugins":               "configure [snapshotters.<name>] with its address",
	"io.containerd.nri.v1.nri":    "see [nri]; the keys are the same",
	"stream_processors":           "berth opens encrypted images itself; see registry.decryption_keys_path",
	"max_container_log_line_size": "set engine.max_log_line_size",

	"ignore_image_defined_volumes": "set engine.ignore_image_defined_volumes to the same",
}

// registryAdvice is the replacement for keys of containerd's registry table.
var registryAdvice = map[string]string{
	"config_path": "set registry.hosts_dir to it; hosts.toml files are the same",
	"mirrors":     "write <registry>/hosts.toml with a [host.\"<endpoint>\"] for each endpoint, or _default/hosts.toml for *",
	"tls":         "write <registry>/hosts.toml with ca, client or skip_verify",
	"auth":        "give pods imagePullSecrets, or the kubelet a credential provider",
	"auths":       "give pods imagePullSecrets, or the kubelet a credential provider",
	"headers":     "write hosts.toml files with header",
}

func (t *translation) containerd(files []*tomlfile.Document) {
	tables := map[string]*table{}
	for _, f := range files {
		t.containerdVersion(f)
		for _, key := range sortedKeys(f.Values) {
			switch key {
			case "version", "plugins":
			case "crio", "runtimes":
				t.foreignTable(f, key, "containerd", "import.containerd")
			default:
				t.containerdSetting(f, key)
			}
		}
		plugins := asTable(f.Values["plugins"])
		t.otherPlugins(f, plugins)
		for _, id := range criPlugins {
			t.criPlugin(f, id, asTable(plugins[id]), tables)
		}
	}
	t.imagePlatforms(files, tables)
	for _, name := range sortedKeys(tables) {
		t.containerdHandler(tables[name])
	}
}

func (t *translation) containerdVersion(f *tomlfile.Document) {
	v, _ := f.Values["version"].(int64)
	if v > newestContainerd {
		t.note(place{f, []string{"version"}}, "",
			fmt.Sprintf("is %d; this berth supports versions up to %d, and may miss newer keys", v, newestContainerd), "")
	}
	if v < 3 {
		return
	}
	// A common mistake, which containerd ignores with a warning.
	for _, id := range criPlugins[:2] {
		if runtimes := asTable(asTable(asTable(asTable(f.Values["plugins"])[id])["containerd"])["runtimes"]); len(runtimes) > 0 {
			t.note(place{f, []string{"plugins", id, "containerd", "runtimes"}}, "",
				fmt.Sprintf("containerd does not read this table in a file of version %d; berth does", v), "")
		}
	}
}

func (t *translation) containerdSetting(f *tomlfile.Document, key ...string) {
	if key[len(key)-1] == "registry" {
		t.registry(place{f, key}, asTable(asTable(asTable(f.Values["plugins"])[key[1]])["registry"]), "")
		return
	}
	t.note(place{f, key}, "", "is about containerd itself; only handlers are imported", containerdSettings[key[len(key)-1]])
}

// registry notes each mirror, credential and certificate by its key, without its value, which can
// be secret.
func (t *translation) registry(p place, values map[string]any, of string) {
	for _, key := range sortedKeys(values) {
		below := asTable(values[key])
		switch {
		case unset(values[key]):
		case of == "" && len(below) > 0:
			t.registry(p.below(key), below, key)
		case of == "configs":
			t.registry(p.below(key), below, "configs.<registry>")
		default:
			t.note(p.below(key), "", "is not imported: pulls do not use it", cmp.Or(registryAdvice[of], registryAdvice[key]))
		}
	}
}

func (t *translation) otherPlugins(f *tomlfile.Document, plugins map[string]any) {
	for _, id := range sortedKeys(plugins) {
		switch id {
		case "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime":
		case imagesPlugin:
			allBut("runtime_platforms", asTable(plugins[id]), func(key string) { t.containerdSetting(f, "plugins", id, key) })
		default:
			t.containerdSetting(f, "plugins", id)
		}
	}
}

func (t *translation) criPlugin(f *tomlfile.Document, id string, plugin map[string]any, tables map[string]*table) {
	allBut("containerd", plugin, func(key string) { t.containerdSetting(f, "plugins", id, key) })
	section := asTable(plugin["containerd"])
	allBut("runtimes", section, func(key string) { t.containerdSetting(f, "plugins", id, "containerd", key) })
	runtimes := asTable(section["runtimes"])
	for _, name := range sortedKeys(runtimes) {
		at := place{f, []string{"plugins", id, "containerd", "runtimes", name}}
		values, ok := runtimes[name].(map[string]any)
		switch known := tables[name]; {
		case !ok:
			t.note(at, "", "is not a table, so not a handler", "")
		case known != nil:
			// containerd 2 merges its files in this way.
			known.merge(at, values)
		default:
			tables[name] = newTable(name, at, values)
		}
	}
}

// wasmPlatform is the platform of WebAssembly images, in containerd and in berth.
const wasmPlatform = "wasi/wasm"

// imagePlatforms sets the platform and the snapshotter of handlers' images.
func (t *translation) imagePlatforms(files []*tomlfile.Document, tables map[string]*table) {
	for _, f := range files {
		platforms := asTable(asTable(asTable(f.Values["plugins"])[imagesPlugin])["runtime_platforms"])
		for _, name := range sortedKeys(platforms) {
			at := place{f, []string{"plugins", imagesPlugin, "runtime_platforms", name}}
			platform := asTable(platforms[name])
			for _, key := range sortedKeys(platform) {
				to := tables[name]
				switch {
				case key != "snapshotter" && key != "platform":
					t.note(at.below(key), name, "is a key that containerd does not have either", "")
				case to == nil:
					t.note(at.below(key), "", "is for a handler that no file has", "")
				case key == "platform":
					t.imagePlatform(at.below(key), to, platform[key])
				case unset(to.values[key]):
					to.values[key], to.places[key] = platform[key], at.below(key)
				}
			}
		}
	}
}

// imagePlatform sets the platform of a handler's images: a later file wins.
func (t *translation) imagePlatform(at place, to *table, value any) {
	switch strings.ToLower(fmt.Sprint(value)) {
	case wasmPlatform:
		to.wasm = at
	case "", runtime.GOOS + "/" + runtime.GOARCH:
		to.wasm = place{}
	default:
		t.note(at, to.name, "berth runs images of the node's platform, and of "+wasmPlatform+" for handlers with that platform", "")
	}
}

func (t *translation) containerdHandler(from *table) {
	h := t.begin(from)
	if from.wasm.file != nil {
		h.to.Values["platform"], h.to.From["platform"] = wasmPlatform, from.wasm.origin()
	}
	switch kind, isText := from.values["runtime_type"].(string); {
	case !isText && from.values["runtime_type"] != nil:
		h.set("runtime_type", from.values["runtime_type"], "runtime_type")
	case isRunc(kind):
		h.runc()
	default:
		h.shim(kind)
	}
	h.keys(containerdKeys, "containerd")
	h.end()
}

// isRunc reports whether a type runs an OCI runtime through containerd's own shim.
func isRunc(kind string) bool {
	switch kind {
	case "", "io.containerd.runc.v2", "io.containerd.runc.v1", "io.containerd.runtime.v1.linux":
		return true
	}
	return false
}

// shim translates a handler with another shim.
func (h *translating) shim(kind string) {
	h.set("runtime_type", "shim", "runtime_type")
	program, at := shimProgram(kind), "runtime_type"
	switch named := !unset(h.from.values["runtime_path"]); {
	case !named && strings.HasPrefix(kind, "/"):
		h.set("runtime_path", kind, at)
	case !named && program == "":
		h.to.Unfound, h.to.From["runtime_path"] = fmt.Sprintf("a shim of the type %q", kind), h.from.place(at).origin()
	default:
		h.path(program, at)
	}
	h.unsetEngine("a shim is named by runtime_path or runtime_type")
	h.shimOptions()
}

func (h *translating) unsetEngine(why string) {
	if !unset(h.from.values["runtime_engine"]) {
		h.note("runtime_engine", why, "")
	}
}

// shimProgram returns the name of the binary that containerd derives from a type.
func shimProgram(kind string) string {
	parts := strings.Split(kind, ".")
	if len(parts) < 2 || parts[0] == "" || strings.Contains(kind, "/") {
		return ""
	}
	return "containerd-shim-" + parts[len(parts)-2] + "-" + parts[len(parts)-1]
}

// shimOptions translates the options of a shim. A named file overrides the table, as in containerd.
func (h *translating) shimOptions() {
	options := h.from.options()
	file := options["ConfigPath"]
	named := !unset(file)
	if named {
		h.set("runtime_config_path", file, "options.ConfigPath")
	}
	for _, key := range sortedKeys(options) {
		switch {
		case key == "ConfigPath":
		case named && key != "TypeUrl":
			h.note("options."+key, "neither containerd nor berth passes it to a shim with a ConfigPath", "")
		default:
			h.option(key, options[key], "options."+key)
		}
	}
}
