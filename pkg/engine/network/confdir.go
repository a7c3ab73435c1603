package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/trust"
)

// directory reads the configurations in one directory, again when they changed.
// It looks at names, times and inodes each time it is asked (some 20 µs), not
// by notification: that also sees directories that do not exist yet, links that
// move, and mounts, and there is no watcher that could fall behind.
// Who can change what it found is examined each time, too (some 25 µs a path): the
// mode of a directory above is no change of a file.
type directory struct {
	path    string
	binDirs []string
	max     int

	mu sync.Mutex // guards what follows; held while reading
	// state is what the directory looked like when lists was read.
	state string
	lists []*libcni.NetworkConfigList
	// files are what lists was read from.
	files []string
	// settled is false while a file is so new that a further change could leave
	// its time as it is.
	settled bool
	// warned are the plugins that were looked at for their owners.
	warned map[string]bool
}

// networks returns the configurations to connect a pod to, at least one. All
// errors are errdefs.ErrUnavailable, or the context's.
func (d *directory) networks(ctx context.Context) ([]*libcni.NetworkConfigList, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	state, newest, err := look(d.path)
	if err != nil {
		return nil, d.unavailable(err)
	}
	if !d.settled || state != d.state {
		d.settled = false
		if d.lists, d.files, err = load(d.path, d.max); err != nil {
			return nil, d.unavailable(err)
		}
		d.state, d.settled = state, time.Since(newest) > settleTime
	} else if err := trusted(d.path, d.files); err != nil {
		return nil, d.unavailable(err)
	}
	if err := d.findPlugins(ctx); err != nil {
		return nil, d.unavailable(err)
	}
	return d.lists, nil
}

// settleTime is more than the grain of file times on any file system in use.
const settleTime = 50 * time.Millisecond

func (d *directory) unavailable(err error) error {
	return bound(fmt.Errorf("%w: %w", errdefs.ErrUnavailable.WithMessage("cni plugin not initialized"), err))
}

// look returns what identifies the content of a directory, and its newest time.
func look(path string) (string, time.Time, error) {
	files, err := confFiles(path)
	if err != nil {
		return "", time.Time{}, err
	}
	var b strings.Builder
	var newest time.Time
	for _, file := range files {
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil {
			fmt.Fprintf(&b, "%s\x00%v\x00", file, err)
			continue
		}
		if changed := time.Unix(st.Ctim.Unix()); changed.After(newest) {
			newest = changed
		}
		fmt.Fprintf(&b, "%s\x00%d:%d:%d:%d:%d\x00", file, st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
	}
	return b.String(), newest, nil
}

// confFiles are the configuration files in a directory, by name, followed by
// the plugin files in its directories (CNI's form of a list in several files).
func confFiles(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var files, plugins []string
	for _, entry := range entries {
		full := filepath.Join(path, entry.Name())
		if entry.IsDir() {
			more, err := libcni.ConfFiles(full, []string{".conf"})
			if err != nil {
				return nil, err
			}
			plugins = append(plugins, more...)
			continue
		}
		switch filepath.Ext(entry.Name()) {
		case ".conflist", ".conf", ".json":
			files = append(files, full)
		}
	}
	return append(files, plugins...), nil
}

// load reads the first max configurations. One that is broken fails them all:
// the next one may be another network than the pods were meant for.
func load(dir string, max int) (lists []*libcni.NetworkConfigList, files []string, err error) {
	all, err := confFiles(dir)
	if err != nil {
		return nil, nil, err
	}
	own, parts := split(dir, all)
	if max > 0 && len(own) > max {
		own = own[:max]
	}
	if len(own) == 0 {
		return nil, nil, fmt.Errorf("no network configuration in %s: install a CNI plugin configuration (*.conflist) there", dir)
	}
	files = append(slices.Clone(own), parts...)
	if err := trusted(dir, files); err != nil {
		return nil, nil, err
	}
	for _, file := range own {
		list, err := loadFile(file)
		if err != nil {
			return nil, nil, fmt.Errorf("network configuration %s: %w: correct the file or remove it", file, err)
		}
		lists = append(lists, list)
	}
	return lists, files, nil
}

// split tells the files of a directory from those of directories in it.
func split(dir string, files []string) (own, parts []string) {
	n := slices.IndexFunc(files, func(f string) bool { return filepath.Dir(f) != filepath.Clean(dir) })
	if n < 0 {
		return files, nil
	}
	return files[:n], files[n:]
}

// trusted refuses configurations that others can change: they say what is run as
// root, and with what. The library reads them right after that.
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
	return nil // what is missing, the reader says
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
	// CNI 1.0 gave up the form of a single plugin per file, but nodes have it.
	plugin, err := libcni.ConfFromFile(file) //nolint:staticcheck // deprecated with the form
	if err != nil {
		return nil, err
	}
	return libcni.ConfListFromConf(plugin) //nolint:staticcheck // the same
}

// selfContained is the list's text with every plugin in it, also those that
// came from files of their own, so that it can be stored with a pod.
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

// findPlugins reports the first plugin that is named and not installed, or not to
// be run, before a pod finds out.
func (d *directory) findPlugins(ctx context.Context) error {
	for _, list := range d.lists {
		for _, plugin := range list.Plugins {
			path, err := find(plugin.Network.Type, d.binDirs)
			if err != nil {
				return fmt.Errorf("network %q: %w", list.Name, err)
			}
			d.warn(ctx, path)
		}
	}
	return nil
}

// find finds a plugin's executable. One that every user can change is not run; one
// of another owner is, since archives of plugins are often unpacked with theirs.
func find(plugin string, binDirs []string) (string, error) {
	path, err := invoke.FindInPath(plugin, binDirs)
	if err != nil {
		return "", missing(plugin, binDirs)
	}
	if err := trust.Check(path, trust.Installed); err != nil {
		return "", fmt.Errorf("CNI plugin: %w", err)
	}
	return path, nil
}

// warn tells of a plugin that is run although others can change it, once.
func (d *directory) warn(ctx context.Context, plugin string) {
	if d.warned[plugin] {
		return
	}
	for _, text := range trust.Warnings(plugin, trust.Installed) {
		log.G(ctx).WithFields(log.Fields{"plugin": plugin, "reason": text}).Warn("CNI plugin can be changed by users other than root")
	}
	if d.warned == nil {
		d.warned = map[string]bool{}
	}
	d.warned[plugin] = true
}
