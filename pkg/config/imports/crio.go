package imports

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
)

// crioKeys are the keys of [crio.runtime.runtimes.<handler>]. Keys with an empty meaning are
// translated in code.
var crioKeys = map[string]meaning{
	"runtime_root":                    {to: "runtime_root"},
	"runtime_config_path":             {to: "runtime_config_path"},
	"privileged_without_host_devices": {to: "privileged_without_host_devices"},
	"default_annotations":             {to: "default_annotations"},

	"monitor_path":        {why: noMonitor},
	"monitor_cgroup":      {why: noMonitor},
	"monitor_env":         {why: noMonitor},
	"monitor_exec_cgroup": {why: noMonitor},
	"platform_runtime_paths": {why: "berth runs images of the node's platform only",
		do: "make a handler for each of these runtimes, and choose by RuntimeClass"},
	"runtime_pull_image": {why: "berth pulls images on the node and hands the runtime a root file system",
		do: "pods that need their image pulled inside the virtual machine must stay on CRI-O"},
	"container_min_memory": {why: "the runtime determines the least memory"},
	"no_sync_log":          {why: "berth does not flush logs to the disk at each rotation"},
	"stream_websockets":    {why: "berth streams by WebSocket and SPDY, as the client asks"},
	"exec_cpu_affinity":    {why: "the runtime chooses the CPU on which an exec begins"},
	"seccomp_profile": {why: "berth has one RuntimeDefault profile for the node",
		do: "set engine.default_seccomp_profile"},
	"runtime_path": {}, "runtime_type": {}, "allowed_annotations": {},
	"container_create_timeout": {}, "inherit_default_runtime": {},
}

const noMonitor = "berth-shim supervises containers, and needs no monitor"

// crioSettings is the advice on settings outside of CRI-O's handlers, by the full key.
var crioSettings = map[string]string{
	"crio.runtime.default_runtime":      "set default_runtime in berth's own configuration if pods that name no handler shall have this one",
	"crio.runtime.cgroup_manager":       "set engine.cgroup_driver",
	"crio.runtime.conmon":               "",
	"crio.runtime.log_level":            "set log.level",
	"crio.runtime.seccomp_profile":      "set engine.default_seccomp_profile",
	"crio.runtime.cdi_spec_dirs":        "set engine.cdi_spec_dirs",
	"crio.runtime.decryption_keys_path": "set registry.decryption_keys_path",
	"crio.runtime.workloads":            "berth has no workloads",
	"crio.image":                        "see [registry]",
	"crio.image.image_volumes":          "set engine.ignore_image_defined_volumes = true",
	"crio.network":                      "see [cni]",
	"crio.metrics":                      "set metrics.address",
	"crio.tracing":                      "set tracing.endpoint",
	"crio.nri":                          "see [nri]",
	"crio.api":                          "see [server] and [streaming]",
	"crio.storage_option":               "set engine.overlay_mount_options",
}

func (t *translation) crio(files []*tomlfile.Document) {
	tables, standard := map[string]*table{}, "crun"
	for _, f := range files {
		runtime := t.crioTables(f)
		if name, ok := runtime["default_runtime"].(string); ok && name != "" {
			standard = name
		}
		for _, name := range sortedKeys(asTable(runtime["runtimes"])) {
			at := place{f, []string{"crio", "runtime", "runtimes", name}}
			values, ok := asTable(runtime["runtimes"])[name].(map[string]any)
			if !ok {
				t.note(at, "", "is not a table, so not a handler", "")
				continue
			}
			if first, twice := tables[name]; twice {
				t.note(first.at, name, "has no effect: "+f.File+" is read later and also has this handler", "")
			}
			tables[name] = newTable(name, at, values)
		}
	}
	for _, name := range sortedKeys(tables) {
		t.crioHandler(tables[name], tables[standard], standard)
	}
}

