package kubelet

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

// Restartable finds the node's kubelet, which can be restarted.
func Restartable(root nodefs.Root) (Kubelet, error) {
	k, err := Find(root)
	if err == nil && k.Unit == "" {
		err = errors.New("no kubelet.service, k3s.service or k3s-agent.service found: the kubelet cannot be restarted. Set its endpoint by hand (docs/migration.md)")
	}
	return k, err
}

// Find finds the kubelet of a node. One that no service starts has no unit.
func Find(root nodefs.Root) (Kubelet, error) {
	k := Kubelet{configs: []string{Config}, texts: map[string]string{}}
	for _, name := range k3sUnits {
		if root.ExistsAny(nodefs.UnitPaths(name)...) {
			k.K3s, k.Unit = true, name
		}
	}
	k.arguments = processArguments(root, map[bool][]string{true: {"k3s-server", "k3s-agent", "k3s"}, false: {"kubelet"}}[k.K3s])
	k.Runs = NamesBerth(strings.Join(k.arguments, " "))
	if k.K3s {
		err := k.read(root, k3sConfig)
		k.nameK3s(root)
		return k, err
	}
	if root.ExistsAny(nodefs.UnitPaths("kubelet")...) {
		k.Unit = "kubelet"
	}
	if err := k.read(root, root.Matching(flagFiles)...); err != nil {
		return k, err
	}
	packaged, seen := map[string]string{}, map[string]bool{}
	for _, path := range root.Matching(packagedUnits) {
		there := root.Resolved(path) // /lib may be /usr/lib
		if seen[there] {
			continue
		}
		seen[there] = true
		text, err := os.ReadFile(root.Resolved(path))
		if err != nil {
			continue // a link that leads nowhere is no unit
		}
		packaged[path] = string(text)
		if flagValue(string(text), endpointFlags[0]) != "" {
			k.packaged = append(k.packaged, path)
			if NamesBerth(string(text)) {
				k.Named = append(k.Named, path)
			}
		}
	}
	if path := k.flag("config", packaged); path != "" {
		k.configs = []string{path}
	}
	k.configs = append(k.configs, InstanceConfig)
	if dir := k.flag("config-dir", packaged); dir != "" {
		files, err := DropIns(root, dir)
		if err != nil {
			return k, err
		}
		k.configs = append(k.configs, files...)
	}
	err := k.read(root, k.configs...)
	return k, err
}

// nameK3s looks where else k3s may be led to berth: it hides its command line, and has flags in
// its unit, and more files of configuration.
func (k *Kubelet) nameK3s(root nodefs.Root) {
	patterns := []string{k3sConfig + ".d/*.yaml", "/etc/systemd/system/" + k.Unit + ".service.env"}
	for _, unit := range nodefs.UnitPaths(k.Unit) {
		patterns = append(patterns, unit, unit+".d/*.conf")
	}
	for _, path := range root.Matching(patterns) {
		text, err := os.ReadFile(root.Resolved(path))
		if err == nil && strings.Contains(string(text), berthSocket) && !slices.Contains(k.Named, path) {
			k.Named = append(k.Named, path)
		}
	}
}

// read adds texts of files that exist.
func (k *Kubelet) read(root nodefs.Root, paths ...string) error {
	for _, path := range paths {
		text, err := os.ReadFile(root.Resolved(path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		k.texts[path] = string(text)
		if NamesBerth(string(text)) {
			k.Named = append(k.Named, path)
		}
	}
	return nil
}

// flag is the value of a flag: that of the command line if the kubelet runs, else what files,
// and units of packages, would give it at its start. A value with variables is not known.
func (k *Kubelet) flag(name string, packaged map[string]string) string {
	value := ""
	if len(k.arguments) > 0 {
		for _, value = range flagsOf(k.arguments, name) {
		}
		return value
	}
	for _, texts := range []map[string]string{packaged, k.texts} {
		for _, path := range slices.Sorted(maps.Keys(texts)) {
			if v := flagValue(texts[path], name); strings.HasPrefix(v, "/") {
				value = v
			}
		}
	}
	return value
}

// DropIns are the files of a --config-dir in the kubelet's order, by which the last one wins.
func DropIns(root nodefs.Root, dir string) ([]string, error) {
	var files []string
	there := root.Resolved(dir)
	err := filepath.WalkDir(there, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() && filepath.Ext(path) == ".conf" {
			files = append(files, filepath.Join(dir, strings.TrimPrefix(path, there)))
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return files, err
}

// processArguments is the command line of the first process with one of these names that is
// the node's own. A program of a pod may have any name, and would say what files to change.
func processArguments(root nodefs.Root, names []string) []string {
	entries, _ := os.ReadDir(root.Path("/proc"))             // a node that shows no processes has files
	namespace, _ := os.Readlink(root.Path("/proc/1/ns/pid")) // where it cannot be read, nothing is compared
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if namespace != "" {
			if its, err := os.Readlink(root.Path(filepath.Join("/proc", e.Name(), "ns/pid"))); err != nil || its != namespace {
				continue
			}
		}
		comm, err := os.ReadFile(root.Path(filepath.Join("/proc", e.Name(), "comm")))
		if err != nil {
			continue
		}
		for _, name := range names {
			if strings.TrimSpace(string(comm)) == name {
				text, err := os.ReadFile(root.Path(filepath.Join("/proc", e.Name(), "cmdline")))
				if err == nil {
					return strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
				}
			}
		}
	}
	return nil
}

// flagsOf are the values of --name=value and --name value, in their order.
func flagsOf(arguments []string, name string) []string {
	var values []string
	for n, a := range arguments {
		if v, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			values = append(values, v)
		} else if a == "--"+name && n+1 < len(arguments) {
			values = append(values, arguments[n+1])
		}
	}
	return values
}
