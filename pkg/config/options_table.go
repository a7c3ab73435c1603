package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/coreos/go-systemd/v22/util"
	"github.com/pelletier/go-toml/v2"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// runcOptions are containerd.runc.v1.Options, with the names of containerd's configuration. A test
// compares them with the protobuf message.
type runcOptions struct {
	// NoPivotRoot is the same as no_pivot_root.
	NoPivotRoot bool `toml:"NoPivotRoot"`
	// NoNewKeyring is the same as no_new_keyring.
	NoNewKeyring bool `toml:"NoNewKeyring"`
	// ShimCgroup is the cgroup of the shim itself.
	ShimCgroup string `toml:"ShimCgroup"`
	// IoUID is the owner of the containers' pipes.
	IoUID uint32 `toml:"IoUid"`
	// IoGID is the group of the containers' pipes.
	IoGID uint32 `toml:"IoGid"`
	// BinaryName is the OCI runtime. Empty means the first discovered runc.
	BinaryName string `toml:"BinaryName"`
	// Root is the same as runtime_root.
	Root string `toml:"Root"`
	// SystemdCgroup must not contradict engine.cgroup_driver.
	SystemdCgroup bool `toml:"SystemdCgroup"`
	// CriuImagePath is the directory of checkpoints.
	CriuImagePath string `toml:"CriuImagePath"`
	// CriuWorkPath is the working directory of CRIU.
	CriuWorkPath string `toml:"CriuWorkPath"`
	// TaskAPIAddress is set by sandbox shims.
	TaskAPIAddress string `toml:"TaskApiAddress"`
	// TaskAPIVersion is set by sandbox shims.
	TaskAPIVersion uint32 `toml:"TaskApiVersion"`
}

// options checks the options table by the kind of runtime and stores it in def.
func (d *decoder) options(key string, t *runtimeTable, def *handler.Definition, e Engine) {
	if len(t.Options) == 0 {
		return
	}
	key = tomlfile.Under(key, "options")
	switch {
	case t.isRuncShim():
		d.runcShimOptions(key, t, def, e)
	case def.Type == handler.OCI:
		d.ociOptions(key, t, def)
	case def.Type == handler.Shim:
		d.shimOptions(key, t, def)
	}
}

func (d *decoder) ociOptions(key string, t *runtimeTable, def *handler.Definition) {
	d.Table(sectionOCI, key, t.Options, reflect.ValueOf(&def.OCI).Elem())
	for i, flag := range def.OCI.GlobalFlags {
		if m, s := globalFlagMistake(flag, i == 0); m != "" {
			d.Report(tomlfile.Under(key, "global_flags"), m, s)
		}
	}
}

// ownFlags are the flags that berth itself passes to runtimes.
var ownFlags = map[string]elsewhere{
	"root":           {key: "runtime_root"},
	"systemd-cgroup": {key: "engine.cgroup_driver"},
	"cgroup-manager": {key: "engine.cgroup_driver"},
	"log":            {text: "berth reads the runtime's log"},
	"log-format":     {text: "berth reads the runtime's log"},
}

func globalFlagMistake(flag string, first bool) (message, suggestion string) {
	if !strings.HasPrefix(flag, "-") {
		if first || flag == "" {
			return fmt.Sprintf("%q is not a flag; it must begin with -", flag), ""
		}
		return "", ""
	}
	name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
	own, ok := ownFlags[name]
	switch {
	case name == "":
		return fmt.Sprintf("%q is not a flag", flag), ""
	case !ok:
		return "", ""
	case own.key != "":
		return fmt.Sprintf("%s is set by berth; use %s", flag, own.key), own.key
	}
	return fmt.Sprintf("%s is set by berth: %s", flag, own.text), ""
}

func (d *decoder) runcShimOptions(key string, t *runtimeTable, def *handler.Definition, e Engine) {
	var o runcOptions
	d.Table(sectionRunc, key, t.Options, reflect.ValueOf(&o).Elem())
	def.ShimOptions = maps.Clone(t.Options)
	if o.Root != "" && t.Root != "" && o.Root != t.Root {
		d.Report(tomlfile.Under(key, "Root"), fmt.Sprintf("conflicts with runtime_root, which is %q; keep one of the two", t.Root), "")
	}
	if _, set := t.Options["SystemdCgroup"]; set {
		if m := driverMistake(o.SystemdCgroup, e.CgroupDriver, util.IsRunningSystemd()); m != "" {
			d.Report(tomlfile.Under(key, "SystemdCgroup"), m, "")
		}
	}
	if o.BinaryName == "" {
		return
	}
	at := tomlfile.Under(key, "BinaryName")
	if !filepath.IsAbs(o.BinaryName) {
		d.Report(at, fmt.Sprintf("%q must be an absolute path, so that pods keep their binary", o.BinaryName),
			hostfiles.FindIn(d.search, o.BinaryName))
	}
}

// driverMistake returns why SystemdCgroup cannot equal asked: all pods of a node are below the same
// cgroups, with one manager. running is set if systemd is process 1, which resolves "auto".
func driverMistake(asked bool, driver CgroupDriver, running bool) string {
	stands := fmt.Sprintf("%q", driver)
	if driver == CgroupDriverAuto {
		driver = CgroupDriverCgroupfs
		if running {
			driver = CgroupDriverSystemd
		}
		stands += fmt.Sprintf(" and stands for %q on this machine", driver)
	}
	if driver == CgroupDriverCgroupfs && asked || driver == CgroupDriverSystemd && !asked {
		return fmt.Sprintf("conflicts with engine.cgroup_driver, which is %s; remove SystemdCgroup", stands)
	}
	return ""
}

// typeURL is the option with the type URL of a shim's other options.
const typeURL = "TypeUrl"

// shimOptions keeps a shim's options as text, since only the shim defines their keys. Two keys are
// common to shims: TypeUrl, and ConfigPath, which runtime_config_path replaces.
func (d *decoder) shimOptions(key string, t *runtimeTable, def *handler.Definition) {
	if _, there := t.Options["ConfigPath"]; there {
		d.Report(tomlfile.Under(key, "ConfigPath"), "unknown key; use runtime_config_path", "runtime_config_path")
	}
	kind, isText := t.Options[typeURL].(string)
	if v, there := t.Options[typeURL]; there && !isText {
		d.WrongType(tomlfile.Under(key, typeURL), "a string", v)
		return
	}
	def.ShimOptionsType = kind
	if kind != "" && len(t.Options) == 1 {
		return
	}
	body, err := toml.Marshal(t.Options)
	if err != nil {
		d.Report(key, "cannot be written as TOML for the shim: "+strings.TrimPrefix(err.Error(), "toml: "), "")
		return
	}
	def.ShimOptionsTOML = string(body)
}
