package lifecycle

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/log"
	"github.com/fsnotify/fsnotify"
)

const (
	// quiet is how long files must not change before they are read: whoever writes
	// several, or one in several steps, is given time to finish.
	quiet = 100 * time.Millisecond
	// longest is how long a stream of changes can put a reading off.
	longest = time.Second
)

// watchFiles reloads when the Loader's files change. Where that cannot be
// watched, the other triggers remain.
func (m *Manager) watchFiles() {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		m.unwatched(err)
		return
	}
	f := &files{watcher: w, paths: m.o.Loader.Paths, changed: m.filesChanged, failed: m.unwatched, again: m.rewatch}
	f.add()
	// What changed between the reading of the configuration and this moment.
	m.queue.add(request{trigger: TriggerFiles, patient: true, silent: true})
	m.work.Go(func() { f.run(m.life) })
}

func (m *Manager) filesChanged() { m.queue.add(request{trigger: TriggerFiles, patient: true}) }

// unwatched says that changes of files go unnoticed.
func (m *Manager) unwatched(err error) {
	log.G(m.life).WithError(err).Warn("Changes of configuration files may go unnoticed; send SIGHUP after a change")
}

// files watches the directories of a configuration.
type files struct {
	watcher *fsnotify.Watcher
	paths   func() []string
	changed func()
	failed  func(error)
	// again says that the paths may be others now.
	again <-chan struct{}
}

// run waits for changes, and for quiet after them, until ctx ends.
func (f *files) run(ctx context.Context) {
	defer func() {
		if err := f.watcher.Close(); err != nil {
			f.failed(err)
		}
	}()
	var first time.Time // of the changes that are not told yet
	timer := time.NewTimer(0)
	<-timer.C
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.again:
			f.add()
			continue
		case <-timer.C:
			first = time.Time{}
			f.add()
			f.changed()
			continue
		case err := <-f.watcher.Errors:
			// Events were lost: what happened is not known.
			f.failed(err)
		case e := <-f.watcher.Events:
			if !relevant(e, f.paths()) {
				continue
			}
		}
		if first.IsZero() {
			first = time.Now()
		}
		timer.Reset(max(0, min(quiet, longest-time.Since(first))))
	}
}

// add watches what can be watched now. A directory that does not exist yet is
// awaited in the nearest one that does.
func (f *files) add() {
	for _, dir := range watched(f.paths(), isDir) {
		if err := f.watcher.Add(dir); err != nil && isDir(dir) {
			f.failed(err)
		}
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// watched are the directories to watch for changes of paths: each of them that
// is a directory, and the nearest directory above it. Pure but for exists.
func watched(paths []string, exists func(string) bool) []string {
	var dirs []string
	seen := map[string]bool{}
	add := func(dir string) {
		if !seen[dir] {
			seen[dir] = true
			dirs = append(dirs, dir)
		}
	}
	for _, p := range paths {
		if exists(p) {
			add(p)
		}
		above := filepath.Dir(p)
		for !exists(above) && above != filepath.Dir(above) {
			above = filepath.Dir(above)
		}
		add(above)
	}
	return dirs
}

// relevant says whether an event can change what is read from paths: it is about
// one of them, about a directory above one, or about a file that counts in one.
// Names that begin with two dots are how Kubernetes swaps the content of a
// directory. Pure.
func relevant(e fsnotify.Event, paths []string) bool {
	if e.Op == fsnotify.Chmod {
		return false
	}
	base := filepath.Base(e.Name)
	for _, p := range paths {
		switch {
		case e.Name == p, strings.HasPrefix(p, e.Name+"/"):
			return true
		case filepath.Dir(e.Name) == filepath.Clean(p):
			// Other daemons read files of any name, editors' temporary ones begin with a dot.
			if strings.HasPrefix(base, "..") || !strings.HasPrefix(base, ".") {
				return true
			}
		case filepath.Dir(e.Name) == filepath.Dir(p) && strings.HasPrefix(base, ".."):
			return true
		}
	}
	return false
}
