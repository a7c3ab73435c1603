package kubelet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
	k := Kubelet{config: Config, texts: map[string]string{}}
	for _, name := range k3sUnits {
		if root.ExistsAny(nodefs.UnitPaths(name)...) {
			k.K3s, k.Unit = true, name
		}
	}
	arguments := processArguments(root, map[bool][]string{true: {"k3s-server", "k3s-agent", "k3s"}, false: {"kubelet"}}[k.K3s])
	k.flags = flagsOf(arguments, endpointFlags[0])
	k.Runs = NamesBerth(strings.Join(arguments, " "))
	if config := flagsOf(arguments, "config"); len(config) > 0 && !k.K3s {
		k.config = config[len(config)-1]
	}
	paths := []string{k3sConfig}
	if !k.K3s {
		if root.ExistsAny(nodefs.UnitPaths("kubelet")...) {
			k.Unit = "kubelet"
		}
		paths = append([]string{k.config, InstanceConfig}, root.Matching(flagFiles)...)
	}
	for _, path := range paths {
		text, err := os.ReadFile(root.Resolved(path))
		if err == nil {
			k.texts[path] = string(text)
			if NamesBerth(string(text)) {
				k.Named = append(k.Named, path)
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return k, err
		}
	}
	if !k.K3s {
		for _, path := range root.Matching(packagedUnits) {
			if text, err := os.ReadFile(root.Resolved(path)); err == nil && flagValue(string(text), endpointFlags[0]) != "" {
				k.packaged = append(k.packaged, path)
				if NamesBerth(string(text)) {
					k.Named = append(k.Named, path)
				}
			}
		}
	}
	return k, nil
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
