package config

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe/conform"
)

// check validates one handler's decoded table.
type check struct {
	*decoder
	handler, key string
	// set are the table's keys.
	set map[string]any
}

func (c check) wrong(name, message, suggestion string) {
	c.Report(tomlfile.Under(c.key, name), message, suggestion)
}

// lacking reports a missing dependency of the handler on this machine.
func (c check) lacking(key, message string) {
	p := c.At(c.key+"."+key, message, "")
	p.Lacking = c.handler
	c.Problems = append(c.Problems, p)
}

func (c check) has(name string) bool {
	_, ok := c.set[name]
	return ok
}

// meant reports whether a Problem of an unknown key already suggests this one.
func (c check) meant(name string) bool {
	return slices.ContainsFunc(c.Problems, func(p Problem) bool {
		return strings.HasPrefix(p.Key, c.key+".") && p.Suggestion == name
	})
}

func (c check) runtimePath(t *runtimeTable) {
	switch {
	case c.unfound != "":
		c.lacking("runtime_path", c.unfound)
	case !c.has("runtime_path") && c.meant("runtime_path"):
		// The key exists with a typo. Problems are shown in file order, so a missing key would be
		// shown first.
	case !c.has("runtime_path"):
		c.Report(c.key, "runtime_path is missing; set it to the absolute path of the runtime's binary", hostfiles.FindIn(c.search, c.handler))
	case t.Path == "" && isString(c.set["runtime_path"]):
		c.wrong("runtime_path", "must not be empty; set it to the absolute path of the runtime's binary", hostfiles.FindIn(c.search, c.handler))
	case t.Path == "":
		// Its wrong type is reported already.
	case !filepath.IsAbs(t.Path):
		c.wrong("runtime_path", fmt.Sprintf("%q must be an absolute path", t.Path), hostfiles.FindIn(c.search, t.Path))
	}
}

func isString(v any) bool {
	_, ok := v.(string)
	return ok
}

func (c check) words(t *runtimeTable) {
	c.word("runtime_type", string(t.Type), "oci", "shim", "cri")
	c.word("sandbox_process", string(t.SandboxProcess), "auto", "always")
	c.word("supervision", string(t.Supervision), supervisions...)
	c.word("snapshotter", t.Snapshotter, c.snapshotters...)
	c.platform(t.Platform)
	if c.has("self_check_timeout") && t.SelfCheckTimeout <= 0 {
		c.wrong("self_check_timeout", "must be more than 0", "")
	}
	if c.has("container_create_timeout") && t.ContainerCreateTimeout <= 0 {
		c.wrong("container_create_timeout", "must be more than 0", "")
	}
}

func (c check) word(name, value string, allowed ...string) {
	if !c.has(name) || !isString(c.set[name]) {
		return
	}
	if name == "runtime_type" {
		if m, s := foreignType(value); m != "" {
			c.wrong(name, m, s)
			return
		}
	}
	if m, s := wordMistake(value, allowed); m != "" {
		c.wrong(name, m, s)
	}
}

// platform checks the platform of a handler's images. Only an absent or empty value means the
// node's platform, so that equal handlers have equal Definitions.
func (c check) platform(value string) {
	if value == "" || value == handler.PlatformWasm {
		return
	}
	near := ""
	if os, _, _ := strings.Cut(strings.ToLower(value), "/"); strings.HasPrefix(os, "wasi") || strings.Contains(strings.ToLower(value), "wasm") {
		near = handler.PlatformWasm
	}
	c.wrong("platform", fmt.Sprintf("%q must be %q, or absent for images of this node's platform", value, handler.PlatformWasm), near)
}

func foreignType(value string) (message, suggestion string) {
	switch {
	case value == "vm":
		return `must be "oci" or "shim"; what CRI-O calls "vm" is "shim" here`, "shim"
	case value == "pod":
		return `must be "oci" or "shim"; berth supervises oci runtimes itself and needs no conmon-rs`, "oci"
	case strings.HasPrefix(value, "io.containerd."):
		parts := strings.Split(strings.TrimPrefix(value, "io.containerd."), ".")
		binary := shimPrefix + strings.Join(parts, "-")
		return fmt.Sprintf(`must be "oci" or "shim"; for containerd's %s write "shim" and the path of %s as runtime_path`, value, binary), "shim"
	}
	return "", ""
}

func (c check) paths(t *runtimeTable) {
	for name, p := range map[string]string{
		"runtime_root": t.Root, "runtime_config_path": t.ConfigPath,
		"base_runtime_spec": t.BaseRuntimeSpec, "cni_conf_dir": t.CNIConfDir,
	} {
		if p != "" && !filepath.IsAbs(p) {
			c.wrong(name, fmt.Sprintf("%q must be an absolute path", p), "")
		}
	}
}

