package kubeletconf

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-cri/berth/pkg/nodefs"
)

// Find finds the kubelet of a node. Its Unit is empty if no service starts it.
func Find(root nodefs.Root) (Kubelet, error) {
	k := Kubelet{}
	for _, name := range k3sUnits {
		if root.ExistsAny(nodefs.UnitPaths(name)...) {
			k.K3s, k.Unit = true, name
		}
	}
	k.arguments = processArguments(root, map[bool][]string{true: {"k3s-server", "k3s-agent", "k3s"}, false: {"kubelet"}}[k.K3s])
	if k.K3s {
		err := k.readK3s(root)
		return k, err
	}
	if root.ExistsAny(nodefs.UnitPaths("kubelet")...) {
		k.Unit = "kubelet"
	}
	var err error
	if k.flags, err = read(root, root.Matching(flagFiles)...); err != nil {
		return k, err
	}
	configs := []string{Config, InstanceConfig}
	if path := k.flag("config"); path != "" {
		configs[0] = path
	}
	if dir := k.flag("config-dir"); dir != "" {
		files, err := dropIns(root, dir)
		if err != nil {
			return k, err
		}
		configs = append(configs, files...)
	}
	k.configs, err = read(root, configs...)
	return k, err
}

func (k *Kubelet) readK3s(root nodefs.Root) (err error) {
	if k.configs, err = read(root, append([]string{k3sConfig}, root.Matching([]string{k3sConfig + ".d/*.yaml"})...)...); err != nil {
		return err
	}
	patterns := []string{"/etc/systemd/system/" + k.Unit + ".service.env"}
	for _, unit := range nodefs.UnitPaths(k.Unit) {
		patterns = append(patterns, unit, unit+".d/*.conf")
	}
	k.flags, err = read(root, root.Matching(patterns)...)
	return err
}

// read returns the files that exist, each once, because /lib may be a link to /usr/lib.
func read(root nodefs.Root, paths ...string) ([]file, error) {
	var files []file
	seen := map[string]bool{}
	for _, path := range slices.Backward(paths) {
		there := root.Resolved(path)
		if seen[there] {
			continue
		}
		seen[there] = true
		text, err := os.ReadFile(there)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files = append(files, file{path, string(text)})
	}
	slices.Reverse(files)
	return files, nil
}

// flag returns the value of a flag: from the command line if the kubelet runs, else from the files
// of its start. In files only absolute paths count, since other values may contain variables.
func (k *Kubelet) flag(name string) string {
	value := ""
	for _, v := range flagsOf(k.arguments, name) {
		value = v
	}
	if len(k.arguments) > 0 {
		return value
	}
	for _, f := range k.flags {
		if v := flagValue(f.text, name); strings.HasPrefix(v, "/") {
			value = v
		}
	}
	return value
}

// dropIns returns the files of a --config-dir in the kubelet's order: the last one wins.
func dropIns(root nodefs.Root, dir string) ([]string, error) {
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

// processArguments returns the command line of the node's first process with one of these names. It
// skips processes in other PID namespaces: a pod's program may have any name and could name any
// file.
func processArguments(root nodefs.Root, names []string) []string {
	entries, _ := os.ReadDir(root.Path("/proc"))             // without processes, only files count
	namespace, _ := os.Readlink(root.Path("/proc/1/ns/pid")) // if unreadable, no namespaces are compared
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
		if !slices.Contains(names, strings.TrimSpace(string(comm))) {
			continue
		}
		if text, err := os.ReadFile(root.Path(filepath.Join("/proc", e.Name(), "cmdline"))); err == nil {
			return strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
		}
	}
	return nil
}