func asTable(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// crioTables returns [crio.runtime] of a file, and notes the other tables and keys.
func (t *translation) crioTables(f *tomlfile.Document) map[string]any {
	allBut("crio", f.Values, func(key string) { t.foreignTable(f, key, "CRI-O", "import.crio") })
	crio := asTable(f.Values["crio"])
	allBut("runtime", crio, func(key string) { t.crioSetting(f, "crio", key) })
	// For other values, CRI-O and berth both create the volumes.
	if asTable(crio["image"])["image_volumes"] == "ignore" {
		t.crioSetting(f, "crio", "image", "image_volumes")
	}
	runtime := asTable(crio["runtime"])
	allBut("runtimes", runtime, func(key string) { t.crioSetting(f, "crio", "runtime", key) })
	return runtime
}

func (t *translation) crioSetting(f *tomlfile.Document, key ...string) {
	t.note(place{f, key}, "", "is about CRI-O itself; only handlers are imported", crioSettings[strings.Join(key, ".")])
}

// foreignTable notes a top-level table that the daemon does not have.
func (t *translation) foreignTable(f *tomlfile.Document, key, whose, list string) {
	do := ""
	switch key {
	case "runtimes", "default_runtime", "import", "engine", "server":
		do = "if this file is berth's, put it into conf.d and not into a directory of " + list
	case "plugins":
		do = "if this file is containerd's, list it in import.containerd"
	case "crio":
		do = "if this file is CRI-O's, list it in import.crio"
	}
	t.note(place{f, []string{key}}, "", "is not a table of "+whose, do)
}

func (t *translation) crioHandler(from, standard *table, standardName string) {
	h := t.begin(from)
	binaryOf := from.name
	if inherit, _ := from.values["inherit_default_runtime"].(bool); inherit {
		binaryOf = standardName
		h.from = inherited(from, standard)
	}
	// As in CRI-O, an absent path means a program of the handler's name.
	h.path(binaryOf, "runtime_path")
	h.crioType()
	h.crioAnnotations()
	h.crioTimeout()
	h.keys(crioKeys, "CRI-O")
	h.end()
}

// inherited returns the table with the keys that CRI-O copies from the default handler's table.
func inherited(from, standard *table) *table {
	t := newTable(from.name, from.at, from.values)
	for _, key := range []string{"runtime_path", "runtime_type", "runtime_config_path", "runtime_root"} {
		delete(t.values, key)
		delete(t.places, key)
		if standard == nil {
			continue
		}
		if v, ok := standard.values[key]; ok {
			t.values[key], t.places[key] = v, standard.places[key]
		}
	}
	return t
}

// path sets runtime_path to the table's path, else to that of a program.
func (h *translating) path(program, from string) {
	if v := h.from.values["runtime_path"]; v != nil && v != "" {
		h.set("runtime_path", v, "runtime_path")
		return
	}
	h.program(program, from)
}

// program sets runtime_path to the path of a program named without a directory.
func (h *translating) program(name, from string) {
	found := h.find(name)
	if found == "" {
		h.to.Unfound = name
		h.to.From["runtime_path"] = h.from.place(from).origin()
		return
	}
	h.set("runtime_path", found, from)
}

func (h *translating) crioType() {
	const key = "runtime_type"
	switch kind := h.from.values[key]; kind {
	case nil, "", "oci":
		h.set(key, "oci", key)
	case "vm":
		h.set(key, "shim", key)
		h.kataAnnotations(path.Base(h.from.text("runtime_path")))
	case "pod":
		h.set(key, "oci", key)
		h.note(key, `is run as "oci": berth supervises OCI runtimes itself, and needs no conmon-rs`, "")
	default:
		h.set(key, kind, key)
	}
}

const kataAnnotations = "io.katacontainers.*"

// kataAnnotations lets annotations configure pods: CRI-O passes on all of them, berth only the
// listed ones.
func (h *translating) kataAnnotations(base string) {
	if !strings.HasPrefix(base, "containerd-shim-kata") {
		return
	}
	h.set("pod_annotations", []any{kataAnnotations}, "runtime_type")
	h.note("runtime_type", "berth passes on only the annotations "+kataAnnotations+
		", as Kata's installer configures containerd; CRI-O passes on all", "if pods need others, configure the handler in a drop-in of berth with more pod_annotations")
}

// crioActs are prefixes of annotations that CRI-O itself handles; they have no effect in a runtime.
var crioActs = []string{
	"io.kubernetes.cri-o.", "io.kubernetes.cri.rdt-class", "seccomp-profile.kubernetes.cri-o.io", "org.opencontainers.image.stopSignal",
}

func (h *translating) crioAnnotations() {
	const key = "allowed_annotations"
	list, ok := h.from.values[key].([]any)
	if v, there := h.from.values[key]; there && !ok {
		h.set("pod_annotations", v, key)
		return
	}
	var passed, own []any
	for _, a := range list {
		name, isText := a.(string)
		if isText && (strings.HasSuffix(name, ".crio.io") || slices.ContainsFunc(crioActs, func(p string) bool { return strings.HasPrefix(name, p) })) {
			own = append(own, a)
			continue
		}
		passed = append(passed, a)
	}
	if len(own) > 0 {
		h.note(key, fmt.Sprintf("CRI-O itself acts on %v; berth does not", own), "pods that rely on one of these must stay on CRI-O")
	}
	if len(passed) == 0 {
		return
	}
	more, _ := h.to.Values["pod_annotations"].([]any)
	h.set("pod_annotations", slices.Concat(more, passed), key)
	h.set("container_annotations", passed, key)
}

// crioTimeout translates the timeout. CRI-O counts seconds, and has a minimum.
func (h *translating) crioTimeout() {
	const key, floor = "container_create_timeout", 30
	v, there := h.from.values[key]
	n, ok := v.(int64)
	switch {
	case !there || ok && n == 0:
	case !ok:
		h.set(key, v, key)
	case n < floor:
		h.set(key, fmt.Sprintf("%ds", floor), key)
		h.note(key, fmt.Sprintf("is %d seconds; CRI-O uses at least %d, and so does berth for an imported handler", n, floor), "")
	default:
		h.set(key, fmt.Sprintf("%ds", n), key)
	}
}
