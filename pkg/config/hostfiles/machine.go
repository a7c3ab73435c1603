package hostfiles

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/printable"
	"github.com/berth-cri/berth/pkg/trust"
)

// Lack is a missing dependency of a handler on this machine.
type Lack struct{ Key, Message string }

// Lacking returns the missing dependencies of a correctly configured handler, or nil. Each file
// on an unreachable network file system delays the call by patience.
func Lacking(d *handler.Definition) error {
	var all []string
	for _, l := range Lacks(d) {
		all = append(all, l.Key+": "+l.Message)
	}
	if len(all) == 0 {
		return nil
	}
	text := strings.Join(all, "; ")
	if d.Origin != "" {
		text = d.Origin + ": " + text
	}
	return errors.New(printable.Clip(text, MaxReason))
}

// Lacks returns the missing dependencies of a handler. It ignores empty paths, and relative ones,
// which are mistakes in the file.
func Lacks(d *handler.Definition) []Lack {
	var all []Lack
	find := func(key, question, path string, check func(string) string) {
		if !filepath.IsAbs(path) {
			return
		}
		if m := Mistake(question, path, check); m != "" {
			all = append(all, Lack{key, m})
		}
	}
	find("runtime_path", "execute", d.Path, Inexecutable)
	find("runtime_config_path", "config", d.ConfigPath, noConfig)
	find("base_runtime_spec", "spec", d.BaseRuntimeSpec, NoSpec)
	driven, _ := d.ShimOptions["BinaryName"].(string)
	find("options.BinaryName", "execute", driven, Inexecutable)
	find("endpoint", "socket", d.Endpoint, noSocket)
	for _, device := range d.RequiredDevices {
		find("required_devices", "device", device, noDevice)
	}
	return all
}

// noSocket returns why a path is not a socket, or ""; a missing one is created by its daemon.
func noSocket(path string) string {
	if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return fmt.Sprintf("%s is %s, not a socket", path, kindOf(info.Mode()))
	}
	return ""
}

func noDevice(path string) string {
	info, err := os.Stat(path)
	switch {
	case os.IsNotExist(err):
		return fmt.Sprintf("%s does not exist; load the kernel module that creates it, or use a machine that has it", path)
	case err != nil:
		return fmt.Sprintf("%s cannot be read: %v", path, pathless(err))
	case info.Mode()&os.ModeDevice == 0:
		return fmt.Sprintf("%s is not a device", path)
	}
	return ""
}

// noConfig returns why a runtime's configuration file is unusable, or "". The runtime reads it as
// root.
func noConfig(file string) string { return unusable(file, trust.Configuration) }

// NoJSON returns why a file, which only root may change, cannot be read into v, or "".
func NoJSON(file, kind string, v any) string {
	if m := unusable(file, trust.Configuration); m != "" {
		return m
	}
	data, err := trust.ReadFile(file, trust.Configuration)
	if err != nil {
		return fmt.Sprintf("%s cannot be read: %v", file, pathless(err))
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Sprintf("%s is not %s: %v", file, kind, err)
	}
	return ""
}

// NoSpec returns why a file is not a usable OCI runtime spec, or "". Only root may change it, since
// the hooks of a spec run as root.
func NoSpec(file string) string {
	var spec specs.Spec
	m := NoJSON(file, "an OCI runtime spec", &spec)
	if m == "" && spec.Version == "" {
		return file + " is not an OCI runtime spec: ociVersion is missing"
	}
	return m
}
