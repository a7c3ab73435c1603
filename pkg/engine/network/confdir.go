package network

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/berth-cri/berth/pkg/trust"
)

// networks returns the configurations to connect a pod to, at least one, from dir or, if dir is
// empty, from the node's directory. It reads them at each call, so that changed files, links,
// mounts and owners take effect at once. All errors are errdefs.ErrUnavailable, or the context's.
func (p *Plugins) networks(ctx context.Context, dir string) ([]*libcni.NetworkConfigList, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	lists, err := load(cmp.Or(dir, p.config.ConfDir), p.config.MaxConfNum)
	if err == nil {
		err = p.findPlugins(ctx, lists)
	}
	if err != nil {
		return nil, bound(fmt.Errorf("%w: %w", errdefs.ErrUnavailable.WithMessage("cni plugin not initialized"), err))
	}
	return lists, nil
}

// confFiles returns the configuration files in a directory, by name, and the plugin files in its
// subdirectories (CNI's form of a list in several files).
func confFiles(path string) (files, plugins []string, err error) {
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	for _, entry := range entries {
		full := filepath.Join(path, entry.Name())
		if entry.IsDir() {
			more, err := libcni.ConfFiles(full, []string{".conf"})
			if err != nil {
				return nil, nil, err
			}
			plugins = append(plugins, more...)
			continue
		}
		switch filepath.Ext(entry.Name()) {
		case ".conflist", ".conf", ".json":
			files = append(files, full)
		}
	}
	return files, plugins, nil
}

// load reads the first max configurations. It does not skip an invalid one, but fails, because the
// next configuration may be a different network than the pods need.
func load(dir string, max int) ([]*libcni.NetworkConfigList, error) {
	files, plugins, err := confFiles(dir)
	if err != nil {
		return nil, err
	}
	if max > 0 && len(files) > max {
		files = files[:max]
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no network configuration in %s: install a CNI plugin configuration (*.conflist) there", dir)
	}
	if err := trusted(dir, slices.Concat(files, plugins)); err != nil {
		return nil, err
	}
	var lists []*libcni.NetworkConfigList
	for _, file := range files {
		list, err := loadFile(file)
		if err != nil {
			return nil, fmt.Errorf("network configuration %s: %w: correct the file or remove it", file, err)
		}
		lists = append(lists, list)
	}
	return lists, nil
}

// trusted refuses configurations that users other than root can change, because they select
// programs that run as root, and their input. The library reads the files immediately afterwards.
func trusted(dir string, files []string) error {
	err := trust.CheckDir(dir, trust.Configuration)
	for _, file := range files {
		if err == nil {
			err = trust.Check(file, trust.Configuration)
		}
	}
	if refused, is := errors.AsType[*trust.Refused](err); is {
		return fmt.Errorf("network configuration: %w", refused)
	}
	return nil // the reader reports missing files
}

func loadFile(file string) (*libcni.NetworkConfigList, error) {
	list, err := readFile(file)
	if err != nil {
		return nil, err
	}
	if list.Bytes, err = selfContained(list); err != nil {
		return nil, err
	}
	return list, nil
}

func readFile(file string) (*libcni.NetworkConfigList, error) {
	if filepath.Ext(file) == ".conflist" {
		return libcni.NetworkConfFromFile(file)
	}
	// CNI 1.0 removed the form of a single plugin per file, but nodes still use it.
	plugin, err := libcni.ConfFromFile(file) //nolint:staticcheck // deprecated with the form
	if err != nil {
		return nil, err
	}
	return libcni.ConfListFromConf(plugin) //nolint:staticcheck // the same
}

// selfContained returns the list's text with every plugin in it, also those from separate files, so
// that it can be stored with a pod.
func selfContained(list *libcni.NetworkConfigList) ([]byte, error) {
	var text map[string]any
	if err := json.Unmarshal(list.Bytes, &text); err != nil {
		return nil, err
	}
	plugins := make([]json.RawMessage, len(list.Plugins))
	for i, plugin := range list.Plugins {
		plugins[i] = plugin.Bytes
	}
	text["plugins"] = plugins
	text["loadOnlyInlinedPlugins"] = true
	return json.Marshal(text)
}

// findPlugins returns an error for the first plugin that is configured but is not installed or must
// not run, so that Status reports it before a pod fails.
func (p *Plugins) findPlugins(ctx context.Context, lists []*libcni.NetworkConfigList) error {
	for _, list := range lists {
		for _, plugin := range list.Plugins {
			path, err := p.findPlugin(plugin.Network.Type)
			if err != nil {
				return fmt.Errorf("network %q: %w", list.Name, err)
			}
			p.warn(ctx, path)
		}
	}
	return nil
}

func (p *Plugins) findPlugin(name string) (string, error) { return find(name, p.config.BinDirs) }

// find finds a plugin's executable. It refuses a file that every user can change, and accepts one
// that root does not own, because plugins are often unpacked with the owners in their archive.
func find(plugin string, binDirs []string) (string, error) {
	path, err := invoke.FindInPath(plugin, binDirs)
	if err != nil {
		return "", errdefs.ErrUnavailable.WithMessage(fmt.Sprintf(
			"CNI plugin %.100q is not in %s: install it there, or add its directory to the CNI binary directories",
			plugin, cut(strings.Join(binDirs, ", "), 300)))
	}
	if err := trust.Check(path, trust.Installed); err != nil {
		return "", fmt.Errorf("CNI plugin: %w", err)
	}
	return path, nil
}

// warn logs once that users other than root can change a plugin that is used.
func (p *Plugins) warn(ctx context.Context, plugin string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.warned[plugin] {
		return
	}
	for _, text := range trust.Warnings(plugin, trust.Installed) {
		log.G(ctx).WithFields(log.Fields{"plugin": plugin, "reason": text}).Warn("CNI plugin can be changed by users other than root")
	}
	p.warned[plugin] = true
}