func (c check) companions(t *runtimeTable) {
	for _, name := range t.Companions {
		if name == "." || !filepath.IsLocal(name) || filepath.Clean(name) != name {
			c.wrong("companions", fmt.Sprintf("%q must be a relative path below the directory of runtime_path, such as \"gvisor-bin\"", name), "")
		}
	}
}

func (c check) devices(t *runtimeTable) {
	for _, path := range t.RequiredDevices {
		if !filepath.IsAbs(path) {
			c.wrong("required_devices", fmt.Sprintf("%q must be an absolute path, such as \"/dev/kvm\"", path), "")
		}
	}
}

func (c check) conforms(t *runtimeTable) {
	var known []string
	for _, s := range conform.Sets() {
		known = append(known, string(s))
	}
	for i, name := range t.Conforms {
		if m, s := wordMistake(name, known); m != "" {
			c.wrong("conforms", m, s)
			continue
		}
		for _, other := range t.Conforms[:i] {
			if other == name {
				c.wrong("conforms", fmt.Sprintf("%q is listed twice", name), "")
			} else if why := conform.Conflict(conform.Set(other), conform.Set(name)); why != "" {
				c.wrong("conforms", "no handler can do both: "+why, "")
			}
		}
	}
}

func (c check) annotations(t *runtimeTable) {
	for name, globs := range map[string][]string{
		"pod_annotations": t.PodAnnotations, "container_annotations": t.ContainerAnnotations,
	} {
		for _, g := range globs {
			if _, err := path.Match(g, ""); err != nil || g == "" {
				c.wrong(name, fmt.Sprintf("%q is not a pattern; write a name with *, ? and [a-z], such as \"com.example.*\"", g), "")
			}
		}
	}
	if _, empty := t.DefaultAnnotations[""]; empty {
		c.wrong("default_annotations", "an annotation needs a name", "")
	}
}

func (c check) limits(t *runtimeTable) {
	for name, n := range map[string]int{
		"max_pods": t.MaxPods, "max_parallel_starts": t.MaxParallelStarts, "max_queued_starts": t.MaxQueuedStarts,
	} {
		zero := "unlimited"
		if name == "max_queued_starts" {
			zero = "that no start may wait"
		}
		if n < 0 {
			c.wrong(name, "must not be negative; 0 means "+zero, "")
		}
	}
	if t.StartTimeout < 0 {
		c.wrong("start_timeout", "must not be negative; \"0s\" means unlimited", "")
	}
	if t.MaxQueuedStarts > 0 && t.MaxParallelStarts == 0 {
		c.wrong("max_queued_starts", "has no effect without max_parallel_starts; set that too", "")
	}
}

func (c check) compatible(t *runtimeTable) {
	base := filepath.Base(t.Path)
	switch {
	case t.Path == "":
	case t.handlerType() == handler.OCI:
		if strings.HasPrefix(base, shimPrefix) {
			c.wrong("runtime_type", base+" is a shim, not an OCI runtime", "shim")
		}
		if t.ConfigPath != "" && !t.isRunsc() {
			c.wrong("runtime_config_path", base+" does not read a configuration file; this key is for shims and runsc", "")
		}
	case t.handlerType() == handler.Shim:
		if slices.Contains(ociRuntimes, base) {
			c.wrong("runtime_type", base+" is an OCI runtime, not a shim", "oci")
		}
		if c.has("supervision") {
			c.wrong("supervision", "is for oci handlers only; a shim supervises itself", "")
		}
		if t.ConfigPath != "" && t.isRuncShim() {
			c.wrong("runtime_config_path", base+" does not read a configuration file; its settings are [runtimes."+c.handler+".options]", "")
		}
	}
}

// candidate checks the table of a rollout. A probe checks the binary itself, and affects only the
// rollout.
func (c check) candidate(t *runtimeTable) {
	values, ok := c.set["candidate"].(map[string]any)
	if !ok {
		return
	}
	n := t.Candidate
	wrong := func(name, message string) {
		c.Report(tomlfile.Under(tomlfile.Under(c.key, "candidate"), name), message, "")
	}
	isShim := strings.HasPrefix(filepath.Base(n.Path), shimPrefix)
	_, given := values["percent"]
	switch {
	case n.Path == "":
		c.wrong("candidate", "needs runtime_path, the absolute path of the candidate binary", "")
	case !filepath.IsAbs(n.Path):
		wrong("runtime_path", fmt.Sprintf("%q must be an absolute path", n.Path))
	case n.Path == t.Path:
		wrong("runtime_path", "is the handler's own runtime_path; set it to the candidate binary, or remove candidate")
	case isShim != (t.handlerType() == handler.Shim):
		wrong("runtime_path", fmt.Sprintf("%s does not match the handler's runtime_type, %q", filepath.Base(n.Path), t.handlerType()))
	}
	switch {
	case !given:
		c.wrong("candidate", "needs percent, the share of new pods that run on the candidate", "")
	case n.Percent < 0 || n.Percent > 100:
		wrong("percent", "must be from 0 to 100")
	}
}
