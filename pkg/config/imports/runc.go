package imports

import (
	"cmp"
	"slices"
	"strings"
)

const runcShim = "containerd-shim-runc-v2"

// runcOptions are the options of containerd's runc shim. Those with an empty meaning are translated
// in code.
var runcOptions = map[string]meaning{
	"NoPivotRoot":  {to: "no_pivot_root"},
	"NoNewKeyring": {to: "no_new_keyring"},
	"SystemdCgroup": {why: "the cgroup driver is one setting for all handlers",
		do: "check that engine.cgroup_driver is the same as in the kubelet"},
	"ShimCgroup":    {why: "berth's supervisor is not put into a cgroup of pods"},
	"CriuImagePath": {why: "checkpoints are written where the kubelet wants them"},
	"CriuWorkPath":  {why: "checkpoints are written where the kubelet wants them"},
	"CriuPath":      {why: "criu is looked for in PATH"},
	"ConfigPath":    {why: "runc's shim reads no configuration file"},
	"TypeUrl":       {why: "the type follows from the runtime"},

	"BinaryName": {}, "Runtime": {}, "Root": {}, "RuntimeRoot": {}, "IoUid": {}, "IoGid": {}, "TaskApiAddress": {}, "TaskApiVersion": {},
}

// onlyShim are options that only containerd's own shim supports.
var onlyShim = []string{"IoUid", "IoGid", "TaskApiAddress", "TaskApiVersion"}

// runc translates a handler with containerd's runc shim. berth's own supervisor runs its OCI
// runtime, and creates the same pods from the same options; the shim is kept only if the table
// requires it.
func (h *translating) runc() {
	options := h.from.options()
	needsShim := !unset(h.from.values["runtime_path"]) ||
		slices.ContainsFunc(onlyShim, func(key string) bool { return !unset(options[key]) })
	if kind := h.from.text("runtime_type"); kind != "io.containerd.runc.v2" {
		h.note("runtime_type", "is read as io.containerd.runc.v2", "")
	}
	if needsShim {
		h.runcByShim(options)
		return
	}
	h.set("runtime_type", "oci", "runtime_type")
	h.ociRuntime(options)
	for _, key := range sortedKeys(options) {
		m, known := runcOptions[key]
		switch v := options[key]; {
		case !known:
			h.note("options."+key, "is an option that runc's shim does not have either", near(key, runcOptions))
		case m.to != "" && !unset(v):
			h.option(m.to, v, "options."+key)
		case m.why != "" && (!unset(v) || key == "SystemdCgroup"):
			h.note("options."+key, m.why, m.do)
		}
	}
}

// ociRuntime sets the binary and its state directory, which older files have under other keys.
func (h *translating) ociRuntime(options map[string]any) {
	binary, from := h.runcBinary(options)
	if name, isText := binary.(string); isText && !strings.Contains(name, "/") {
		h.program(name, from)
	} else {
		h.set("runtime_path", binary, from)
	}
	for _, key := range []string{"RuntimeRoot", "Root"} {
		if v := options[key]; !unset(v) {
			h.set("runtime_root", v, "options."+key)
		}
	}
	if _, set := h.to.Values["runtime_root"]; set && !unset(h.from.values["runtime_root"]) {
		h.note("runtime_root", "options.Root sets the same, and takes precedence", "")
		delete(h.from.values, "runtime_root")
	}
}

// runcBinary returns the OCI runtime of a table, and its key.
func (h *translating) runcBinary(options map[string]any) (binary any, from string) {
	binary, older, engine := options["BinaryName"], options["Runtime"], h.from.values["runtime_engine"]
	switch {
	case !unset(binary):
		if !unset(older) && older != binary {
			h.note("options.Runtime", "BinaryName sets the same, and takes precedence", "")
		}
		return binary, "options.BinaryName"
	case !unset(older):
		return older, "options.Runtime"
	case !unset(engine):
		return engine, "runtime_engine"
	}
	return "runc", "runtime_type"
}

// runcByShim keeps containerd's shim, with the options that it supports.
func (h *translating) runcByShim(options map[string]any) {
	h.set("runtime_type", "shim", "runtime_type")
	h.path(runcShim, "runtime_type")
	h.unsetEngine("the shim uses options.BinaryName instead")
	for _, key := range sortedKeys(options) {
		_, known := runcOptions[key]
		v := options[key]
		switch {
		case !known:
			h.note("options."+key, "is an option that runc's shim does not have either", near(key, runcOptions))
		case unset(v) && key != "SystemdCgroup":
		case key == "SystemdCgroup", key == "ConfigPath", key == "TypeUrl", key == "CriuPath", key == "Runtime", key == "RuntimeRoot":
			h.note("options."+key, cmp.Or(runcOptions[key].why, "is an option of a removed shim"), runcOptions[key].do)
		case key == "BinaryName":
			h.shimBinary(v)
		default:
			h.option(key, v, "options."+key)
		}
	}
}

// shimBinary sets an absolute path for the shim's runtime, so that pods keep their binary.
func (h *translating) shimBinary(v any) {
	if name, ok := v.(string); ok && !strings.Contains(name, "/") {
		if found := h.find(name); found != "" {
			v = found
		}
	}
	h.option("BinaryName", v, "options.BinaryName")
}
