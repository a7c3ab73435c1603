package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/registryhosts"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/trust"
)

type changeable struct {
	validator
	warnings []string
}

// Changeable checks the directories that are read while pods run. Files in them that users other
// than root can change are Problems, since berth does not use them; other risks are warnings.
// Load leaves this check to its callers: the daemon starts in any case.
func (c *Config) Changeable() (refused Problems, warnings []string) {
	v := &changeable{validator: validator{cfg: c}}
	v.directory("cni.conf_dir", c.CNI.ConfDir, trust.Configuration, ".conflist", ".conf", ".json")
	for _, d := range c.Runtimes {
		if d.CNIConfDir != "" {
			v.directory(tomlfile.Under("runtimes", d.Name)+".cni_conf_dir", d.CNIConfDir, trust.Configuration, ".conflist", ".conf", ".json")
		}
	}
	for _, dir := range c.CNI.BinDirs {
		v.directory("cni.bin_dirs", dir, trust.Installed)
	}
	for _, dir := range c.Engine.CDISpecDirs {
		v.directory("engine.cdi_spec_dirs", dir, trust.Configuration, ".json", ".yaml")
	}
	if !c.NRI.Disable {
		v.directory("nri.plugin_path", c.NRI.PluginPath, trust.Program)
		v.directory("nri.plugin_config_path", c.NRI.PluginConfigPath, trust.Configuration, ".conf")
	}
	v.directory(hostsDir, c.Registry.HostsDir, trust.Configuration, ".toml", ".crt", ".cert", ".key")
	v.directory("registry.decryption_keys_path", c.Registry.DecryptionKeysPath, trust.Configuration)
	v.directory("registry.preload_dir", c.Registry.PreloadDir, trust.Configuration, ".tar", ".gz", ".tgz", ".zst")
	v.directory("image_verifier.bin_dir", c.ImageVerifier.BinDir, trust.Program)
	return v.problems, v.warnings
}

type found struct {
	refused  []*trust.Refused
	warnings []string
}

// directory reports the files and directories to fix, each once.
func (v *changeable) directory(key, dir string, p trust.Purpose, endings ...string) {
	if dir == "" {
		return
	}
	f, late := hostfiles.Look("changeable", dir, func() found {
		f := found{}
		f.add(trust.CheckDir(dir, p))
		for _, file := range filesBelow(dir, endings...) {
			f.add(trust.Check(file, p))
			f.warnings = append(f.warnings, trust.Warnings(file, p)...)
		}
		if key == hostsDir {
			for _, file := range filesBelow(dir, ".toml") { // a separate list, since its length is limited
				f.named(file)
			}
		}
		return f
	})
	if late {
		v.wrong(key, fmt.Sprintf("%s cannot be read: %s", dir, hostfiles.Hangs), "")
		return
	}
	v.report(key, f)
}

const hostsDir = "registry.hosts_dir"

// named checks the certificates and keys named in a hosts.toml.
func (f *found) named(file string) {
	text, err := trust.ReadFile(file, trust.Configuration)
	if err != nil {
		return // already reported
	}
	for _, other := range registryhosts.Files(filepath.Dir(file), text) {
		f.add(trust.Check(other, trust.Configuration))
	}
}

func (f *found) add(err error) {
	if refused, is := errors.AsType[*trust.Refused](err); is {
		f.refused = append(f.refused, refused)
	}
}

// maxReported bounds the reported files of a directory.
const maxReported = 10

func (v *changeable) report(key string, f found) {
	reported := map[string]bool{}
	for _, r := range f.refused {
		if !reported[r.Path] && len(reported) < maxReported {
			v.wrong(key, r.Error(), "")
		}
		reported[r.Path] = true
	}
	slices.Sort(f.warnings)
	f.warnings = slices.Compact(f.warnings)
	for i, text := range f.warnings {
		if i == maxReported {
			v.warnings = append(v.warnings, fmt.Sprintf("%s: %d more warnings of this kind", key, len(f.warnings)-maxReported))
			break
		}
		v.warnings = append(v.warnings, fmt.Sprintf("%s: %s", key, text))
	}
}

// filesBelow returns the files below a directory, as far as they can be listed, including links to
// files.
func filesBelow(dir string, endings ...string) []string {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil
	}
	var files []string
	_ = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // reported when the directory is read
		case len(files) == hostfiles.MaxFiles:
			return fs.SkipAll
		case e.IsDir() || len(endings) > 0 && !slices.Contains(endings, filepath.Ext(path)):
			return nil
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			files = append(files, path)
		}
		return nil
	})
	return files
}
