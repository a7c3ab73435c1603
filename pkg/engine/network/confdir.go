package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"golang.org/x/sys/unix"
)

// directory reads the configurations in one directory, again when they changed.
// It looks at names, times and inodes each time it is asked (some 20 µs), not
// by notification: that also sees directories that do not exist yet, links that
// move, and mounts, and there is no watcher that could fall behind.
type directory struct {
	path    string
	binDirs []string
	max     int

	mu sync.Mutex // guards what follows; held while reading
	// state is what the directory looked like when lists was read.
	state string
	lists []*libcni.NetworkConfigList
	// settled is false while a file is so new that a further change could leave
	// its time as it is.
	settled bool
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
		if d.lists, err = load(d.path, d.max); err != nil {
			return nil, d.unavailable(err)
		}
		d.state, d.settled = state, time.Since(newest) > settleTime
	}
	if err := findPlugins(d.lists, d.binDirs); err != nil {
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
func load(dir string, max int) ([]*libcni.NetworkConfigList, error) {
	files, err := confFiles(dir)
	if err != nil {
		return nil, err
	}
	var lists []*libcni.NetworkConfigList
	for _, file := range files {
		if filepath.Dir(file) != filepath.Clean(dir) || (max > 0 && len(lists) == max) {
			break
		}
		list, err := loadFile(file)
		if err != nil {
			return nil, fmt.Errorf("network configuration %s: %w: correct the file or remove it", file, err)
		}
		lists = append(lists, list)
	}
	if len(lists) == 0 {
		return nil, fmt.Errorf("no network configuration in %s: install a CNI plugin configuration (*.conflist) there", dir)
	}
	return lists, nil
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

// findPlugins reports the first plugin that is named and not installed, before
// a pod finds out.
func findPlugins(lists []*libcni.NetworkConfigList, binDirs []string) error {
	for _, list := range lists {
		for _, plugin := range list.Plugins {
			if _, err := invoke.FindInPath(plugin.Network.Type, binDirs); err != nil {
				return fmt.Errorf("network %q: %w", list.Name, missing(plugin.Network.Type, binDirs))
			}
		}
	}
	return nil
}
