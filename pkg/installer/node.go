package installer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// findKubelet looks for the node's kubelet, which can be restarted.
func (i *Installer) findKubelet() (kubelet, error) {
	k, err := i.lookForKubelet()
	if err == nil && k.unit == "" {
		err = errors.New("no kubelet.service, k3s.service or k3s-agent.service found: the kubelet cannot be restarted. Set its endpoint by hand (docs/migration.md)")
	}
	return k, err
}

// lookForKubelet looks for a kubelet. One that no service starts has no unit.
func (i *Installer) lookForKubelet() (kubelet, error) {
	k := kubelet{config: kubeletConfig, texts: map[string]string{}}
	for _, name := range k3sUnits {
		if i.existsAny(unitOf(name)) {
			k.k3s, k.unit = true, name
		}
	}
	arguments := i.processArguments(map[bool][]string{true: {"k3s-server", "k3s-agent", "k3s"}, false: {"kubelet"}}[k.k3s])
	k.flags = flagsOf(arguments, endpointFlags[0])
	k.runs = namesBerth(strings.Join(arguments, " "))
	if config := flagsOf(arguments, "config"); len(config) > 0 && !k.k3s {
		k.config = config[len(config)-1]
	}
	paths := []string{k3sConfig}
	if !k.k3s {
		if i.existsAny(unitOf("kubelet")) {
			k.unit = "kubelet"
		}
		paths = append([]string{k.config, instanceConfig}, i.matching(flagFiles)...)
	}
	for _, path := range paths {
		text, err := os.ReadFile(resolved(i.Root, path))
		if err == nil {
			k.texts[path] = string(text)
			if namesBerth(string(text)) {
				k.named = append(k.named, path)
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return k, err
		}
	}
	if !k.k3s {
		for _, path := range i.matching(packagedUnits) {
			if text, err := os.ReadFile(resolved(i.Root, path)); err == nil && flagValue(string(text), endpointFlags[0]) != "" {
				k.packaged = append(k.packaged, path)
				if namesBerth(string(text)) {
					k.named = append(k.named, path)
				}
			}
		}
	}
	return k, nil
}

func (i *Installer) existsAny(paths []string) bool {
	for _, path := range paths {
		if _, err := os.Lstat(i.path(path)); err == nil {
			return true
		}
	}
	return false
}

// matching are the files of the node that patterns match.
func (i *Installer) matching(patterns []string) []string {
	var found []string
	for _, p := range patterns {
		paths, _ := filepath.Glob(i.path(p)) // the patterns are this package's
		for _, path := range paths {
			if rest, ok := strings.CutPrefix(path, strings.TrimSuffix(i.Root, "/")); ok {
				found = append(found, rest)
			}
		}
	}
	return found
}

// processArguments is the command line of the first process with one of these names.
func (i *Installer) processArguments(names []string) []string {
	entries, _ := os.ReadDir(i.path("/proc")) // a node that shows no processes has files
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		comm, err := os.ReadFile(i.path(filepath.Join("/proc", e.Name(), "comm")))
		if err != nil {
			continue
		}
		for _, name := range names {
			if strings.TrimSpace(string(comm)) == name {
				text, err := os.ReadFile(i.path(filepath.Join("/proc", e.Name(), "cmdline")))
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

// recordsOfPods has one entry for each pod of berth's own engine.
const recordsOfPods = "/var/lib/berth/records/sandboxes"

// enginePod is a pod of berth's own engine.
type enginePod struct {
	// name is the pod's namespace and name, or what is known of one whose record is broken.
	name string
	// handler and path are those that it was created under.
	handler, path string
}

// enginePods reads them from their records, for which no daemon needs to run.
func (i *Installer) enginePods() ([]enginePod, error) {
	entries, err := os.ReadDir(i.path(recordsOfPods))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var pods []enginePod
	for _, e := range entries {
		p := enginePod{name: e.Name()}
		var spec struct {
			Definition struct{ Name, Path string }
			Config     []byte
		}
		var config runtimeapi.PodSandboxConfig
		text, err := os.ReadFile(i.path(filepath.Join(recordsOfPods, e.Name(), "spec.json")))
		if err == nil && json.Unmarshal(text, &spec) == nil {
			p.handler, p.path = spec.Definition.Name, spec.Definition.Path
			if proto.Unmarshal(spec.Config, &config) == nil && config.GetMetadata() != nil {
				p.name = config.GetMetadata().GetNamespace() + "/" + config.GetMetadata().GetName()
			}
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// noPods says whether berth's own engine has pods.
func (i *Installer) noPods() error {
	pods, err := i.enginePods()
	if err != nil || len(pods) == 0 {
		return err
	}
	return fmt.Errorf("berth's own engine has %s: delete them, or drain their handlers; %w", counted(pods), ErrPods)
}

// counted says how many pods there are, and which.
func counted(pods []enginePod) string {
	names := make([]string, len(pods))
	for n, p := range pods {
		names[n] = p.name
	}
	slices.Sort(names)
	if len(names) == 1 {
		return "1 pod (" + names[0] + ")"
	}
	return fmt.Sprintf("%d pods (%s)", len(names), strings.Join(names, ", "))
}
